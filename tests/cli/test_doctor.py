"""`stepwire doctor`: what is ok, what is a warning, and what is red."""

import json
import socket
from typing import Any

import pytest
from stepwire_broker.cli import doctor

from .a_place import Ended, Place

OK, FAILURE = range(2)


def findings(done: Ended) -> dict[str, dict[str, Any]]:
    return {one["about"]: one for one in map(json.loads, done.out.splitlines())}


def test_without_a_broker_nothing_is_red(empty: Place) -> None:
    done = empty.stepwire("doctor", "-o", "jsonl")
    by_subject = findings(done)
    assert done.code == OK, done
    assert by_subject["libzmq"]["state"] == "ok"
    assert (by_subject["broker"]["state"], by_subject["broker"]["todo"]) == ("note", "stepwire serve")
    assert "the first start creates it" in by_subject["token"]["text"]
    assert not (empty.directory / ".stepwire").exists(), "doctor must not create files"


def test_with_a_broker_its_state_is_checked_too(shop: Place) -> None:
    done = shop.stepwire("doctor", "-o", "jsonl")
    by_subject = findings(done)
    assert done.code == OK, done
    assert "accepts work" in by_subject["broker"]["text"]
    for about in ("state directory", "token", "database", "bus.steps socket", "bus.results socket", "disk", "http"):
        assert by_subject[about]["state"] == "ok", by_subject[about]
    text = shop.stepwire("doctor")
    assert "ok\tbroker\t" in text.out
    assert "✓ broker" in shop.on_terminal("doctor").out


@pytest.mark.parametrize(
    ("about", "environ", "text"),
    [
        ("bus.steps", {"STEPWIRE_BUS__STEPS": "tcp://0.0.0.0:7411"}, "other hosts can reach it"),
        ("bus.results", {"STEPWIRE_BUS__RESULTS": f"ipc:///tmp/{'x' * 120}"}, "at most 107"),
        ("http.listen", {"STEPWIRE_HTTP__LISTEN": "0.0.0.0:7410"}, "other machines can reach"),
        ("database", {"STEPWIRE_DATABASE__URL": "mysql://u:secret@h/d"}, "SQLite"),
        ("configuration", {"STEPWIRE_BUS__LESE": "5s"}, "did you mean bus.lease?"),
    ],
)
def test_a_setting_that_cannot_work_is_red(empty: Place, about: str, environ: dict[str, str], text: str) -> None:
    done = empty.stepwire("doctor", "-o", "jsonl", **environ)
    assert done.code == FAILURE
    assert "Traceback" not in done.err
    assert "secret" not in done.out
    by_subject = findings(done)[about]
    assert by_subject["state"] == "red"
    assert text in by_subject["text"]


def test_files_that_others_can_access_are_red(empty: Place) -> None:
    state = empty.directory / ".stepwire"
    state.mkdir()
    state.chmod(0o755)
    (state / "token").write_text("x" * 43)
    (state / "token").chmod(0o644)
    by_subject = findings(empty.stepwire("doctor", "-o", "jsonl"))
    assert (by_subject["state directory"]["state"], by_subject["state directory"]["todo"]) == (
        "red",
        "chmod 700 .stepwire",
    )
    assert (by_subject["token"]["state"], by_subject["token"]["todo"]) == ("red", "chmod 600 .stepwire/token")


def test_a_token_of_another_broker_and_an_address_of_another_program_are_red(shop: Place, empty: Place) -> None:
    url = f"http://{shop.environ['STEPWIRE_HTTP__LISTEN']}"
    done = empty.stepwire("doctor", "-o", "jsonl", "--url", url, STEPWIRE_TOKEN="x" * 43)
    assert (done.code, findings(done)["broker"]["state"]) == (FAILURE, "red")
    assert "the broker does not accept the token" in findings(done)["broker"]["text"]
    with socket.create_server(("127.0.0.1", 0)) as other:
        other.settimeout(20)
        port = other.getsockname()[1]
        assert doctor._is_port_open(f"http://127.0.0.1:{port}")


@pytest.mark.parametrize(("mib", "text"), [(63, "63 MiB"), (1_023, "1023 MiB"), (1_536, "1.5 GiB"), (76_912, "75 GiB")])
def test_free_space_has_a_readable_unit(mib: int, text: str) -> None:
    assert doctor._size(mib * 1024 * 1024) == text


def test_wrapped_findings_keep_their_indent(shop: Place) -> None:
    lines = shop.on_terminal("doctor", columns=40, NO_COLOR="1").out.splitlines()
    assert all(line.startswith(("✓ ", "! ", "· ", "    ", "\x1b[2m    ")) for line in lines if line), lines
    assert sum(line.startswith("    ") for line in lines) > 3


@pytest.mark.parametrize(
    ("version", "state"),
    [((4, 3, 2), "red"), ((4, 3, 3), "red"), ((4, 3, 4), "warning"), ((4, 3, 5), "ok"), ((4, 4, 0), "ok")],
)
def test_old_versions_of_libzmq_are_red_or_warnings(version: tuple[int, ...], state: str) -> None:
    assert doctor.of_libzmq(version).state == state


@pytest.mark.parametrize(
    ("version", "state"),
    [((3, 36, 0), "red"), ((3, 37, 0), "warning"), ((3, 51, 2), "warning"), ((3, 51, 3), "ok"), ((3, 53, 1), "ok")],
)
def test_old_versions_of_sqlite_are_red_or_warnings(version: tuple[int, ...], state: str) -> None:
    assert doctor.of_sqlite(version).state == state
