"""The notifications of `stepwire serve` to systemd, on a real datagram socket."""

import asyncio
import json
import signal
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from stepwire_broker.cli.systemd import Systemd, without_systemd

from .a_place import Place, stop

BOUND_S = 30


@contextmanager
def listening(address: str) -> Iterator[socket.socket]:
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as ours:
        ours.bind(f"\0{address[1:]}" if address.startswith("@") else address)
        ours.settimeout(BOUND_S)
        yield ours


def received(ours: socket.socket, line: str) -> str:
    """The first datagram with this line. Watchdog messages are skipped."""
    while True:
        text = ours.recv(4096).decode()
        if line in text.split("\n"):
            return text
        assert text == "WATCHDOG=1", text


def is_silent(ours: socket.socket) -> bool:
    """Read what is on its way; True if nothing follows for five times the watchdog interval."""
    ours.settimeout(0.5)
    try:
        for _ in range(20):
            ours.recv(4096)
    except TimeoutError:
        return True
    finally:
        ours.settimeout(BOUND_S)
    return False


@pytest.mark.parametrize("form", ["path", "abstract"])
def test_ready_reload_and_stop_are_notified_in_order(empty: Place, form: str) -> None:
    address = str(empty.directory / "notify") if form == "path" else f"@stepwire-{empty.directory.name}"
    with listening(address) as ours:
        empty.environ["NOTIFY_SOCKET"] = address
        broker = empty.serve("-o", "json")
        try:
            assert received(ours, "READY=1") == "READY=1\nSTATUS=serving"
            assert json.loads(broker.ready)["broker"] == "b1"
            broker.process.send_signal(signal.SIGHUP)
            assert "MONOTONIC_USEC=" in received(ours, "RELOADING=1")
            received(ours, "READY=1")
            broker.process.send_signal(signal.SIGTERM)
            received(ours, "STOPPING=1")
            assert broker.end().code == 0
        finally:
            stop(broker.process)


def test_the_watchdog_is_fed_while_the_loop_runs(empty: Place) -> None:
    address = str(empty.directory / "notify")
    with listening(address) as ours:
        empty.environ.update({"NOTIFY_SOCKET": address, "WATCHDOG_USEC": "200000"})
        broker = empty.serve()
        try:
            received(ours, "READY=1")
            for _ in range(5):
                assert ours.recv(4096) == b"WATCHDOG=1"
            broker.process.send_signal(signal.SIGSTOP)
            assert is_silent(ours)
            broker.process.send_signal(signal.SIGCONT)
            assert ours.recv(4096) == b"WATCHDOG=1"
        finally:
            stop(broker.process)


def test_a_broker_runs_without_a_listening_systemd(empty: Place) -> None:
    empty.environ["NOTIFY_SOCKET"] = str(empty.directory / "missing")
    broker = empty.serve()
    try:
        ended = broker.end(signal.SIGTERM)
    finally:
        stop(broker.process)
    assert ended.code == 0
    assert "systemd_notify_failed" in ended.err


@pytest.mark.parametrize(
    ("environ", "fed"),
    [
        ({"WATCHDOG_USEC": "1000000"}, True),
        ({"WATCHDOG_USEC": "1000000", "WATCHDOG_PID": "1"}, False),
        ({"WATCHDOG_USEC": "0"}, False),
        ({"WATCHDOG_USEC": "soon"}, False),
        ({}, False),
    ],
)
def test_the_watchdog_is_fed_only_for_this_process(tmp_path: Path, environ: dict[str, str], fed: bool) -> None:
    async def main(ours: socket.socket) -> list[bytes]:
        systemd = Systemd({"NOTIFY_SOCKET": str(tmp_path / "notify"), **environ})
        systemd.ready("serving")
        systemd.close()
        ours.setblocking(False)
        datagrams = []
        try:
            while True:
                datagrams.append(ours.recv(4096))
        except BlockingIOError:
            return datagrams

    with listening(str(tmp_path / "notify")) as ours:
        assert asyncio.run(main(ours)) == [b"READY=1\nSTATUS=serving", *[b"WATCHDOG=1"] * fed]


def test_children_get_no_systemd_variables() -> None:
    assert without_systemd({"NOTIFY_SOCKET": "/x", "WATCHDOG_USEC": "1", "WATCHDOG_PID": "1", "A": "b"}) == {"A": "b"}
