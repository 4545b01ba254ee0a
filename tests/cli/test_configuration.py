"""`stepwire config`: the sample file, the schema for editors, and the `step_execution` block of the seed."""

import json
import re
import stat
from pathlib import Path

import jsonschema
import pytest
from stepwire_broker import definition_files
from stepwire_broker.configuration import loader, setting_texts
from stepwire_broker.core.definitions.settings import Settings

from .a_place import Place
from .test_config import test_a_wrong_file_is_refused_with_the_key_and_the_file as wrong_files

OK, FAILURE, USAGE = range(3)

# Quoted from the design that Stepwire grew out of.
SEED_BLOCK = """\
# config/zeromq.yaml
step_execution:
  # Pub-Sub endpoints (bidirectional)
  rust_step_publisher: "inproc://steps"      # Rust publishes steps
  rust_result_subscriber: "inproc://results" # Rust subscribes to results

  # Handler endpoints (opposite direction)
  handler_step_subscriber: "inproc://steps"     # Handlers subscribe to steps
  handler_result_publisher: "inproc://results"  # Handlers publish results

  # Later: unix socket for process isolation
  # rust_step_publisher: "ipc:///tmp/tasker_steps.sock"
  # rust_result_subscriber: "ipc:///tmp/tasker_results.sock"

  # Future: network distribution
  # rust_step_publisher: "tcp://*:5555"
  # rust_result_subscriber: "tcp://*:5556"

  batch_size: 10
  result_timeout_ms: 300000  # 5 minutes max wait for results
  handler_poll_interval_ms: 1  # Polling frequency for non-blocking receives

  # High-water marks for message queuing
  step_queue_hwm: 1000
  result_queue_hwm: 1000
"""


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


def load(text: str) -> loader.Configuration:
    path = Path("stepwire.yaml")
    path.write_text(text)
    path.chmod(0o600)
    return loader.load(None, {}, {})


# -- the seed block ---------------------------------------------------------------------------------------------------


def test_the_seed_block_is_accepted_unchanged() -> None:
    loaded = load(SEED_BLOCK)
    bus = loaded.settings.bus
    assert (bus.steps, bus.results) == ("inproc://steps", "inproc://results")
    assert (bus.batch.max_steps, bus.steps_hwm, bus.results_hwm) == (10, 1000, 1000)
    assert loaded.origins["bus.results_hwm"] == "stepwire.yaml, step_execution.result_queue_hwm"
    for name in re.findall(r"^  (\w+):", SEED_BLOCK, re.MULTILINE):
        (note,) = [note for note in loaded.notes if f"step_execution.{name} " in note]
        assert " is now bus." in note or " has no effect" in note
    assert sum("only handlers in the broker's process" in note for note in loaded.notes) == 2


@pytest.mark.parametrize(
    ("name", "written", "key", "value"),
    [
        ("rust_step_publisher", "ipc:///tmp/s.sock", "bus.steps", "ipc:///tmp/s.sock"),
        ("rust_result_subscriber", "tcp://*:5556", "bus.results", "tcp://*:5556"),
        ("batch_size", "25", "bus.batch.max_steps", 25),
        ("step_queue_hwm", "7", "bus.steps_hwm", 7),
        ("result_queue_hwm", "8", "bus.results_hwm", 8),
    ],
)
def test_a_mapped_key_changes_its_setting(name: str, written: str, key: str, value: object) -> None:
    loaded = load(f"step_execution: {{{name}: {written if value != written else json.dumps(written)}}}\n")
    assert loader.value_of(loaded.settings, key) == value
    assert loader.value_of(Settings(), key) != value
    assert loaded.notes == (f"stepwire.yaml: step_execution.{name} is now {key}",)


