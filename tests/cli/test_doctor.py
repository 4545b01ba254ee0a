"""`stepwire doctor`: what is ok, what is a warning, and what is red."""

import json
import os
import socket
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, get_args

import pytest
from stepwire_broker.cli import doctor, doctor_brokers, readiness_texts
from stepwire_broker.core.model.commit_group import StallCode
from stepwire_broker.timestamps import rfc3339

from tests.postgres.databases import OWNER

from .a_place import Ended, Place, stop

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
    of_file = ("disk",) if OWNER is None else ()
    for about in ("state directory", "token", "database", "bus.steps socket", "bus.results socket", *of_file, "http"):
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
        ("database", {"STEPWIRE_DATABASE__URL": "mysql://u:secret@h/d"}, "it needs a form like"),
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
    assert all(line.startswith(("✓ ", "! ", "· ", "\x1b[2m· ", "    ", "\x1b[2m    ")) for line in lines if line), lines
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


def test_the_keys_of_the_bus_are_examined(empty: Place) -> None:
    made = empty.stepwire("-o", "json", "keys", "init").json
    environ = {
        "STEPWIRE_BUS__CURVE__SECRET_FILE": made["secret_file"],
        "STEPWIRE_BUS__CURVE__CLIENTS_DIR": made["clients_dir"],
        "STEPWIRE_BUS__STEPS": "tcp://0.0.0.0:7411",
        "STEPWIRE_BUS__RESULTS": "tcp://0.0.0.0:7412",
    }
    empty.stepwire("keys", "new", "good", "--handlers", "good.*", "--expires", "90d", "--out", "good.key")
    done = empty.stepwire("doctor", "-o", "jsonl", **environ)
    by_subject = findings(done)
    assert (done.code, by_subject["bus"]["state"], "keys" in by_subject) == (OK, "ok", False), done
    assert by_subject["bus.steps"]["text"] == "tcp://0.0.0.0:7411, with CURVE"
    assert by_subject["bus.curve.clients_dir"]["text"] == "1 of 1 principals have access"
    empty.stepwire("keys", "new", "wide", "--handlers", "**", "--out", "wide.key")
    empty.stepwire("keys", "new", "soon", "--expires", "7d", "--out", "soon.key")
    empty.stepwire("keys", "new", "late", "--expires", "1ms", "--out", "late.key")
    empty.stepwire("keys", "rotate", "good", "--out", "good-2.key")
    texts = empty.stepwire("doctor", **environ).out
    for text in (
        "warning\tkeys\twide may offer every handler",
        "note\tkeys\tthe access of wide never expires",
        "warning\tkeys\tthe access of soon ends at 20",
        "warning\tkeys\tthe access of these principals has expired: late",
        "note\tkeys\tgood has 2 keys: a rotation is not finished",
    ):
        assert text in texts, text


def test_a_stored_workflow_with_a_probable_secret_is_named_without_its_value(empty: Place) -> None:
    step = "{name: s, handler_class: h, handler_config: {bank: {api_key: sk_live_1, public_key: p, url: u}}}"
    (empty.directory / "w.yaml").write_text(f"name: w\nsteps:\n  - {step}\n")
    empty.environ["STEPWIRE_HTTP__LISTEN"] = ""
    broker = empty.serve()
    try:
        assert empty.stepwire("workflow", "apply", "w.yaml").code == OK
        done = empty.stepwire("doctor", "-o", "jsonl")
    finally:
        stop(broker.process)
    found = findings(done)["workflows"]
    text = "default::w 1, step s: handler_config.bank.api_key probably holds a secret, in plain text"
    assert (done.code, found["state"], found["text"]) == (OK, "warning", text)
    assert "sk_live_1" not in done.out


