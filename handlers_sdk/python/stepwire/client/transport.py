"""One call of the HTTP API: the request, its repetitions while the broker does not answer, and its exception."""

import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from typing import Any, Final, NamedTuple
from urllib.parse import quote, urlencode

import msgspec
from msgspec import Struct

from stepwire.errors import (
    ClientError,
    Denied,
    NotFound,
    Overloaded,
    StepwireError,
    Unreachable,
    WrongState,
)

from .addresses import BrokerAddress, addresses_of
from .connection import BadAnswer, Connection, HttpAnswer, Incomplete
from .destinations import check_transport
from .outages import FailedTry, Outages, Patience, failed_try_of
from .tls_files import NO_FILES, TlsFiles

TIMEOUT_S: Final = 30.0
UNAUTHORIZED: Final = 401
LONG_POLL_S: Final = 20.0  # the time of one request; a longer wait sends several requests

_ERROR_OF: Final[dict[int, type[ClientError]]] = {
    401: Denied,
    403: Denied,
    404: NotFound,
    409: WrongState,
    429: Overloaded,
    503: Overloaded,
}
_encode: Final = msgspec.json.Encoder().encode


class NotConnected(StepwireError):
    """No connection was made, so nothing was sent. The cause is an OSError."""


class IdleLost(StepwireError):
    """A connection that had been idle was closed during the request, most likely before it. The cause is an OSError."""


class Request(NamedTuple):
    """One call. `is_safe`: its repetition has no further effect. `is_poll`: the broker may answer later, at most after
    `wait_s`, and not after `until_s`."""

    method: str
    path: str
    data: bytes | None = None
    is_safe: bool = True
    content_type: str = "application/json"
    is_poll: bool = False
    wait_s: float = LONG_POLL_S
    until_s: float | None = None


