"""The gate of the bus: who may connect, kept up to date with the client files.

The authenticator decides on each connection, and the core on each message. The gate gives both the same principals, and
reports which principals must be disconnected, because a handshake is not repeated on an open connection.
"""

import asyncio
import time
from collections.abc import Awaitable, Callable, Mapping
from pathlib import Path
from typing import Final, NamedTuple

import msgspec
import structlog
import zmq

from stepwire_broker.core.definitions.settings import CurveSettings
from stepwire_broker.core.model.principal import ANONYMOUS, OWNER, Grant, with_built_in
from stepwire_broker.last_uses import LastUses, uses_file

from . import self_check
from .admission import Admission
from .authenticator import Authenticator, AuthenticatorTaken, RefusedConnection
from .endpoints import Endpoint, EndpointRefused
from .keys import server_key
from .keys.client_file import ClientFile
from .keys.clients import Clients, DirectoryReading, admission
from .keys.key_text import KeyFileError, new_pair, raw
from .keys.server_key import BrokerKeys
from .user_id import proof_in

log = structlog.get_logger("stepwire.bus")

WARN_EVERY_S: Final = 60.0
CHECK_S: Final = 2.0  # a revoked principal has lost all access after at most 3 s
REFUSALS_LOGGED_EVERY_S: Final = 10.0
SOURCES_LOGGED_MAX: Final = 1_000

_OPEN: Final = "every host on the network can read all steps and send results: create keys with `stepwire keys init`"


class PrincipalsChanged(NamedTuple):
    """The principals have changed. The connections of `disconnected` must end, because they may prove an old key."""

    grants: tuple[Grant, ...]
    disconnected: frozenset[str]
    declared_dead: frozenset[str]
    principals: Mapping[str, str]  # by User-Id