@pytest.mark.parametrize(
    ("block", "note"),
    [
        ("handler_step_subscriber: 'ipc://s'", "with STEPWIRE_STEPS=ipc://s"),
        ("handler_result_publisher: 'ipc://r'", "with STEPWIRE_RESULTS=ipc://r"),
        ("result_timeout_ms: 300000", "`timeout_ms: 300000` in its workflow"),
        ("handler_poll_interval_ms: 1", "handlers do not poll"),
        ("rust_step_publisher: 'ipc://a', handler_step_subscriber: 'ipc://b'", "they cannot connect"),
    ],
)
def test_a_key_without_a_setting_gets_a_note(block: str, note: str) -> None:
    loaded = load(f"step_execution: {{{block}}}\n")
    assert any(note in each for each in loaded.notes), loaded.notes


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (
            "step_execution: {batch_sise: 1}",
            "step_execution.batch_sise is not a known setting; did you mean batch_size?",
        ),
        ("step_execution: {x: 1}", "the known keys are rust_step_publisher"),
        ("step_execution: 5", "must be a map"),
        ("step_execution: {batch_size: 0}", "step_execution.batch_size is 0"),
        ("step_execution: {batch_size: 1}\nbus: {batch: {max_steps: 2}}", "are the same setting: keep one"),
    ],
)
def test_a_wrong_seed_block_is_refused(text: str, message: str) -> None:
    with pytest.raises(loader.SettingsError) as refused:
        load(text)
    assert message in str(refused.value)


def test_notes_go_to_stderr(empty: Place) -> None:
    (empty.directory / "stepwire.yaml").write_text(SEED_BLOCK)
    for words in (["config", "validate"], ["config", "show", "--origin"]):
        done = empty.stepwire(*words)
        assert done.code == OK
        assert "step_execution.result_timeout_ms has no effect" in done.err
        assert "has no effect" not in done.out
    assert "step_execution" not in empty.stepwire("config", "show", "-q").err


def test_a_broker_runs_with_the_seed_block(empty: Place) -> None:
    text = SEED_BLOCK.replace('"inproc://steps"', '"ipc://.stepwire/s"').replace(
        '"inproc://results"', '"ipc://.stepwire/r"'
    )
    (empty.directory / "stepwire.yaml").write_text(text)
    broker = empty.serve("-o", "json")
    ended = broker.end(15)
    assert json.loads(broker.ready)["steps"].endswith("/.stepwire/s")
    assert "step_execution.batch_size is now bus.batch.max_steps" in ended.err


# -- the sample file --------------------------------------------------------------------------------------------------


def test_the_sample_file_changes_nothing_commented_or_not() -> None:
    text = setting_texts.sample_file()
    assert load(text).settings == Settings()
    uncommented = re.sub(r"^( *)# (\w+: )", r"\1\2", text, flags=re.MULTILINE)
    loaded = load(uncommented)
    assert loaded.settings == Settings()
    assert set(loaded.origins.values()) == {"stepwire.yaml"}, "every setting is in it"


def test_init_does_not_overwrite_a_file_without_yes(empty: Place) -> None:
    done = empty.stepwire("config", "init")
    assert (done.code, done.out) == (OK, "wrote stepwire.yaml\n")
    path = empty.directory / "stepwire.yaml"
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert empty.stepwire("config", "validate").code == OK
    path.write_text("log_level: debug\n")
    done = empty.stepwire("config", "init")
    assert (done.code, path.read_text()) == (USAGE, "log_level: debug\n")
    assert "add --yes" in done.err
    assert empty.on_terminal("config", "init", types="n\n").code == FAILURE
    assert empty.stepwire("config", "init", "--yes").code == OK
    assert path.read_text() == setting_texts.sample_file()
    assert empty.stepwire("config", "init", "nowhere/x.yaml").code == FAILURE


# -- the schema -------------------------------------------------------------------------------------------------------


def test_the_schema_accepts_what_the_loader_accepts(empty: Place) -> None:
    schema = empty.stepwire("config", "schema").json
    jsonschema.Draft202012Validator.check_schema(schema)
    validator = jsonschema.Draft202012Validator(schema)
    (table,) = (mark.args[1] for mark in wrong_files.pytestmark if mark.name == "parametrize")
    for text, _ in table:
        try:
            document = definition_files.read_yaml(text)
        except definition_files.DocumentError:
            continue  # a schema cannot judge what is not YAML
        assert not validator.is_valid(document), text
    for text in (
        setting_texts.sample_file(),
        "{}",
        "bus: {lease_ms: 5}",
        "bus: {lease: 5s, batch: {max_steps: 3}}",
        "bus:",
        "log_level: info",
        'retention: {completed: " 1.5h "}',
        "step_execution: {batch_size: 5, handler_poll_interval_ms: 10}",
    ):
        validator.validate(definition_files.read_yaml(text))