class Transport:
    """Sends requests to one broker over one connection, one at a time. With several addresses, the client stays with a
    broker until a try fails there, and passes to the next address for the next try."""

    def __init__(
        self,
        urls: str | Sequence[str],
        find_token: Callable[[], str | None],
        timeout_s: float,
        outages: Outages,
        *,
        is_insecure_allowed: bool = False,
        tls: TlsFiles = NO_FILES,
    ) -> None:
        self._addresses = addresses_of(urls)
        self._address = self._addresses[0]
        self._tls = tls.context() if any(address.is_tls for address in self._addresses) else None
        self._is_insecure_allowed = is_insecure_allowed
        self._find_token = find_token
        self._token = self._sendable_token()
        self._timeout_s = timeout_s
        self._lock = threading.Lock()
        self._connection: Connection | None = None
        self._outages = outages

    def close(self) -> None:
        with self._lock:
            self._disconnect()

    def get(self, path: str, query: Mapping[str, Any] | None = None) -> dict[str, Any]:
        """Get the document at this path. Members of `query` that are None are omitted."""
        return self._call(Request("GET", with_query(path, query or {})))

    def post(self, path: str, body: Any, *, is_safe: bool, content_type: str = "application/json") -> dict[str, Any]:
        """Post a document, or bytes unchanged. `is_safe`: a repeated call has no further effect."""
        data = body if body is None or isinstance(body, bytes) else _encode(body)
        return self._call(Request("POST", path, data, is_safe, content_type))

    def poll(
        self, method: str, path: str, until_s: float | None, body: Any = None, wait_s: float = LONG_POLL_S
    ) -> dict[str, Any]:
        """A safe call that the broker may answer later, at most after `wait_s`, and not after `until_s`."""
        data = None if body is None else _encode(body)
        return self._call(Request(method, path, data, is_poll=True, wait_s=wait_s, until_s=until_s))

    def get_once(self, path: str) -> HttpAnswer:
        """Send one GET request, to the first of the addresses where a connection can be made. Returns the answer, with
        any status. Raises OSError if there is no answer."""
        for left in reversed(range(len(self._addresses))):
            address = self._address
            try:
                try:
                    return self._send(Request("GET", path))
                except IdleLost:
                    return self._send(Request("GET", path))
            except NotConnected as error:
                self._leave(address)
                if not left:
                    raise _cause(error) from None
        raise AssertionError("a client has at least one address")

    @contextmanager
    def follow(self, path: str, last_event_id: str | None = None) -> Iterator[Iterator[bytes]]:
        """The lines of an event stream on its own connection, as they arrive. Raises OSError or ClientError."""
        headers = self._headers("text/event-stream")
        if last_event_id:
            headers["Last-Event-ID"] = last_event_id
        with closing(self._connect()) as connection:
            status, lines = connection.follow("GET", connection.prefix + path, headers)
            if status >= 400:
                raise error_of(status, b"".join(lines))
            yield lines

    def patience(self) -> Patience:
        """The waiting of one call that repeats itself."""
        return Patience(self._outages, tries=len(self._addresses))

    def leave(self) -> None:
        """Use the next address, because a try at this one has failed."""
        self._leave(self._address)

    def unreachable(self, error: Exception) -> Unreachable:
        reason = (error.strerror if isinstance(error, OSError) else None) or str(error) or type(error).__name__
        return Unreachable(
            f"no answer from {', '.join(each.url for each in self._addresses)}: {reason[:1].lower()}{reason[1:]}.",
            code="unreachable",
            hint="Is the broker running (stepwire serve)?",
        )

    def lost(self, error: OSError) -> FailedTry | None:
        """The failed try of a request that was sent, or None if every later try would end with this error too."""
        is_lasting = isinstance(error, ValueError) or (  # of these errors, only a refused certificate is a ValueError
            isinstance(error, BadAnswer) and not isinstance(error, Incomplete)
        )
        is_final = is_lasting and len(self._addresses) == 1
        return None if is_final else FailedTry(self.unreachable(error), may_be_done=True)

    def _call(self, request: Request) -> dict[str, Any]:
        """Send a request, and again after failures that may pass, as long as that cannot repeat an effect."""
        patience = Patience(self._outages, request.until_s, len(self._addresses))
        may_be_done = False
        while True:
            address = self._address
            try:
                outcome = self._try(request)
            except IdleLost:
                may_be_done = True
                continue
            if not isinstance(outcome, FailedTry):
                patience.over()
                break
            may_be_done = may_be_done or outcome.may_be_done
            outcome.error.may_be_done = may_be_done
            if outcome.may_be_done and not request.is_safe:
                raise outcome.error
            self._leave(address)
            patience.pause(outcome)
        if isinstance(outcome, ClientError):
            outcome.may_be_done = may_be_done
            raise outcome
        return outcome

    def _try(self, request: Request) -> dict[str, Any] | ClientError | FailedTry:
        """The document of the answer, the error that the answer reports, or a failed try that may succeed later."""
        try:
            answer = self._send(request)
        except NotConnected as error:
            failed = self.lost(_cause(error))
            return self.unreachable(_cause(error)) if failed is None else failed._replace(may_be_done=False)
        except OSError as error:
            return self.lost(error) or self.unreachable(error)
        if answer.status == UNAUTHORIZED and self._has_new_token():
            return self._try(request)  # a refused request was not performed
        if answer.status >= 400:
            refusal = error_of(answer.status, answer.body, answer.headers.get("retry-after"))
            return failed_try_of(refusal) or refusal
        document: dict[str, Any] = msgspec.json.decode(answer.body) if answer.body else {}
        return document

    def _has_new_token(self) -> bool:
        """True if the token was written or replaced after it was read, as by a broker that has just started."""
        before, self._token = self._token, self._sendable_token()
        return self._token is not None and self._token != before

    def _sendable_token(self) -> str | None:
        """The token, if there is one. Raises ConfigurationError if it must not be sent to this address."""
        token = self._find_token()
        if token is not None:
            for address in self._addresses:
                check_transport(address.url, is_insecure_allowed=self._is_insecure_allowed)
        return token

    def _send(self, request: Request) -> HttpAnswer:
        headers = self._headers("application/json")
        if request.data is not None:
            headers["Content-Type"] = request.content_type
        path = request.path
        if request.is_poll:
            path = f"{path}?wait_ms={self._wait_ms(request)}"
        with self._lock:
            if not request.is_safe:
                self._disconnect()  # if the broker has closed an idle connection, the outcome would be unknown
            was_idle = self._connection is not None
            try:
                return self._on_connection(request, path, headers)
            except TimeoutError:
                raise
            except OSError as error:
                if was_idle:
                    raise IdleLost from error
                raise

    def _on_connection(self, request: Request, path: str, headers: Mapping[str, str]) -> HttpAnswer:
        if self._connection is None:
            try:
                self._connection = self._connect()
            except OSError as error:
                raise NotConnected from error
        try:
            target = self._connection.prefix + path
            answer = self._connection.request(request.method, target, headers, request.data)
        except BaseException:
            self._disconnect()  # the rest of an answer may still arrive, so the connection cannot be used again
            raise
        if not self._connection.is_reusable:
            self._disconnect()
        return answer

    def _wait_ms(self, request: Request) -> int:
        """The time that one request may wait at the broker: well below the timeout of the connection."""
        wait_s = min(request.wait_s, self._timeout_s / 2)
        if request.until_s is not None:
            wait_s = max(0.0, min(wait_s, request.until_s - time.monotonic()))
        return int(wait_s * 1000)

    def _headers(self, accept: str) -> dict[str, str]:
        headers = {"Accept": accept}
        if self._token is not None:
            headers["Authorization"] = f"Bearer {self._token}"
        return headers

    def _connect(self) -> Connection:
        address = self._address
        connection = Connection(
            address.host,
            address.port,
            tls=self._tls if address.is_tls else None,
            timeout_s=self._timeout_s,
            socket_path=address.socket_path,
            prefix=address.prefix,
        )
        self._outages.connected()
        return connection

    def _leave(self, address: BrokerAddress) -> None:
        """Use the address after this one, unless another thread has left this one already."""
        with self._lock:
            if self._address is address and len(self._addresses) > 1:
                self._disconnect()
                number = self._addresses.index(address) + 1
                self._address = self._addresses[number % len(self._addresses)]

    def _disconnect(self) -> None:
        if self._connection is not None:
            self._connection.close()
            self._connection = None


