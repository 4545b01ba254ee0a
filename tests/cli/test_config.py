"""Where a setting comes from, which origin wins, and the error for a wrong one."""

import json
import os
import re
from pathlib import Path

import pytest
from stepwire_broker.configuration import loader
from stepwire_broker.configuration.loader import SettingsError
from stepwire_broker.configuration.misspelt_names import NOT_SETTINGS

from tests.house.source import python_files


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Work in an empty directory, so that no configuration file of the user is commands_shown."""
    monkeypatch.chdir(tmp_path)
    return tmp_path


def write(text: str, name: str = "stepwire.yaml", mode: int = 0o600) -> Path:
    path = Path(name)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    path.chmod(mode)
    return path


def load(text: str | None = None, *, flags: dict[str, str] | None = None, **environ: str) -> loader.Configuration:
    if text is not None:
        write(text)
    return loader.load(None, flags or {}, environ)


def shown(loaded: loader.Configuration) -> dict[str, object]:
    return {key: value for key, value, _ in loader.show(loaded)}


def test_the_defaults_are_a_valid_configuration() -> None:
    loaded = load()
    assert loaded.file is None
    assert loaded.settings.http.listen == "127.0.0.1:7410"
    assert set(loaded.origins.values()) == {"default"}


def test_the_first_layer_that_sets_a_value_wins() -> None:
    text = "bus: {lease_ms: 10, heartbeat_ms: 1, steps_hwm: 1, results_hwm: 1}\n"
    Path("value").write_text("4\n")
    loaded = load(
        text,
        flags={"bus.lease_ms": "20"},
        STEPWIRE_BUS__LEASE_MS="30",
        STEPWIRE_BUS__HEARTBEAT_MS="3",
        STEPWIRE_BUS__STEPS_HWM_FILE="value",
    )
    bus, origins = loaded.settings.bus, loaded.origins
    assert (bus.lease_ms, origins["bus.lease_ms"]) == (20, "--set bus.lease_ms")
    assert (bus.heartbeat_ms, origins["bus.heartbeat_ms"]) == (3, "STEPWIRE_BUS__HEARTBEAT_MS")
    assert (bus.steps_hwm, origins["bus.steps_hwm"]) == (4, "STEPWIRE_BUS__STEPS_HWM_FILE")
    assert (bus.results_hwm, origins["bus.results_hwm"]) == (1, "stepwire.yaml")
    assert (bus.steps, origins["bus.steps"]) == ("ipc://.stepwire/steps.sock", "default")


def test_database_url_is_read_and_the_stepwire_variable_wins() -> None:
    text = 'database: {url: "sqlite:///file.db"}'
    assert load(text).settings.database.url == "sqlite:///file.db"
    assert load(text, DATABASE_URL="sqlite:///env.db").settings.database.url == "sqlite:///env.db"
    ours = load(text, DATABASE_URL="sqlite:///env.db", STEPWIRE_DATABASE__URL="sqlite:///ours.db")
    assert ours.settings.database.url == "sqlite:///ours.db"
    assert ours.origins["database.url"] == "STEPWIRE_DATABASE__URL"


def test_every_layer_accepts_a_duration() -> None:
    assert load("retention: {completed: 7d}").settings.retention.completed_ms == 604_800_000
    assert load(STEPWIRE_BUS__LEASE="5s").settings.bus.lease_ms == 5000
    assert load(flags={"broker.drain_timeout": "1m"}).settings.broker.drain_timeout_ms == 60_000
    assert load("bus: {lease_ms: 1}", STEPWIRE_BUS__LEASE="5s").settings.bus.lease_ms == 5000


@pytest.mark.parametrize(
    ("key", "text", "value"),
    [
        ("HTTP__ALLOW_INSECURE", "true", True),
        ("HTTP__HOSTS", "a.example, b.example", ["a.example", "b.example"]),
        ("HTTP__HOSTS", "", []),
        ("HTTP__TOKENS_FILE", "tokens", "tokens"),
        ("HTTP__TOKENS_FILE", "", None),
        ("BUS__BATCH__MAX_STEPS", "20", 20),
        ("BUS__ADVERTISE", "broker.example", "broker.example"),
        ("LOG_LEVEL", "debug", "debug"),
    ],
)
def test_text_in_the_environment_is_converted_to_the_type_of_the_setting(key: str, text: str, value: object) -> None:
    name = key.lower().replace("__", ".")
    loaded = load(**{f"STEPWIRE_{key}": text})
    assert shown(loaded)[name] == value
    assert loaded.origins[name] == f"STEPWIRE_{key}"


@pytest.mark.parametrize(
    "text",
    [
        "defaultExecutionMode: local",
        "execution: {defaultExecutionMode: local}",
        "execution: {default_execution_mode: local}",
    ],
)
def test_the_default_execution_mode_may_be_spelled_in_camel_case(text: str) -> None:
    assert shown(load(text))["execution.default_execution_mode"] == "local"


def test_a_structure_is_json_in_the_environment() -> None:
    rules = load(STEPWIRE_EXECUTION__RULES='[{"match": "a::**", "executor": "poll"}]').settings.execution.rules
    assert [(rule.match, rule.executor) for rule in rules] == [("a::**", "poll")]
    with pytest.raises(SettingsError, match=r"STEPWIRE_EXECUTION__RULES is .*, but is not JSON"):
        load(STEPWIRE_EXECUTION__RULES='[{"match": "a::**"')


def test_variables_that_are_not_settings_are_ignored() -> None:
    ours = {f"STEPWIRE_{name}": "1" for name in NOT_SETTINGS - {"CONFIG"}}
    assert load(**ours, PATH="/bin", STEPWIRE_PORT_7410_TCP="tcp://10.0.0.1:7410").notes == ()


def test_every_variable_of_the_product_is_known() -> None:
    """No variable that clients, workers or programs read is taken for a misspelt setting."""
    texts = [path.read_text() for path in python_files()]
    named = {name for text in texts for name in re.findall(r"\bSTEPWIRE_([A-Z][A-Z_]*[A-Z])\b", text)}
    settings = {key.upper().replace(".", "__") for key in loader.KEYS}
    assert {name for name in named if "__" not in name} - settings == NOT_SETTINGS


@pytest.mark.parametrize(
    ("written", "meant"),
    [
        ("STEPWIRE_BUS_LEASE", "STEPWIRE_BUS__LEASE"),
        ("STEPWIRE_HTTP_LISTEN", "STEPWIRE_HTTP__LISTEN"),
        ("STEPWIRE_TOKN_FILE", "STEPWIRE_TOKEN_FILE"),
        ("STEPWIRE_LOGLEVEL", "STEPWIRE_LOG_LEVEL"),
    ],
)
def test_a_variable_with_a_misspelt_name_gets_a_note(written: str, meant: str) -> None:
    assert load(**{written: "5s"}).notes == (f"{written} is not a setting; did you mean {meant}?",)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("bus: {lese_ms: 1}", "bus.lese_ms in stepwire.yaml is not a known setting; did you mean bus.lease_ms?"),
        ("buss: {lease_ms: 1}", "buss in stepwire.yaml is not a known setting; did you mean bus?"),
        ("lease_ms: 1", "is not a known setting"),
        ("bus: 5", "bus in stepwire.yaml must be a map"),
        ("[1]", "must be a map"),
        (
            "bus: {lease_ms: 1, lease: 10s}",
            "bus.lease_ms and bus.lease in stepwire.yaml are the same setting: keep one",
        ),
        ("http.listen: a:1\nhttp: {listen: b:1}", "http.listen is set twice in stepwire.yaml: keep one"),
        ("bus: {lease: 10}", "bus.lease in stepwire.yaml is 10: use a form like 30s, 5m or 7d"),
        ("bus: {lease: ten}", "use a form like"),
        ("bus: {lease_ms: 0}", "bus.lease_ms in stepwire.yaml is 0, but must be at least 1"),
        ('bus: {lease_ms: "10"}', "is '10', but must be a whole number"),
        ("bus: {lease_ms: 10.5}", "is 10.5, but must be a whole number"),
        (
            "http: {allow_insecure: 1}",
            "http.allow_insecure in stepwire.yaml is 1, but must be true or false",
        ),
        ("http: {listen: 7410}", "http.listen in stepwire.yaml is 7410, but must be text or null: quote it"),
        ("execution: {rules: [{match: 5}]}", "`[0].match` must be text, not a number: quote it"),
        ("broker: {id: UPPER}", "broker.id in stepwire.yaml is 'UPPER'"),
        ("log_level: loud", "is 'loud', but must be one of debug, error, info, warning"),
        ("bus: {lease_ms: 1, lease_ms: 2}", "stepwire.yaml"),
        ("bus: &a {lease_ms: 1}", "stepwire.yaml"),
        ("bus: !!python/object:os.system {}", "stepwire.yaml"),
        ("bus:\n  lease: {", "stepwire.yaml:3: "),
    ],
)
def test_a_wrong_file_is_refused_with_the_key_and_the_file(text: str, message: str) -> None:
    with pytest.raises(SettingsError) as refused:
        load(text)
    assert message in str(refused.value)


@pytest.mark.parametrize(
    ("environ", "message"),
    [
        ({"STEPWIRE_BUS__LESE_MS": "1"}, "STEPWIRE_BUS__LESE_MS (bus.lese_ms) is not a known setting; did you mean"),
        ({"STEPWIRE_BUS__LEASE_MS": "ten"}, "STEPWIRE_BUS__LEASE_MS is 'ten', but must be a whole number"),
        ({"STEPWIRE_BUS__LEASE_MS": "1", "STEPWIRE_BUS__LEASE": "1s"}, "are the same setting: keep one"),
        ({"STEPWIRE_BUS__LEASE_MS": "1", "STEPWIRE_BUS__LEASE_MS_FILE": "f"}, "are the same setting: keep one"),
        ({"STEPWIRE_DATABASE__URL_FILE": "nowhere"}, "URL_FILE names 'nowhere', which cannot be read"),
        ({"STEPWIRE_CONFIG": "nowhere.yaml"}, "STEPWIRE_CONFIG names nowhere.yaml, which is not a file"),
    ],
)  # fmt: skip
def test_a_wrong_environment_is_refused_with_the_name_of_the_variable(environ: dict[str, str], message: str) -> None:
    with pytest.raises(SettingsError) as refused:
        load(**environ)
    assert message in str(refused.value)


def test_an_empty_file_and_an_empty_section_set_nothing() -> None:
    assert load("").settings == load("bus:\n").settings == load("# nothing\n").settings


def test_the_first_existing_file_is_read(here: Path) -> None:
    home = here / "home"
    user = write("log_level: error", str(home / ".config/stepwire/stepwire.yaml"))
    assert loader.find_file(None, {"HOME": str(home)}) == user
    assert loader.find_file(None, {"XDG_CONFIG_HOME": str(home / ".config"), "HOME": "/nowhere"}) == user
    local = write("log_level: debug")
    assert loader.find_file(None, {"HOME": str(home)}) == local
    named = write("log_level: info", "other.yaml")
    assert loader.find_file(None, {"STEPWIRE_CONFIG": "other.yaml"}) == named
    assert loader.find_file("stepwire.yaml", {"STEPWIRE_CONFIG": "other.yaml"}) == local


def test_a_file_that_others_can_write_is_refused() -> None:
    write("log_level: debug", mode=0o666)
    with pytest.raises(SettingsError, match=r"chmod go-w stepwire\.yaml"):
        loader.load(None, {}, {})


def test_a_file_with_a_password_that_others_can_read_is_refused() -> None:
    write("log_level: debug", mode=0o644)
    loader.load(None, {}, {})
    write('database: {url: "postgresql://u:secret@db/s"}', mode=0o644)
    with pytest.raises(SettingsError, match=r"chmod 600 stepwire\.yaml") as refused:
        loader.load(None, {}, {})
    assert "secret" not in str(refused.value)
    os.chmod("stepwire.yaml", 0o600)
    loader.load(None, {}, {})


def test_the_environment_of_a_command_is_not_printed() -> None:
    commands = '{"a": ["env"], "b": {"argv": ["env"], "env": {"API_KEY": "secret"}}}'
    Path("stepwire.yaml").write_text(f"executors: {{exec: {{commands: {commands}}}}}")
    commands_shown = shown(load())["executors.exec.commands"]
    assert commands_shown["a"] == ("env",)
    assert commands_shown["b"].env == {"API_KEY": "***"}


def test_a_password_is_never_printed() -> None:
    loaded = load(STEPWIRE_DATABASE__URL="postgresql://u:p%40ss@db.example:5432/s?x=1")
    assert shown(loaded)["database.url"] == "postgresql://u:***@db.example:5432/s?x=1"
    with pytest.raises(SettingsError) as refused:
        load(flags={"database.urll": "postgresql://u:secret@db/s"})
    assert "secret" not in str(refused.value)


SECRET_ARGUMENTS = [
    "--token=hidden1",
    "--db-password",
    "hidden2",
    "API_KEY=hidden3",
    "https://user:hidden4@example.test/x",
    "Authorization: Bearer hidden5",
    "-secret",
    "hidden6",
]
OPEN_ARGUMENTS = [
    "/usr/bin/curl",
    "--tokenizer=fast",
    "--key-size",
    "2048",
    "--verbose",
    "--token",
    "--next",
    "x=1",
    "a b",
]


@pytest.mark.parametrize("form", ["list", "map"])
def test_arguments_and_options_that_look_like_secrets_are_not_printed(form: str) -> None:
    argv = [*OPEN_ARGUMENTS, *SECRET_ARGUMENTS]
    command = argv if form == "list" else {"argv": argv}
    options = {"sqs": {"queue": "orders", "access_key": "hidden7"}}
    Path("stepwire.yaml").write_text(
        json.dumps({"executors": {"exec": {"commands": {"a": command}}, "options": options}})
    )
    Path("stepwire.yaml").chmod(0o600)
    printed = shown(load())
    assert "hidden" not in repr(printed)
    (command_shown,) = printed["executors.exec.commands"].values()  # type: ignore[attr-defined]
    words = command_shown if form == "list" else command_shown.argv
    assert list(words[: len(OPEN_ARGUMENTS)]) == OPEN_ARGUMENTS
    assert list(words[len(OPEN_ARGUMENTS) :]) == [
        "--token=***",
        "--db-password",
        "***",
        "API_KEY=***",
        "https://user:***@example.test/x",
        "Authorization: Bearer ***",
        "-secret",
        "***",
    ]
    assert printed["executors.options"] == {"sqs": {"queue": "***", "access_key": "***"}}


def test_an_error_about_a_command_does_not_print_its_secrets() -> None:
    with pytest.raises(SettingsError) as refused:
        load("executors: {exec: {commands: {a: {argv: 7, env: {KEY: hidden}}}}}")
    assert "executors.exec.commands" in str(refused.value)
    assert "hidden" not in str(refused.value)


def test_a_quota_above_the_limit_of_all_namespaces_together_gets_a_note() -> None:
    loaded = load(
        "limits: {max_open_steps: 10, namespaces: {shop: {max_open_steps: 11}, other: {max_open_steps: 10}}}\n"
    )
    (note,) = loaded.notes
    assert "limits.namespaces.shop.max_open_steps is 11, more than limits.max_open_steps (10)" in note
    assert shown(loaded)["limits.namespaces"] == {
        "shop": {"max_open_steps": 11},
        "other": {"max_open_steps": 10},
    }
