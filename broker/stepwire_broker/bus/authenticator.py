"""The authenticator: answers libzmq's question whether a connection is admitted, in a thread of its own.

libzmq asks it at each handshake of tcp and ipc, over inproc (the ZAP protocol, rfc.zeromq.org/spec/27). The thread
reads an immutable `Admission`, which the loop replaces. No request ends it. It admits a connection only after the loop
has heard of it, because a connection that the loop does not know has no budgets.

A refusal is always 300: the refused client tries again, and is admitted without a restart once its key is allowed.
After 400 a client would never try again.
"""

import threading
from collections import deque
from collections.abc import Callable
from typing import Final, NamedTuple

import zmq
from zmq.utils import z85

from stepwire_broker.errors import BrokerError

from .admission import Admission, ZapVerdict, proof_of_key, proof_of_user
from .identity import PROOF

ZAP_ENDPOINT: Final = "inproc://zeromq.zap.01"
VERSION: Final = b"1.0"
ADMITTED: Final = b"200"
REFUSED: Final = b"300"
REFUSALS_KEPT_MAX: Final = 256
ANSWERED_AT_ONCE_MAX: Final = 1_000  # requests for one wait
KNOWN_WITHIN_S: Final = 1.0  # the longest wait for the loop; a handshake may take twice as long

# The ZAP domains of the listeners. The domain, and not the peer, states how a connection proves its identity.
IPC_DOMAIN: Final = b"stepwire.ipc"
CURVE_DOMAIN: Final = b"stepwire.curve"
OPEN_DOMAIN: Final = b"stepwire.open"

REASONS: Final = ("unknown_key", "expired_key", "revoked_key", "unknown_user", "no_key", "blocked", "bad_handshake")


class RefusedConnection(NamedTuple):
    """A refused connection, for the log."""

    reason: str  # one of REASONS
    address: str
    key: str  # public, Z85; empty without CURVE
    principal: str  # the owner of a key that is expired, revoked or blocked


class AuthenticatorTaken(BrokerError):
    """Another authenticator serves this ZeroMQ context."""


class Authenticator:
    """Start it before any socket of the context is bound. `close` ends the thread."""

    def __init__(self, context: zmq.Context[zmq.Socket[bytes]], admission: Admission) -> None:
        """Raises AuthenticatorTaken."""
        self.refused: Final = dict.fromkeys(REASONS, 0)
        self._admission = admission
        self._refusals: deque[RefusedConnection] = deque(maxlen=REFUSALS_KEPT_MAX)
        self._socket = context.socket(zmq.ROUTER)
        self._may_answer = threading.Event()
        self._may_answer.set()
        self._wait_s = 0.0
        self._wait_until_known: Callable[[float], None] = _wait_for_nothing
        self._stop = context.socket(zmq.PAIR)
        self._stopped = context.socket(zmq.PAIR)
        for socket in (self._socket, self._stop, self._stopped):
            socket.linger = 0
        try:
            self._socket.bind(ZAP_ENDPOINT)
        except zmq.ZMQError:
            self._close_sockets()
            raise AuthenticatorTaken(f"{ZAP_ENDPOINT} is bound already") from None
        self._stopped.bind(f"inproc://authenticator-{id(self)}")
        self._stop.connect(f"inproc://authenticator-{id(self)}")
        self._thread = threading.Thread(target=self._serve, name="stepwire-authenticator", daemon=True)
        self._thread.start()

    def replace(self, admission: Admission) -> None:
        """Decide by this admission from now on. Connections that exist stay open."""
        self._admission = admission

    def wait_for(self, wait_until_known: Callable[[float], None]) -> None:
        """From now on, answer only after this call. It waits, for at most the given time in seconds, until the loop
        knows all connections that have been accepted."""
        self._wait_until_known = wait_until_known

    def hold_back(self, wait_s: float) -> None:
        """Let each handshake wait for at most this time. With 0, those that wait go on."""
        self._wait_s = wait_s
        if wait_s > 0:
            self._may_answer.clear()
        else:
            self._may_answer.set()

    def take_refusals(self) -> list[RefusedConnection]:
        """Return the refusals since the last call, at most the latest REFUSALS_KEPT_MAX."""
        taken = []
        while self._refusals:
            taken.append(self._refusals.popleft())
        return taken

    def forget_refusals(self) -> None:
        """Set the counters to zero."""
        self.take_refusals()
        self.refused.update(dict.fromkeys(REASONS, 0))

    def close(self) -> None:
        self._stop.send(b"")
        self._thread.join()
        self._socket.unbind(ZAP_ENDPOINT)  # at once: the next authenticator of this context binds it
        self._close_sockets()

    def _close_sockets(self) -> None:
        for socket in (self._socket, self._stop, self._stopped):
            socket.close(0)

    def _serve(self) -> None:
        poller = zmq.Poller()
        poller.register(self._socket, zmq.POLLIN)
        poller.register(self._stopped, zmq.POLLIN)
        while True:
            ready = dict(poller.poll())
            if self._stopped in ready:
                return
            self._may_answer.wait(self._wait_s)
            requests = self._received()
            self._wait_until_known(KNOWN_WITHIN_S)
            for route, request in requests:
                self._answer(route, request)

    def _received(self) -> list[tuple[list[bytes], list[bytes]]]:
        """The requests that have arrived, each with its route: they share a wait, so that waiting makes no queue."""
        received = []
        for _ in range(ANSWERED_AT_ONCE_MAX):
            try:
                frames = self._socket.recv_multipart(zmq.NOBLOCK)
            except zmq.Again:
                break
            begins = frames.index(b"") + 1 if b"" in frames else len(frames)
            received.append((frames[:begins], frames[begins:]))
        return received

    def _answer(self, route: list[bytes], request: list[bytes]) -> None:
        admission = self._admission
        try:
            verdict = decide(admission, request)
        except Exception:  # an error must refuse this connection, and must not end the thread
            verdict = ZapVerdict(reason="bad_handshake")
        user_id = b"" if verdict.reason else admission.user_id(verdict.principal, verdict.proof).encode()
        if verdict.reason:
            self._note(verdict, request)
        request_id = request[1] if len(request) > 1 else b""
        status = ADMITTED if user_id else REFUSED
        self._socket.send_multipart([*route, VERSION, request_id, status, b"", user_id, _metadata(verdict.proof)])

    def _note(self, verdict: ZapVerdict, request: list[bytes]) -> None:
        self.refused[verdict.reason] += 1
        address = request[3].decode("ascii", "replace") if len(request) > 3 else ""
        key = z85.encode(request[6]).decode() if len(request) > 6 and len(request[6]) == 32 else ""
        self._refusals.append(RefusedConnection(verdict.reason, address, key, verdict.principal))