def test_tokens_without_expiry_and_for_every_handler_are_named(empty: Place) -> None:
    environ = {"STEPWIRE_HTTP__TOKENS_FILE": "tokens"}
    for words in (["ci", "--scope", "read", "--expires", "never"], ["worker", "--scope", "work", "--expires", "30d"]):
        assert empty.stepwire("token", "new", *words, **environ).code == OK
    narrow = ["narrow", "--scope", "work", "--handlers", "shop.*", "--expires", "30d"]
    assert empty.stepwire("token", "new", *narrow, **environ).code == OK
    found = [
        one["text"] for one in map(json.loads, empty.stepwire("doctor", "-o", "jsonl", **environ).out.splitlines())
    ]
    assert "the token 'ci' never expires" in found
    assert "workers with the token 'worker' may offer every handler, and so receive every step" in found
    assert not any("'narrow'" in text for text in found)
    digits = {one["name"]: one["sha256"] for one in empty.stepwire("token", "list", "-o", "json", **environ).json}
    uses = empty.directory / "tokens.uses"
    uses.write_text(f"{digits['narrow']} 2026-01-01T00:00:00Z\n{digits['ci']} {rfc3339(time.time_ns() // 1_000_000)}\n")
    examined = empty.stepwire("doctor", **environ).out
    assert "the token 'narrow' was not used since 2026-01-01T00:00:00" in examined
    assert "the token 'ci' was not used" not in examined


@pytest.mark.parametrize(
    ("setting", "state", "text"),
    [
        (
            {"EXECUTORS__EXEC__COMMANDS": '{"a": ["true"]}'},
            "note",
            "1 command of executors.exec runs as the broker",
        ),
        ({"BUS__ALLOW_INSECURE": "true"}, "warning", "bus.allow_insecure is set, and no listener needs it"),
        ({"HTTP__ALLOW_INSECURE": "true"}, "warning", "http.allow_insecure is set: tokens may travel unencrypted"),
        (
            {"BUS__STEPS": "tcp://127.0.0.1:1", "BUS__RESULTS": "tcp://127.0.0.1:2"},
            "warning",
            "every user of this host",
        ),
    ],
)
def test_settings_that_open_the_broker_are_named(empty: Place, setting: dict[str, str], state: str, text: str) -> None:
    environ = {f"STEPWIRE_{name}": value for name, value in setting.items()}
    found = list(map(json.loads, empty.stepwire("doctor", "-o", "jsonl", **environ).out.splitlines()))
    assert [one["state"] for one in found if text in one["text"]] == [state]


@pytest.mark.parametrize(
    ("break_it", "about", "text"),
    [
        (lambda keys: (keys / "server.key").chmod(0o640), "bus.curve.secret_file", "chmod 600"),
        (
            lambda keys: (keys / "server.key").unlink(),
            "bus.curve.secret_file",
            "server.key does not exist: `stepwire keys init`",
        ),
        (lambda keys: (keys / "clients").chmod(0o777), "bus.curve.clients_dir", "can be written by other users"),
        (lambda keys: (keys / "clients/shop").write_text("public=x"), "bus.curve.clients_dir", "`public` is no key"),
        (lambda keys: (keys / "clients/shop").chmod(0o666), "bus.curve.clients_dir", "chmod go-w"),
        (lambda keys: os.chown(keys / "clients/shop", 12345, 0), "bus.curve.clients_dir", "belongs to user 12345"),
        (lambda keys: os.chown(keys / "server.key", 12345, 0), "bus.curve.secret_file", "belongs to user 12345"),
    ],
)
@pytest.mark.skipif(os.geteuid() != 0, reason="needs files of another user")
def test_a_key_file_that_cannot_be_trusted_is_red(
    empty: Place, break_it: Callable[[Path], object], about: str, text: str
) -> None:
    made = empty.stepwire("-o", "json", "keys", "init").json
    empty.stepwire("keys", "new", "shop", "--handlers", "shop.*", "--out", "shop.key")
    environ = {f"STEPWIRE_BUS__CURVE__{name.upper()}": made[name] for name in ("secret_file", "clients_dir")}
    break_it(empty.directory / ".stepwire/keys")
    done = empty.stepwire("doctor", "-o", "jsonl", **environ)
    red = [
        one["text"] for one in map(json.loads, done.out.splitlines()) if (one["about"], one["state"]) == (about, "red")
    ]
    assert (done.code, len(red)) == (FAILURE, 1), done
    assert text in red[0]


