"""Keys on real sockets: which connections the bus admits, as whom, and what happens when the client files change."""

import asyncio
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import msgspec
import pytest
import zmq
from stepwire_broker.bus import authenticator, gate, self_check, sockets
from stepwire_broker.bus.admission import ZapVerdict, proof_of_key
from stepwire_broker.bus.announcement import endpoints_for_workers
from stepwire_broker.bus.endpoints import EndpointRefused
from stepwire_broker.bus.keys import server_key
from stepwire_broker.bus.keys.key_text import KeyPair, new_pair, raw
from stepwire_broker.core.brokers.listeners import Listener, ListenerKind
from stepwire_broker.core.definitions.settings import BusSettings, CurveSettings, NextSettings
from stepwire_broker.last_uses import HOUR_MS, read_uses, uses_file
from stepwire_protocol import topics
from zmq.utils.monitor import recv_monitor_message

from .bench import Bench, run, serving, until

Context = zmq.Context[Any]
LONG_AGO, LATER = "2020-01-01T00:00:00Z", "2999-01-01T00:00:00Z"


class Keys(NamedTuple):
    """A deployment with a server pair and the principals `shop`, `old` (expired) and `gone` (revoked)."""

    directory: Path
    server: KeyPair
    shop: KeyPair
    old: KeyPair
    gone: KeyPair

    @property
    def clients(self) -> Path:
        return self.directory / "clients"

    def put(self, name: str, *lines: str) -> None:
        unfinished = self.clients / f".{name}"
        unfinished.write_text("\n".join([*lines, "handlers=**", "workers=*"]) + "\n")
        unfinished.chmod(0o600)
        unfinished.replace(self.clients / name)


@pytest.fixture
def keys(tmp_path: Path) -> Keys:
    server = server_key.init(tmp_path / "server.key", tmp_path / "clients")
    keys = Keys(tmp_path, server, new_pair(), new_pair(), new_pair())
    keys.put("shop", f"public={keys.shop.public}", f"expires={LATER}")
    keys.put("old", f"public={keys.old.public}", f"expires={LONG_AGO}")
    keys.put("gone", f"public={keys.gone.public}", f"revoked={LONG_AGO}")
    return keys


@pytest.fixture
def settings(keys: Keys) -> BusSettings:
    """Two pairs of endpoints: ipc without keys, tcp with CURVE."""
    return BusSettings(
        steps=(f"ipc://{keys.directory}/steps.sock", "tcp://127.0.0.1:*"),
        results=(f"ipc://{keys.directory}/results.sock", "tcp://127.0.0.1:*"),
        curve=CurveSettings(str(keys.directory / "server.key"), str(keys.clients)),
    )


class Visitor:
    """A worker's SUB, and the events of its handshakes."""

    def __init__(self, bench: Bench, endpoint: str, server: str | None = None, pair: KeyPair | None = None) -> None:
        self.inbox = f"w{id(self)}:0123456789abcdef"
        self.socket = bench._socket(zmq.SUB)
        self._counters = bench.wire.counters
        self._refused_before = self._refused()
        self._events = self.socket.get_monitor_socket(
            zmq.EVENT_HANDSHAKE_SUCCEEDED
            | zmq.EVENT_HANDSHAKE_FAILED_AUTH
            | zmq.EVENT_HANDSHAKE_FAILED_NO_DETAIL
            | zmq.EVENT_HANDSHAKE_FAILED_PROTOCOL
        )
        if pair is not None and server is not None:
            self.socket.curve_serverkey = server.encode()
            self.socket.curve_publickey, self.socket.curve_secretkey = (key.encode() for key in pair)
        self.socket.subscribe(topics.to_worker(self.inbox))
        self.socket.connect(endpoint)

    async def is_admitted(self) -> bool:
        """The answer to the next handshake. libzmq tells the client of a refused key only after HANDSHAKE_IVL."""
        await until(lambda: bool(self._events.poll(0)) or self._refused() > self._refused_before)
        self._refused_before = self._refused()
        if not self._events.poll(0):
            return False
        return bool(recv_monitor_message(self._events)["event"] == zmq.EVENT_HANDSHAKE_SUCCEEDED)

    def _refused(self) -> int:
        return sum(self._counters.connections_refused.values())

    async def admitted(self) -> None:
        """Wait for a handshake that succeeds."""
        while not await self.is_admitted():
            pass

    def close(self) -> None:
        self.socket.disable_monitor()
        self.socket.close(0)