class Calls:
    """A group of calls over one transport."""

    def __init__(self, transport: Transport) -> None:
        self._transport = transport


class _Problem(Struct):
    """The members of application/problem+json that the client uses."""

    title: str = ""
    detail: str = ""
    code: str = ""
    hint: str = ""
    next: dict[str, Any] | None = None
    retry_after_ms: int | None = None


def error_of(status: int, body: bytes, retry_after: str | None = None) -> ClientError:
    """The exception for an answer with a status of 400 or more."""
    try:
        problem = msgspec.json.decode(body, type=_Problem)
    except (msgspec.DecodeError, UnicodeDecodeError):
        problem = _Problem()
    message = problem.detail or problem.title or f"HTTP {status}"
    return _ERROR_OF.get(status, ClientError)(
        message,
        status=status,
        code=problem.code,
        hint=problem.hint,
        next=problem.next,
        retry_after_ms=_milliseconds(retry_after) if problem.retry_after_ms is None else problem.retry_after_ms,
    )


def with_query(path: str, query: Mapping[str, Any]) -> str:
    members = {name: value for name, value in query.items() if value is not None}
    return f"{path}?{urlencode(members)}" if members else path


def in_path(value: str | int) -> str:
    """The value as one segment of a path."""
    return quote(str(value), safe="")


def _cause(error: NotConnected) -> OSError:
    assert isinstance(error.__cause__, OSError)
    return error.__cause__


def _milliseconds(retry_after: str | None) -> int | None:
    """Parse Retry-After in its form as a number of seconds."""
    if retry_after is None or not (retry_after.isascii() and retry_after.isdigit() and len(retry_after) < 6):
        return None
    return int(retry_after) * 1000