def _wait_for_nothing(_: float) -> None:
    """Used until `wait_for` is called: no socket is bound before that."""


def _metadata(proof: str) -> bytes:
    """The property that libzmq attaches to each frame of the connection. It is always set, or a peer could set it."""
    value = proof.encode()
    return bytes((len(PROOF),)) + PROOF.encode() + len(value).to_bytes(4, "big") + value


def decide(admission: Admission, request: list[bytes]) -> ZapVerdict:
    """Decide on one ZAP request: version, request id, domain, address, identity, mechanism, credentials."""
    if len(request) < 6 or request[0] != VERSION:
        return ZapVerdict(reason="bad_handshake")
    by_domain = _BY_DOMAIN.get((request[2], request[5]))
    if by_domain is None:
        return ZapVerdict(reason="bad_handshake")
    verdict = by_domain(admission, request)
    return verdict._replace(reason="blocked") if verdict.principal in admission.blocked else verdict


def _of_key(admission: Admission, request: list[bytes]) -> ZapVerdict:
    key = request[6] if len(request) == 7 else b""
    principal = admission.keys.get(key)
    if principal is not None:
        return ZapVerdict(principal, proof=proof_of_key(key))
    return admission.refused_keys.get(key, ZapVerdict(reason="unknown_key"))


def _of_user(admission: Admission, request: list[bytes]) -> ZapVerdict:
    """The kernel supplies the uid of an ipc peer: the address is `localhost:<uid>:<gid>:<pid>`."""
    parts = request[3].split(b":")
    if len(parts) != 4 or not parts[1].isdigit():
        return ZapVerdict(reason="unknown_user")
    uid = int(parts[1])
    principal = admission.uids.get(uid)
    if principal is not None:
        return ZapVerdict(principal, proof=proof_of_user(uid))
    return admission.refused_uids.get(uid, ZapVerdict(reason="unknown_user"))


def _of_anyone(admission: Admission, request: list[bytes]) -> ZapVerdict:
    return ZapVerdict(admission.anonymous) if admission.anonymous is not None else ZapVerdict(reason="no_key")


_BY_DOMAIN: Final[dict[tuple[bytes, bytes], Callable[[Admission, list[bytes]], ZapVerdict]]] = {
    (IPC_DOMAIN, b"NULL"): _of_user,
    (CURVE_DOMAIN, b"CURVE"): _of_key,
    (OPEN_DOMAIN, b"NULL"): _of_anyone,
}