def test_only_an_allowed_key_is_admitted_over_tcp(keys: Keys, settings: BusSettings, context: Context) -> None:
    visits: list[tuple[str, str | None, KeyPair | None, str | None]] = [
        ("an allowed key", keys.server.public, keys.shop, None),
        ("no key", None, None, None),
        ("an unknown key", keys.server.public, new_pair(), "unknown_key"),
        ("a wrong server key", new_pair().public, keys.shop, None),
        ("an expired key", keys.server.public, keys.old, "expired_key"),
        ("a revoked key", keys.server.public, keys.gone, "revoked_key"),
        ("a public key without its secret", keys.server.public, KeyPair(keys.shop.public, new_pair().secret), None),
    ]

    def subscribed(bench: Bench) -> list[str]:
        return [who for what, who in bench.log.peers if what == "subscribed"]

    async def story() -> None:
        async with serving(settings, context) as bench:
            for about, server, pair, code in visits:
                allowed = about == "an allowed key"
                visitor = Visitor(bench, bench.wire.bound[1].steps, server, pair)
                assert await visitor.is_admitted() is allowed, about
                if allowed:  # its subscription arrives after its handshake
                    await until(lambda: subscribed(bench) != [])
                if code is not None:
                    assert bench.wire.counters.connections_refused[code] > 0, about
                visitor.close()
            assert len(subscribed(bench)) == 1

    run(story())