class PrincipalGate:
    """`open` starts the authenticator, before any socket is bound; `start` begins the regular checks."""

    def __init__(self, curve: CurveSettings, endpoints: tuple[Endpoint, ...]) -> None:
        """Read the brokers' key pair and the client files. Raises EndpointRefused."""
        self._secret_file: Final = None if curve.secret_file is None else Path(curve.secret_file)
        self.keys = _server_keys(self._secret_file)
        self._key_fault = ""
        self._on_keys: Callable[[BrokerKeys], Awaitable[None]] | None = None
        self._clients = Clients(Path(curve.clients_dir) if curve.clients_dir else None)
        self._anonymous = ANONYMOUS if any(endpoint.is_open for endpoint in endpoints) else None
        self._is_on_network = any(endpoint.is_open and not endpoint.is_loopback for endpoint in endpoints)
        self._blocked: frozenset[str] = frozenset()
        self._reading = DirectoryReading()
        self._now_ms = 0
        self._faults: frozenset[str] = frozenset()
        self._logged: dict[tuple[str, str, str], float] = {}  # by reason, address and key
        self._withdrawals: dict[str, int] = {}  # by proof: how often it has lost its access
        self._task: asyncio.Task[None] | None = None
        self._is_reading = asyncio.Lock()
        self._authenticator: Authenticator | None = None
        self._probe: bytes | None = None  # the key with which the broker checks its own door
        self._uses = LastUses(uses_file(Path(curve.clients_dir)) if curve.clients_dir else None)
        self._take(self._clients.read())
        self.principals: Mapping[str, str] = self._admission().principals  # by User-Id: of connections that may be open

    def open(self, context: zmq.Context[zmq.Socket[bytes]]) -> Mapping[str, int]:
        """Start the authenticator. Returns its counters of refused connections, by reason.

        Raises EndpointRefused if this context has an authenticator already.
        """
        try:
            self._authenticator = Authenticator(context, self._admission())
        except AuthenticatorTaken as error:
            raise EndpointRefused(f"another broker uses the same ZeroMQ context: {error}") from None
        return self._authenticator.refused

    async def check_door(self, context: zmq.Context[zmq.Socket[bytes]], address: str) -> None:
        """Connect to the bound address with good and bad keys. Raises EndpointRefused if an answer is wrong."""
        assert self.keys is not None
        assert self._authenticator is not None
        good, refused = new_pair(), self._authenticator.refused
        self._probe = raw(good.public)
        self._apply()
        fault = await asyncio.to_thread(
            self_check.fault_of, context, address, self.keys.current.public, good, lambda: refused["unknown_key"] > 0
        )
        self._probe = None
        self._apply()
        self._authenticator.forget_refusals()
        if fault is not None:
            raise EndpointRefused(f"the check of CURVE failed: {fault}; this libzmq cannot protect the bus")

    def start(
        self,
        on_changed: Callable[[PrincipalsChanged], None],
        proofs: Callable[[], set[str]],
        on_keys: Callable[[BrokerKeys], Awaitable[None]] | None = None,
    ) -> None:
        """`proofs`: the keys and users of the connections that are open now. `on_keys` gets the brokers' keys at each
        check, whether they have changed or not."""
        self._on_keys = on_keys
        self._task = asyncio.get_running_loop().create_task(self._check_regularly(on_changed, proofs))

    def close(self) -> None:
        if self._task is not None:
            self._task.cancel()
        if self._authenticator is not None:
            self._authenticator.close()
            self._authenticator = None

    @property
    def grants(self) -> tuple[Grant, ...]:
        """The grants of all principals that have access."""
        return with_built_in(
            [client.grant for client in self._admitted()], allows_anonymous=self._anonymous is not None
        )

    @property
    def faults(self) -> tuple[str, ...]:
        """The sentences about client files that are invalid now."""
        return self._reading.faults

    def block(self, principals: frozenset[str]) -> None:
        """Refuse new connections of these principals, and of no others, until the next call."""
        if principals != self._blocked:
            self._blocked = principals
            self._apply()

    def wait_for(self, wait_until_known: Callable[[float], None]) -> None:
        """Let each new connection wait until the loop knows it."""
        if self._authenticator is not None:
            self._authenticator.wait_for(wait_until_known)

    def hold_back(self, wait_s: float) -> None:
        """Delay each new connection by at most this time. Any thread may call it."""
        authenticator = self._authenticator
        if authenticator is not None:
            authenticator.hold_back(wait_s)

    async def check(self, on_changed: Callable[[PrincipalsChanged], None]) -> None:
        """Read the client files in a thread, because their disk may be slow, and apply what has changed."""
        async with self._is_reading:
            reading, keys, fault = await asyncio.to_thread(self._read)
            if fault and fault != self._key_fault:
                log.error("server_key_invalid", text=fault)
            self._key_fault = fault
            if keys is not None and self._on_keys is not None:
                self.keys = keys
                await self._on_keys(keys)
            before = {client.name: client for client in self._admitted()}
            self._take(reading)
            after = {client.name: client for client in self._admitted()}
            if before != after:
                self._withdraw_lost()
            self._apply()
            if before != after:
                lost = frozenset(name for name, client in before.items() if _has_lost(client, after.get(name)))
                dead = self._declared_dead(before.keys() - after.keys())
                on_changed(PrincipalsChanged(self.grants, lost, dead, self.principals))
        self._log_refusals()

    async def _check_regularly(
        self, on_changed: Callable[[PrincipalsChanged], None], proofs: Callable[[], set[str]]
    ) -> None:
        warned_s = -WARN_EVERY_S
        while True:
            if self._is_on_network and time.monotonic() - warned_s >= WARN_EVERY_S:
                warned_s = time.monotonic()
                log.warning("bus_is_open", text=_OPEN)
            await asyncio.sleep(CHECK_S)
            await self.check(on_changed)
            self._note_uses(proofs())

    def _note_uses(self, proofs: set[str]) -> None:
        """Note that the keys and users of these open connections are in use, and write what is new."""
        now_ms = time.time_ns() // 1_000_000
        for proof in proofs:
            self._uses.note(proof, now_ms)
        try:
            self._uses.write()
        except OSError as error:
            log.warning("key_uses_unwritten", error=str(error))

    def _read(self) -> tuple[DirectoryReading, BrokerKeys | None, str]:
        """Read the client files and the brokers' keys. Keys that cannot be read change nothing."""
        try:
            keys, fault = None if self._secret_file is None else server_key.read_all(self._secret_file), ""
        except KeyFileError as error:
            keys, fault = None, str(error)
        return self._clients.read(), keys, fault

    def _take(self, reading: DirectoryReading) -> None:
        self._reading = reading
        self._now_ms = time.time_ns() // 1_000_000
        for fault in reading.faults:
            if fault not in self._faults:
                log.error("client_file_invalid", text=fault)
        self._faults = frozenset(reading.faults)

    def _admitted(self) -> list[ClientFile]:
        return [client for client in self._reading.clients if client.refusal(self._now_ms) is None]

    def _withdraw_lost(self) -> None:
        """Give each key and user that has lost its access another User-Id, for the time when it has access again."""
        for user_id in self.principals.keys() - self._admission().principals.keys():
            proof = proof_in(user_id)
            self._withdrawals[proof] = self._withdrawals.get(proof, 0) + 1
        self.principals = self._admission().principals

    def _declared_dead(self, names: set[str]) -> frozenset[str]:
        return frozenset(client.name for client in self._reading.clients if client.name in names and client.is_dead)

    def _apply(self) -> None:
        if self._authenticator is not None:
            self._authenticator.replace(self._admission())

    def _admission(self) -> Admission:
        admitted = admission(self._reading.clients, self._now_ms, anonymous=self._anonymous, blocked=self._blocked)
        admitted = msgspec.structs.replace(admitted, withdrawals=dict(self._withdrawals))
        if self._probe is None:
            return admitted
        return msgspec.structs.replace(admitted, keys={**admitted.keys, self._probe: OWNER})

    def _log_refusals(self) -> None:
        """Log each refused connection, at most once in 10 s for the same key and address."""
        if self._authenticator is None:
            return
        now_s = time.monotonic()
        for refusal in self._authenticator.take_refusals():
            source = (refusal.reason, refusal.address.rpartition(":")[0] or refusal.address, refusal.key)
            if now_s - self._logged.get(source, -REFUSALS_LOGGED_EVERY_S) < REFUSALS_LOGGED_EVERY_S:
                continue
            if len(self._logged) >= SOURCES_LOGGED_MAX:
                self._logged.clear()
            self._logged[source] = now_s
            _log_refusal(refusal)


def _has_lost(before: ClientFile, after: ClientFile | None) -> bool:
    """True if an open connection of the principal may have a right that it has lost, and that only a handshake or a
    subscription checks."""
    if after is None:
        return True
    identities = {*before.public, *before.unix} - {*after.public, *after.unix}
    return bool(identities) or before.grant.workers != after.grant.workers or before.grant.level0 > after.grant.level0


def _server_keys(secret_file: Path | None) -> BrokerKeys | None:
    if secret_file is None:
        return None
    try:
        return server_key.read_all(secret_file)
    except KeyFileError as error:
        raise EndpointRefused(f"bus.curve.secret_file: {error}") from None


def _log_refusal(refusal: RefusedConnection) -> None:
    log.warning(
        "connection_refused",
        code=refusal.reason,
        address=refusal.address,
        key=refusal.key or None,
        principal=refusal.principal or None,
    )