def test_the_doctor_names_workers_that_miss_a_broker_or_serve_their_brokers_in_turn() -> None:
    usual = {"slots": 10, "prefetch": 10, "brokers": ["b1", "b2"], "missing_brokers": []}
    assert list(doctor.of_brokers([{"worker": "w", **usual}])) == []
    missing = {**usual, "brokers": ["b1"], "missing_brokers": ["b2"]}
    (finding,) = doctor.of_brokers([{"worker": "w", **missing}, {"worker": "v", **missing}])
    assert finding.text == "w and 1 more have no session with the broker b2, whose steps do not reach it"
    (finding,) = doctor.of_brokers([{"worker": "w", **usual, "slots": 1, "prefetch": 0}])
    assert finding.text == "w has fewer slots than brokers, and serves them in turn"


def test_the_doctor_compares_the_brokers_of_a_deployment() -> None:
    usual = {"version": "0.1.0", "is_alive": True, "beat_age_ms": 400, "config_differs": False}
    first, second = {**usual, "broker": "b1", "lanes": [1, 3]}, {**usual, "broker": "b2", "lanes": []}
    assert list(doctor_brokers.of_brokers("b1", [first])) == [], "one broker is nothing to report"
    (finding,) = doctor_brokers.of_brokers("b1", [first, second])
    assert (finding.state, finding.text) == ("ok", "2 of 2 alive: b1 with lane 1, 3, b2 with no lane")
    dead = {**second, "is_alive": False, "beat_age_ms": 35_000, "version": "0.0.9", "config_differs": True}
    _, finding = doctor_brokers.of_brokers("b1", [first, dead])
    assert (finding.state, finding.text) == ("note", "b2 has not beaten for 35 s and counts as dead")
    _, finding = doctor_brokers.of_brokers("b1", [first, {**second, "version": "0.2.0"}])
    assert finding.text == "brokers of different versions: b1 0.1.0, b2 0.2.0"
    _, finding = doctor_brokers.of_brokers("b1", [first, {**second, "config_differs": True}])
    assert (finding.state, finding.text) == ("warning", "another configuration than b1: b2")


def test_the_doctor_names_lanes_whose_tasks_do_not_go_on() -> None:
    lanes = [{"lane": number, "broker": owner, "stalled": None} for number, owner in enumerate(("b1", "b2", None), 1)]
    assert list(doctor_brokers.of_lanes(lanes[:2], ["b1", "b2"])) == []
    (finding,) = doctor_brokers.of_lanes(lanes, ["b1"])
    assert (finding.state, finding.text) == ("warning", "no living broker owns lane 2, 3, whose tasks wait")
    (finding,) = doctor_brokers.of_lanes([{**lanes[0], "stalled": "disk_full"}], ["b1"])
    assert (finding.state, finding.text) == ("red", "lane 1 cannot be written: disk_full")


def test_each_reason_of_a_broker_that_accepts_no_work_has_a_meaning() -> None:
    assert readiness_texts.with_meaning("no_lane").startswith("no_lane (the broker owns no lane")
    assert readiness_texts.with_meaning("lost_commits in lane 2") == (
        "lost_commits in lane 2 (commits of the lane may be lost: see `stepwire db accept-loss`)"
    )
    assert readiness_texts.with_meaning("new_reason") == "new_reason"
    assert set(get_args(StallCode)) <= set(readiness_texts.MEANINGS)


def test_the_doctor_names_the_stage_that_makes_no_progress() -> None:
    member = {"id": "lane-3", "reason": "no heartbeat for 41000 ms"}
    pools = {"task_claimer": {"members": [{"id": "lane-1", "reason": None}, member]}}
    health = {"status": "unhealthy", "reason": "2 of 5 members are healthy", "executor_pools": pools}
    finding = doctor.of_stages(health)
    assert finding.state == "red"
    assert finding.text == ("unhealthy: 2 of 5 members are healthy (task_claimer lane-3: no heartbeat for 41000 ms)")
    assert doctor.of_stages({**health, "status": "degraded"}).state == "warning"
    assert doctor.of_stages({**health, "status": "healthy"}).state == "ok"