def test_a_broker_whose_authenticator_is_not_asked_does_not_start(
    settings: BusSettings, context: Context, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Then CURVE encrypts, and admits every key."""
    protect = sockets.protect

    def unenforced(socket: Any, endpoint: Any, server: Any) -> None:
        protect(socket, endpoint, server)
        socket.setsockopt(zmq.ZAP_ENFORCE_DOMAIN, 0)

    async def story() -> None:
        monkeypatch.setattr(sockets, "protect", unenforced)
        monkeypatch.setattr(authenticator, "ZAP_ENDPOINT", "inproc://elsewhere")
        with pytest.raises(EndpointRefused, match="failed: a connection with an unknown key was admitted"):
            await Bench(settings, context).wire.open(b"{}")

    run(story())


def test_an_authenticator_that_admits_every_key_does_not_start(
    settings: BusSettings, context: Context, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def story() -> None:
        monkeypatch.setattr(authenticator, "decide", lambda admission, request: ZapVerdict("shop"))
        with pytest.raises(EndpointRefused, match="failed: a connection with an unknown key was admitted"):
            await Bench(settings, context).wire.open(b"{}")

    run(story())


def test_a_door_without_curve_fails_the_check(settings: BusSettings, context: Context) -> None:
    async def story() -> None:
        plain = msgspec.structs.replace(settings, steps="tcp://127.0.0.1:*", results="tcp://127.0.0.1:*")
        plain = msgspec.structs.replace(plain, curve=CurveSettings())
        async with serving(plain, context) as bench:
            address = bench.wire.endpoints["steps"]
            check = asyncio.to_thread(
                self_check.fault_of, context, address, new_pair().public, new_pair(), lambda: False
            )
            assert await check == "a connection without a key was admitted"

    run(story())


def test_the_last_use_of_each_key_is_kept_to_the_hour_and_over_restarts(
    keys: Keys, settings: BusSettings, context: Context, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Only connections that have proved the key count, as long as they are open; a message writes nothing."""
    second = new_pair()
    keys.put("shop", f"public={second.public}", f"public={keys.shop.public}")
    keys.put("idle", f"public={new_pair().public}")
    of_shop, of_second = (proof_of_key(raw(pair.public) or b"") for pair in (keys.shop, second))
    hour = [100 * HOUR_MS]
    monkeypatch.setattr(gate.time, "time_ns", lambda: hour[0] * 1_000_000)
    file = uses_file(keys.clients)

    async def story(pair: KeyPair) -> None:
        async with serving(settings, context) as bench:
            visitor = Visitor(bench, bench.wire.bound[1].steps, keys.server.public, pair)
            refused = Visitor(bench, bench.wire.bound[1].steps, keys.server.public, new_pair())
            await until(lambda: ("subscribed", visitor.inbox) in bench.log.peers)
            for _ in range(2):
                bench.wire._gate._note_uses(bench.wire._connections.proofs)
                hour[0] += HOUR_MS
            visitor.close()
            refused.close()

    run(story(keys.shop))
    assert read_uses(file) == {of_shop: 101 * HOUR_MS}
    assert file.stat().st_mode & 0o777 == 0o600
    run(story(second))
    assert read_uses(file) == {of_shop: 101 * HOUR_MS, of_second: 103 * HOUR_MS}


def test_ipc_beside_curve_needs_no_key_and_refuses_curve(keys: Keys, settings: BusSettings, context: Context) -> None:
    async def story() -> None:
        async with serving(settings, context) as bench:
            assert bench.wire.endpoints["steps"].startswith("ipc://")
            plain = Visitor(bench, bench.wire.endpoints["steps"])
            assert await plain.is_admitted()
            await until(lambda: ("subscribed", plain.inbox) in bench.log.peers)
            with_keys = Visitor(bench, bench.wire.endpoints["steps"], keys.server.public, keys.shop)
            assert not await with_keys.is_admitted()
            plain.close(), with_keys.close()

    run(story())


def test_a_subscription_names_the_kind_of_listener_that_it_came_to(
    keys: Keys, settings: BusSettings, context: Context
) -> None:
    """Other brokers are named to the worker with listeners of this kind."""

    async def story() -> None:
        kinds: dict[str, ListenerKind] = {}
        on_subscribed = lambda worker, principal, kind: kinds.__setitem__(worker, kind)  # noqa: E731
        async with serving(settings, context, on_subscribed=on_subscribed) as bench:
            plain = Visitor(bench, bench.wire.bound[0].steps)
            with_keys = Visitor(bench, bench.wire.bound[1].steps, keys.server.public, keys.shop)
            await until(lambda: len(kinds) == 2)
            assert kinds == {plain.inbox: ListenerKind.IPC, with_keys.inbox: ListenerKind.CURVE}
            ipc, tcp = bench.wire.bound
            announced = endpoints_for_workers(bench.wire.bound, bench.wire.keys, None)
            assert announced.listeners == (
                Listener(ListenerKind.IPC, ipc.steps, ipc.results, is_local=True),
                Listener(ListenerKind.CURVE, tcp.steps, tcp.results, keys.server.public, is_local=True),
            )
            advertised = endpoints_for_workers(bench.wire.bound, bench.wire.keys, "shop.example").listeners
            assert [each.is_local for each in advertised] == [True, False], "other hosts reach an advertised address"
            plain.close(), with_keys.close()

    run(story())


def test_an_ipc_path_that_is_bound_again_still_needs_no_key(settings: BusSettings, context: Context) -> None:
    """The socket was last bound with CURVE, and libzmq applies the options of that moment."""

    async def story() -> None:
        async with serving(settings, context) as bench:
            path = bench.wire.endpoints["steps"].removeprefix("ipc://")
            os.unlink(path)
            bench.wire.check_paths()
            visitor = Visitor(bench, f"ipc://{path}")
            assert await visitor.is_admitted()
            visitor.close()

    run(story())


def test_a_key_that_is_allowed_later_is_admitted_without_a_restart(
    keys: Keys, settings: BusSettings, context: Context
) -> None:
    async def story() -> None:
        async with serving(settings, context) as bench:
            pair = new_pair()
            visitor = Visitor(bench, bench.wire.bound[1].steps, keys.server.public, pair)
            assert not await visitor.is_admitted()
            keys.put("late", f"public={pair.public}")
            await visitor.admitted()  # the broker checks the directory by itself
            assert [grant.principal for grant in bench.log.grants[-1][0]] == ["process", "owner", "late", "shop"]
            visitor.close()

    run(story())


def test_an_expired_a_revoked_and_a_removed_key_are_refused_from_then_on(
    keys: Keys, settings: BusSettings, context: Context
) -> None:
    def revoke() -> None:
        keys.put("shop", f"public={keys.shop.public}", f"revoked={LONG_AGO}", "dead=yes")

    def expire() -> None:
        keys.put("shop", f"public={keys.shop.public}", f"expires={LONG_AGO}")

    def remove() -> None:
        (keys.clients / "shop").unlink()

    steps: list[tuple[Callable[[], None], str, frozenset[str]]] = [
        (revoke, "revoked_key", frozenset({"shop"})),
        (expire, "expired_key", frozenset()),
        (remove, "unknown_key", frozenset()),
    ]

    async def story() -> None:
        async with serving(settings, context) as bench:
            for end_access, code, dead in steps:
                keys.put("shop", f"public={keys.shop.public}")
                assert await bench.wire.reload_clients() == ()
                visitor = Visitor(bench, bench.wire.bound[1].steps, keys.server.public, keys.shop)
                assert await visitor.is_admitted(), code
                visitor.close()
                end_access()
                await bench.wire.reload_clients()
                grants, declared_dead = bench.log.grants[-1]
                assert ([grant.principal for grant in grants], declared_dead) == (["process", "owner"], dead), code
                visitor = Visitor(bench, bench.wire.bound[1].steps, keys.server.public, keys.shop)
                assert not await visitor.is_admitted(), code
                assert bench.wire.counters.connections_refused[code] > 0
                visitor.close()

    run(story())


def test_the_open_connections_of_a_revoked_principal_end_and_others_stay(
    keys: Keys, settings: BusSettings, context: Context
) -> None:
    other = new_pair()

    async def story() -> None:
        keys.put("other", f"public={other.public}")
        async with serving(settings, context) as bench:
            endpoint = bench.wire.bound[1].steps
            visitors = [Visitor(bench, endpoint, keys.server.public, pair) for pair in (keys.shop, other)]
            for visitor in visitors:
                await until(lambda name=visitor.inbox: ("subscribed", name) in bench.log.peers)  # type: ignore[misc]
            keys.put("shop", f"public={keys.shop.public}", f"revoked={LONG_AGO}")
            await bench.wire.reload_clients()
            await until(lambda: ("vanished", visitors[0].inbox) in bench.log.peers)
            await until(lambda: bench.wire.counters.connections_refused["revoked_key"] > 0)
            assert bench.wire.counters.disconnected["revoked"] == 1
            assert ("vanished", visitors[1].inbox) not in bench.log.peers
            keys.put("shop", f"public={keys.shop.public}")
            await bench.wire.reload_clients()
            # libzmq subscribes again on a new connection when the program uses the socket.
            await until(
                lambda: (
                    visitors[0].socket.poll(0) == 0 and bench.log.peers.count(("subscribed", visitors[0].inbox)) == 2
                )
            )
            for visitor in visitors:
                visitor.close()

    run(story())


REVOKED = {"revoked": (f"revoked={LONG_AGO}",), "removed": ()}


@pytest.mark.parametrize("withdrawn", ["revoked", "removed"])
def test_unread_frames_of_a_withdrawn_key_never_count_also_if_it_is_allowed_again(
    keys: Keys, settings: BusSettings, context: Context, withdrawn: str
) -> None:
    """Unread frames wait inside libzmq while the broker is busy. Frames of the other key count all the time."""
    second = new_pair()
    both = (f"public={keys.shop.public}", f"public={second.public}")
    senders: dict[bytes, str] = {}

    def publisher(bench: Bench, pair: KeyPair) -> zmq.Socket[bytes]:
        socket = bench._socket(zmq.PUB)
        socket.curve_serverkey = keys.server.public.encode()
        socket.curve_publickey, socket.curve_secretkey = (key.encode() for key in pair)
        socket.connect(bench.wire.bound[1].results)
        return socket

    async def until_heard(socket: zmq.Socket[bytes], body: bytes) -> None:
        def has_arrived() -> bool:
            socket.send(topics.WORKERS + body)
            return senders.get(body) == "shop"

        await until(has_arrived)

    async def story() -> None:
        def on_message(topic: bytes, body: bytes, principal: str) -> None:
            senders[body] = principal

        keys.put("shop", *both)
        async with serving(settings, context, on_message=on_message) as bench:
            first, other = publisher(bench, keys.shop), publisher(bench, second)
            await until_heard(first, b"at first")
            await until_heard(other, b"of the other")
            bench.wire._results.stop()
            first.send(topics.WORKERS + b"unread")
            await until(lambda: bench.wire._sockets.sub.poll(0) != 0)
            keys.put("shop", *(both if withdrawn == "revoked" else both[1:]), *REVOKED[withdrawn])
            await bench.wire.reload_clients()
            keys.put("shop", *both)
            await bench.wire.reload_clients()
            bench.wire._results.start()
            await until(lambda: b"unread" in senders)
            assert senders[b"unread"].startswith("shop#"), "a name that has no grant"
            assert senders[b"unread"] not in {grant.principal for grant in bench.wire._gate.grants}
            await until_heard(first, b"on a new connection")
            await until_heard(other, b"of the other again")

    run(story())


def test_a_finished_rotation_ends_connections_with_the_old_key(
    keys: Keys, settings: BusSettings, context: Context
) -> None:
    async def story() -> None:
        async with serving(settings, context) as bench:
            fresh = new_pair()
            visitor = Visitor(bench, bench.wire.bound[1].steps, keys.server.public, keys.shop)
            await until(lambda: ("subscribed", visitor.inbox) in bench.log.peers)
            keys.put("shop", f"public={fresh.public}", f"public={keys.shop.public}")
            await bench.wire.reload_clients()
            keys.put("shop", f"public={fresh.public}")
            await bench.wire.reload_clients()
            await until(lambda: ("vanished", visitor.inbox) in bench.log.peers)
            assert bench.wire.counters.disconnected["revoked"] == 1, "adding a key ends no connection"
            visitor.close()

    run(story())


@pytest.mark.skipif(os.geteuid() != 0, reason="needs another user")
def test_another_user_of_this_host_is_admitted_only_with_a_client_file(
    keys: Keys, settings: BusSettings, context: Context
) -> None:
    keys.directory.chmod(0o711)
    for parent in keys.directory.parents[:3]:
        parent.chmod(parent.stat().st_mode | 0o011)
    settings = msgspec.structs.replace(settings, ipc_mode="0660")

    async def is_admitted(endpoint: str) -> bool:
        command = [sys.executable, "-c", _OTHER_USER, endpoint]
        process = await asyncio.to_thread(subprocess.run, command, capture_output=True, text=True)
        assert process.returncode == 0, process.stderr
        return process.stdout.strip() == "admitted"

    async def story() -> None:
        async with serving(settings, context) as bench:
            endpoint = bench.wire.endpoints["steps"]
            assert os.stat(endpoint.removeprefix("ipc://")).st_mode & 0o777 == 0o660
            assert not await is_admitted(endpoint)
            assert bench.wire.counters.connections_refused["unknown_user"] > 0
            keys.put("batch", "unix=12345")
            await bench.wire.reload_clients()
            assert await is_admitted(endpoint)

    run(story())


_OTHER_USER = """
import os, sys, zmq
from zmq.utils.monitor import recv_monitor_message
os.setgroups([])
os.setuid(12345)  # the group stays the broker's, as `bus.ipc_mode: "0660"` requires
socket = zmq.Context().socket(zmq.SUB)
events = socket.get_monitor_socket(zmq.EVENT_HANDSHAKE_SUCCEEDED | zmq.EVENT_HANDSHAKE_FAILED_NO_DETAIL)
socket.connect(sys.argv[1])
assert events.poll(60_000), "no answer"
print("admitted" if recv_monitor_message(events)["event"] == zmq.EVENT_HANDSHAKE_SUCCEEDED else "refused", flush=True)
os._exit(0)
"""


@pytest.mark.parametrize(
    ("steps", "results", "sentence"),
    [
        (("ipc://a", "tcp://127.0.0.1:1"), "ipc://b", "bus.steps has 2 endpoints and bus.results 1"),
        (("ipc://a", "ipc://a"), ("ipc://b", "ipc://c"), "bus.steps has 'ipc://a' twice"),
        (("ipc://a", "ipc://b"), ("ipc://b", "ipc://c"), "bus.steps and bus.results are both 'ipc://b'"),
        ((), (), "bus.steps has 0 endpoints: from 1 to 8 are allowed"),
    ],
)
def test_lists_of_endpoints_must_be_pairs(steps: Any, results: Any, sentence: str) -> None:
    with pytest.raises(EndpointRefused) as error:
        sockets.read_endpoints(BusSettings(steps=steps, results=results))
    assert sentence in str(error.value)


def test_the_network_needs_keys_or_an_explicit_permission(tmp_path: Path) -> None:
    everywhere = BusSettings(steps="tcp://0.0.0.0:7411", results="tcp://0.0.0.0:7412")
    with pytest.raises(EndpointRefused, match="stepwire keys init"):
        sockets.read_endpoints(everywhere)
    allowed = msgspec.structs.replace(everywhere, allow_insecure=True)
    assert sockets.read_endpoints(allowed)[0][0].is_open
    with_keys = msgspec.structs.replace(everywhere, curve=CurveSettings("server.key"))
    assert not sockets.read_endpoints(with_keys, is_strict=True)[0][0].is_open


def test_strict_security_refuses_tcp_without_keys_also_on_the_loopback() -> None:
    loopback = BusSettings(steps="tcp://127.0.0.1:7411", results="tcp://127.0.0.1:7412", allow_insecure=True)
    assert sockets.read_endpoints(loopback)[0][0].is_open
    with pytest.raises(EndpointRefused, match=r"security.strict refuses tcp without keys"):
        sockets.read_endpoints(loopback, is_strict=True)


# -- rotation of the brokers' own key ---------------------------------------------------------------------------------


@pytest.fixture
def with_next(settings: BusSettings) -> BusSettings:
    return msgspec.structs.replace(settings, next=NextSettings("tcp://127.0.0.1:*", "tcp://127.0.0.1:*"))


def test_during_a_rotation_both_server_keys_are_served_and_afterwards_only_the_next_one(
    keys: Keys, with_next: BusSettings, context: Context
) -> None:
    secret_file = keys.directory / "server.key"

    async def story() -> None:
        async with serving(with_next, context) as bench:
            wire = bench.wire

            async def admits(endpoint: str, server: str) -> bool:
                visitor = Visitor(bench, endpoint, server, keys.shop)
                try:
                    return await visitor.is_admitted()
                finally:
                    visitor.close()

            assert wire.keys is not None
            assert wire.keys.next_bound is not None
            usual, upcoming = wire.bound[1].steps, wire.keys.next_bound[0]
            assert await admits(upcoming, keys.server.public), "without a rotation bus.next serves the current key"
            after = server_key.begin_rotation(secret_file).next
            assert after is not None
            await wire.reload_clients()
            assert [await admits(usual, keys.server.public), await admits(upcoming, after.public)] == [True, True]
            assert [await admits(usual, after.public), await admits(upcoming, keys.server.public)] == [False, False]
            server_key.finish_rotation(secret_file)
            await wire.reload_clients()
            assert [await admits(usual, after.public), await admits(upcoming, after.public)] == [True, True]
            assert not await admits(usual, keys.server.public)
            assert wire.bound[1].steps == usual, "the addresses stay"

    run(story())


def test_a_new_key_is_announced_before_it_is_served(keys: Keys, with_next: BusSettings, context: Context) -> None:
    """Their connections end when the key is replaced, and they need the new one to connect again."""
    secret_file = keys.directory / "server.key"
    told: list[str] = []

    async def story() -> None:
        async with serving(with_next, context) as bench:
            visitor = Visitor(bench, bench.wire.bound[1].steps, keys.server.public, keys.shop)
            await visitor.admitted()
            await until(lambda: bench.wire.counters.connections["steps"] == 1)
            server_key.begin_rotation(secret_file)
            assert bench.wire.keys is not None
            bench.wire.keys.on_changed = lambda before, after: told.append(
                f"{after.current == before.current}, {bench.wire.counters.connections['steps']} connections"
            )
            await bench.wire.reload_clients()
            server_key.finish_rotation(secret_file)
            await bench.wire.reload_clients()
            assert told == ["True, 1 connections", "False, 1 connections"]
            await until(lambda: bench.wire.counters.refused["wrong_server_key"] > 0)
            visitor.close()

    run(story())


def test_a_key_that_cannot_be_read_leaves_the_served_keys_as_they_are(
    keys: Keys, with_next: BusSettings, context: Context
) -> None:
    async def story() -> None:
        async with serving(with_next, context) as bench:
            (keys.directory / "server.key").write_text("secret=short\n")
            await bench.wire.reload_clients()
            visitor = Visitor(bench, bench.wire.bound[1].steps, keys.server.public, keys.shop)
            assert await visitor.is_admitted()
            visitor.close()

    run(story())


@pytest.mark.parametrize(
    ("steps", "results", "sentence"),
    [
        ("tcp://127.0.0.1:1", None, "bus.next.results is not set"),
        (None, "tcp://127.0.0.1:1", "bus.next.steps is not set"),
        ("ipc://a", "tcp://127.0.0.1:1", "bus.next.steps is 'ipc://a': only tcp endpoints have keys"),
        ("tcp://127.0.0.1:7411", "tcp://127.0.0.1:1", "bus.steps and bus.next.steps are both"),
        ("tcp://nowhere", "tcp://127.0.0.1:1", "bus.next.steps is 'tcp://nowhere': it has no port"),
    ],
)
def test_the_endpoints_of_the_next_key_are_checked(steps: str | None, results: str | None, sentence: str) -> None:
    bus = BusSettings(steps="tcp://127.0.0.1:7411", results="tcp://127.0.0.1:7412", curve=CurveSettings("a", "b"))
    with pytest.raises(EndpointRefused) as error:
        sockets.read_endpoints(msgspec.structs.replace(bus, next=NextSettings(steps, results)))
    assert sentence in str(error.value)


def test_endpoints_for_a_next_key_need_a_key() -> None:
    bus = BusSettings(next=NextSettings("tcp://127.0.0.1:1", "tcp://127.0.0.1:2"))
    with pytest.raises(EndpointRefused) as error:
        sockets.read_endpoints(bus)
    assert "bus.next is set without bus.curve.secret_file" in str(error.value)
