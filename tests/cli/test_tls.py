"""TLS in commands: the start, HUP, `doctor`, and addresses with https."""

import json
import os
import signal
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path

import pytest

from tests.certificates import LOCAL, Authority, replace

from .a_place import Place, Serving, stop
from .test_doctor import findings
from .test_serve import FAILURE, OK, USAGE

UNREACHABLE = 5


@pytest.fixture
def authority(empty: Place) -> Authority:
    authority = Authority(empty.directory)
    authority.issue("server", *LOCAL)
    (empty.directory / "stepwire.yaml").write_text("http:\n  tls: {cert_file: server.crt, key_file: server.key}\n")
    return authority


@pytest.fixture
def broker(empty: Place, authority: Authority) -> Iterator[Serving]:
    broker = empty.serve("-o", "json")
    yield broker
    stop(broker.process)


def test_the_start_names_the_https_address_and_commands_use_it(empty: Place, broker: Serving) -> None:
    facts = json.loads(broker.ready)
    assert facts["http"].startswith("https://127.0.0.1:")
    assert empty.stepwire("worker", "list").code == OK  # the Unix socket of the directory
    url = facts["http"].replace("127.0.0.1", "localhost")
    words = ("--url", url, "--token-file", ".stepwire/token", "worker", "list")
    assert empty.stepwire("--ca-file", "ca.pem", *words).code == OK
    assert empty.stepwire(*words, STEPWIRE_CA_FILE="ca.pem").code == OK
    refused = empty.stepwire(*words)
    assert refused.code == UNREACHABLE
    assert "--ca-file FILE, or STEPWIRE_CA_FILE" in refused.err
    assert empty.stepwire("--ca-file", "nowhere", *words).code == USAGE


def event(broker: Serving, name: str) -> dict[str, object]:
    assert broker.process.stderr is not None
    while True:
        found: dict[str, object] = json.loads(broker.process.stderr.readline())
        if found["event"] == name:
            return found


def test_hup_applies_a_new_certificate_and_refuses_files_that_do_not_fit(
    empty: Place, authority: Authority, broker: Serving
) -> None:
    authority.issue("server", *LOCAL, lasts=timedelta(days=3))
    broker.process.send_signal(signal.SIGHUP)
    event(broker, "reloaded")
    replace(empty.directory / "server.crt", b"half")
    broker.process.send_signal(signal.SIGHUP)
    refused = event(broker, "reload_refused")
    assert "holds no certificate in PEM" in str(refused["error"])


def test_a_start_with_a_key_that_others_can_read_is_refused(empty: Place, authority: Authority) -> None:
    (empty.directory / "server.key").chmod(0o644)
    done = empty.stepwire("serve")
    assert done.code == USAGE
    assert "http.tls.key_file: server.key can be read by others: chmod 600 server.key" in done.err
    assert not (empty.directory / ".stepwire" / "token").exists()


def of_tls(empty: Place) -> tuple[str, str]:
    found = findings(empty.stepwire("doctor", "-o", "jsonl"))["http.tls"]
    return found["state"], found["text"]


def test_doctor_examines_the_certificate(empty: Place, authority: Authority) -> None:
    assert of_tls(empty)[0] == "ok"
    authority.issue("server", *LOCAL, lasts=timedelta(days=13))
    state, text = of_tls(empty)
    assert (state, "expires at" in text) == ("warning", True)
    authority.issue("server", *LOCAL, lasts=timedelta(days=-1))
    state, text = of_tls(empty)
    assert (state, "expired at" in text) == ("red", True)
    os.unlink(Path(empty.directory, "server.key"))
    assert of_tls(empty)[0] == "red"
    assert empty.stepwire("doctor").code == FAILURE


def test_other_machines_may_reach_the_broker_with_tls_without_a_warning(empty: Place, authority: Authority) -> None:
    broker = empty.serve("-o", "json", "--set", "http.listen=0.0.0.0:0")
    stop(broker.process)
    assert json.loads(broker.ready)["insecure"] == []
