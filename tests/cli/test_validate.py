"""`stepwire config validate` refuses what `stepwire serve` refuses, with the same words, and leaves nothing behind."""

from typing import Final

import pytest

from .a_place import Place

USAGE, OK = 2, 0

FAULTS: Final[dict[str, tuple[str, str]]] = {
    "a database of another kind": ("database.url=mysql://user:secret@db/stepwire", "it needs a form like"),
    "a database in memory": ("database.url=sqlite:///:memory:", "it must name a file"),
    "an endpoint without a port": ("bus.steps=tcp://127.0.0.1", "bus.steps is 'tcp://127.0.0.1': it has no port"),
    "an endpoint that others reach": ("bus.results=tcp://0.0.0.0:7412", "bus.results is 'tcp://0.0.0.0:7412'"),
    "one endpoint for both": ("bus.results=ipc://.stepwire/steps.sock", "each needs its own endpoint"),
    "an address that others reach": ("http.listen=0.0.0.0:0", "http.listen is '0.0.0.0:0'"),
    "a tokens file that is not there": ("http.tokens_file=nowhere", "nowhere cannot be read"),
    "a heartbeat as long as the lease": ("bus.heartbeat=8s", "a heartbeat must be at most half of the lease"),
    "an executor that is not configured": (
        "execution.default_executor=exec",
        "exec is not a configured executor|which is not a configured executor: bus, local, poll;"
        " exec needs executors.exec.commands",
    ),
    "a quota for a pattern": (
        'limits.namespaces={"shop::**":{"max_open_steps":9}}',
        "a quota for 'shop::**': a quota is for one namespace, so a pattern is not possible",
    ),
    "a quota for no namespace": (
        'limits.namespaces={"shop eu":{"max_open_steps":9}}',
        "a quota for 'shop eu', which is no namespace",
    ),
    "a quota that limits nothing": (
        'limits.namespaces={"shop":{}}',
        "limits nothing: it needs at least one of max_open_steps, steps_per_s, priority_max",
    ),
    "a quota of no step": ('limits.namespaces={"shop":{"max_open_steps":0}}', "must be at least 1"),
    "a quota with an unknown member": ('limits.namespaces={"shop":{"open_steps":5}}', "is not a known member"),
    "a module that is not there": ("executors.local.modules=no_such_module", "no_such_module"),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_validate_refuses_what_serve_refuses(empty: Place, fault: str) -> None:
    setting, message = FAULTS[fault]
    key, _, value = setting.partition("=")
    served = empty.stepwire("serve", "--set", setting)
    assert served.code != OK
    name = f"STEPWIRE_{key.upper().replace('.', '__')}"
    validated = empty.stepwire("config", "validate", **{name: value})
    assert validated.code == USAGE, validated
    assert validated.out == ""
    assert any(part in validated.err for part in message.split("|")), validated.err
    assert any(part in served.err for part in message.split("|")), served.err
    assert "secret" not in validated.err + served.err
    assert not (empty.directory / ".stepwire/token").exists()


def test_a_file_that_is_not_there_is_named_with_the_command_that_creates_it(empty: Place) -> None:
    done = empty.stepwire("-c", "nope.yaml", "config", "validate")
    message = "stepwire: --config names nope.yaml, which is not a file\n"
    assert (done.code, done.err) == (USAGE, f"{message}  a file with every setting: stepwire config init nope.yaml\n")


@pytest.mark.parametrize("words", [("config", "validate"), ("doctor",)])
def test_a_misspelt_variable_gets_a_note(empty: Place, words: tuple[str, ...]) -> None:
    done = empty.stepwire(*words, STEPWIRE_BUS_LEASE="5s")
    assert "STEPWIRE_BUS_LEASE is not a setting; did you mean STEPWIRE_BUS__LEASE?" in done.out + done.err


def test_validate_leaves_nothing_behind(empty: Place) -> None:
    before = sorted(empty.directory.iterdir())
    assert empty.stepwire("config", "validate").code == OK
    assert sorted(empty.directory.iterdir()) == before


def test_a_heartbeat_of_more_than_a_fifth_of_the_lease_gets_a_note(empty: Place) -> None:
    done = empty.stepwire("config", "validate", STEPWIRE_BUS__LEASE="5s")
    assert done.code == OK
    assert done.err.startswith("bus.heartbeat_ms is 2000, more than a fifth of bus.lease_ms (5000): ")
    assert empty.stepwire("config", "validate").err == ""
