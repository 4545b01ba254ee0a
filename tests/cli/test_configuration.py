"""`stepwire config`: a file to begin with, a schema for editors, and the block of the system before this one."""

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
from .test_config import test_a_wrong_file_is_refused_by_key_and_place as wrong_files

OK, FAILURE, USAGE = range(3)

# As it stands in the design that Stepwire grew out of.
EARLIER = """\
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


# -- the earlier form -------------------------------------------------------------------------------------------------


def test_the_earlier_block_is_taken_word_for_word() -> None:
    loaded = load(EARLIER)
    bus = loaded.settings.bus
    assert (bus.steps, bus.results) == ("inproc://steps", "inproc://results")
    assert (bus.batch.max_steps, bus.steps_hwm, bus.results_hwm) == (10, 1000, 1000)
    assert loaded.origins["bus.results_hwm"] == "stepwire.yaml, step_execution.result_queue_hwm"
    for name in re.findall(r"^  (\w+):", EARLIER, re.MULTILINE):
        (note,) = [note for note in loaded.notes if f"step_execution.{name} " in note]
        assert " is bus." in note or " sets nothing" in note
    assert sum("only handlers inside the broker's own process" in note for note in loaded.notes) == 2


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
def test_each_key_that_has_one_changes_a_setting(name: str, written: str, key: str, value: object) -> None:
    loaded = load(f"step_execution: {{{name}: {written if value != written else json.dumps(written)}}}\n")
    assert loader.value_of(loaded.settings, key) == value
    assert loader.value_of(Settings(), key) != value
    assert loaded.notes == (f"stepwire.yaml: step_execution.{name} is {key} now",)


@pytest.mark.parametrize(
    ("block", "says"),
    [
        ("handler_step_subscriber: 'ipc://s'", "by STEPWIRE_STEPS=ipc://s"),
        ("handler_result_publisher: 'ipc://r'", "by STEPWIRE_RESULTS=ipc://r"),
        ("result_timeout_ms: 300000", "`timeout_ms: 300000` in its workflow"),
        ("handler_poll_interval_ms: 1", "nobody polls"),
        ("rust_step_publisher: 'ipc://a', handler_step_subscriber: 'ipc://b'", "they would not meet"),
    ],
)
def test_each_key_that_has_none_is_told_why(block: str, says: str) -> None:
    loaded = load(f"step_execution: {{{block}}}\n")
    assert any(says in note for note in loaded.notes), loaded.notes


@pytest.mark.parametrize(
    ("text", "says"),
    [
        (
            "step_execution: {batch_sise: 1}",
            "step_execution.batch_sise is not a known setting; did you mean batch_size?",
        ),
        ("step_execution: {x: 1}", "known are rust_step_publisher"),
        ("step_execution: 5", "has to be a map"),
        ("step_execution: {batch_size: 0}", "step_execution.batch_size is 0"),
        ("step_execution: {batch_size: 1}\nbus: {batch: {max_steps: 2}}", "are the same setting: keep one"),
    ],
)
def test_a_wrong_block_is_refused(text: str, says: str) -> None:
    with pytest.raises(loader.SettingsError) as refused:
        load(text)
    assert says in str(refused.value)


def test_the_notes_are_seen_and_are_not_data(empty: Place) -> None:
    (empty.directory / "stepwire.yaml").write_text(EARLIER)
    for words in (["config", "validate"], ["config", "show", "--origin"]):
        done = empty.stepwire(*words)
        assert done.code == OK
        assert "step_execution.result_timeout_ms sets nothing" in done.err
        assert "sets nothing" not in done.out
    assert "step_execution" not in empty.stepwire("config", "show", "-q").err


def test_a_broker_runs_on_the_earlier_block(empty: Place) -> None:
    text = EARLIER.replace('"inproc://steps"', '"ipc://.stepwire/s"').replace(
        '"inproc://results"', '"ipc://.stepwire/r"'
    )
    (empty.directory / "stepwire.yaml").write_text(text)
    broker = empty.serve("-o", "json")
    ended = broker.end(15)
    assert json.loads(broker.ready)["steps"].endswith("/.stepwire/s")
    assert "step_execution.batch_size is bus.batch.max_steps now" in ended.err


# -- a file to begin with ---------------------------------------------------------------------------------------------


def test_the_file_to_begin_with_changes_nothing_whether_commented_or_not() -> None:
    text = setting_texts.sample_file()
    assert load(text).settings == Settings()
    said = re.sub(r"^( *)# (\w+: )", r"\1\2", text, flags=re.MULTILINE)
    loaded = load(said)
    assert loaded.settings == Settings()
    assert set(loaded.origins.values()) == {"stepwire.yaml"}, "every setting is in it"


def test_init_writes_it_once(empty: Place) -> None:
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


def test_the_schema_says_what_the_reader_says(empty: Place) -> None:
    schema = empty.stepwire("config", "schema").json
    jsonschema.Draft202012Validator.check_schema(schema)
    validator = jsonschema.Draft202012Validator(schema)
    (table,) = (mark.args[1] for mark in wrong_files.pytestmark if mark.name == "parametrize")
    for text, _ in table:
        try:
            document = definition_files.read_yaml(text)
        except definition_files.DocumentError:
            continue  # what is no YAML no schema is asked about
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
