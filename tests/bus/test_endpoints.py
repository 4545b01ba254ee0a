"""Endpoints: every refusal names the key, the fault and the remedy, before ZeroMQ touches anything."""

import os
import socket
from pathlib import Path

import pytest
from stepwire_broker.bus.endpoints import EndpointRefused, Protection, advertised, read_endpoint

IPV6 = socket.has_ipv6 and Path("/proc/net/if_inet6").exists()


@pytest.mark.parametrize(
    ("written", "address"),
    [
        ("inproc://steps", "inproc://steps"),
        ("ipc:///run/x/steps.sock", "ipc:///run/x/steps.sock"),
        ("ipc://x/steps.sock", f"ipc://{os.getcwd()}/x/steps.sock"),
        ("ipc://.stepwire/../x.sock", f"ipc://{os.getcwd()}/x.sock"),
        ("tcp://127.0.0.1:7411", "tcp://127.0.0.1:7411"),
        (" tcp://127.0.0.1:7411\n", "tcp://127.0.0.1:7411"),
        ("tcp://127.8.8.8:7411", "tcp://127.8.8.8:7411"),
        ("tcp://127.0.0.1:*", "tcp://127.0.0.1:*"),
        ("tcp://127.0.0.1:0", "tcp://127.0.0.1:*"),
        ("tcp://[::1]:7411", "tcp://[::1]:7411"),
        ("tcp://localhost:7411", "tcp://127.0.0.1:7411"),
        ("tcp://lo:7411", "tcp://lo:7411"),
    ],
)
def test_an_endpoint_of_this_host_alone_is_accepted(written: str, address: str) -> None:
    assert read_endpoint("bus.steps", written).address == address


@pytest.mark.parametrize(
    "written",
    ["tcp://*:7411", "tcp://0.0.0.0:7411", "tcp://[::]:7411", "tcp://192.0.2.1:7411", "tcp://[2001:db8::1]:1"],
)
def test_an_endpoint_for_other_hosts_needs_allow_insecure(written: str) -> None:
    with pytest.raises(EndpointRefused, match=r"other hosts can reach it.*allow_insecure: true"):
        read_endpoint("bus.steps", written)
    assert read_endpoint("bus.steps", written, Protection(allow_insecure=True)).transport == "tcp"


@pytest.mark.parametrize(
    ("written", "is_ipv6"),
    [
        ("tcp://*:1", IPV6),
        ("tcp://[::]:1", IPV6),
        ("tcp://0.0.0.0:1", False),
        ("tcp://127.0.0.1:1", False),
        ("tcp://[::1]:1", True),
    ],
)
def test_ipv6_is_on_only_where_the_address_needs_it(written: str, is_ipv6: bool) -> None:
    assert read_endpoint("bus.steps", written, Protection(allow_insecure=True)).is_ipv6 is is_ipv6


FORM = "it needs a form like tcp://127.0.0.1:7411, ipc:///run/stepwire/steps.sock or inproc://steps"


@pytest.mark.parametrize(
    ("written", "message"),
    [
        ("", f"bus.steps is '': {FORM}"),
        ("tcp//:1", f"bus.steps is 'tcp//:1': {FORM}"),
        ("http://x:1", f"bus.steps is 'http://x:1': {FORM}"),
        ("pgm://x:1", f"bus.steps is 'pgm://x:1': {FORM}"),
        ("tcp://", f"bus.steps is 'tcp://': {FORM}"),
        ("ipc://", f"bus.steps is 'ipc://': {FORM}"),
        ("tcp://127.0.0.1", "bus.steps is 'tcp://127.0.0.1': it has no port; write tcp://HOST:PORT"),
        ("tcp://:7411", "bus.steps is 'tcp://:7411': it has no port; write tcp://HOST:PORT"),
        ("tcp://::1:7411", "bus.steps is 'tcp://::1:7411': it has no port; write tcp://HOST:PORT"),
        ("tcp://127.0.0.1:", "'' is no port; write a number from 1 to 65535, or *"),
        ("tcp://127.0.0.1:x", "'x' is no port"),
        ("tcp://127.0.0.1:65536", "'65536' is no port"),
        ("tcp://127.0.0.1:-1", "'-1' is no port"),
        ("tcp://no-such-host.invalid:1", "the host 'no-such-host.invalid' cannot be found"),
        ("ipc://@abstract", "an abstract socket has no permissions"),
        ("ipc:///run/x/", "it needs the path of a socket file"),
        ("ipc://*", "it needs the path of a socket file"),
        ("ipc:///" + "x" * 107, "has 108 bytes; at most 107 are allowed; use a shorter one"),
        ("inproc://" + "x" * 257, "an inproc name has at most 256 bytes"),
    ],
)
def test_a_bad_endpoint_is_refused_with_its_fault(written: str, message: str) -> None:
    with pytest.raises(EndpointRefused) as caught:
        read_endpoint("bus.steps", written)
    assert message in str(caught.value)


def test_a_path_of_exactly_the_limit_is_accepted() -> None:
    assert len(read_endpoint("bus.steps", "ipc:///" + "x" * 106).path or "") == 107


def test_a_relative_path_too_long_in_full_is_kept_as_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    deep = tmp_path / ("d" * 60) / ("d" * 60)
    deep.mkdir(parents=True)
    monkeypatch.chdir(deep)
    assert read_endpoint("bus.steps", "ipc://.stepwire/steps.sock").path == ".stepwire/steps.sock"


@pytest.mark.parametrize(
    ("bound", "host", "expected"),
    [
        ("tcp://0.0.0.0:7411", "broker.example", "tcp://broker.example:7411"),
        ("tcp://[::]:7411", "2001:db8::1", "tcp://[2001:db8::1]:7411"),
        ("tcp://127.0.0.1:7411", "10.0.0.1", "tcp://10.0.0.1:7411"),  # a port that is forwarded
        ("tcp://10.0.0.1:7411", None, "tcp://10.0.0.1:7411"),
        ("tcp://0.0.0.0:7411", None, f"tcp://{socket.gethostname()}:7411"),
        ("tcp://[::]:7411", None, f"tcp://{socket.gethostname()}:7411"),
        ("ipc:///run/steps.sock", "10.0.0.1", "ipc:///run/steps.sock"),
        ("inproc://steps", None, "inproc://steps"),
    ],
)
def test_the_advertised_endpoint_can_be_reached_from_other_hosts(bound: str, host: str | None, expected: str) -> None:
    assert advertised(bound, host) == expected
