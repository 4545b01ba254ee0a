"""One call of the HTTP API: the request, its retries if they are safe, and the exception for an error."""

import random
import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import closing, contextmanager
from typing import Any, Final
from urllib.parse import quote, urlencode, urlsplit

import msgspec
from msgspec import Struct

from stepwire.errors import ClientError, ConfigurationError, Denied, NotFound, Overloaded, Unreachable, WrongState

from .connection import Connection, HttpAnswer

URL_DEFAULT: Final = "http://127.0.0.1:7410"
TIMEOUT_S: Final = 30.0
TRIES_MAX: Final = 3
BACKOFF_BASE_S: Final = 0.1
BACKOFF_MAX_S: Final = 20.0
LONG_POLL_MS: Final = 20_000  # the time of one request; a longer wait sends several requests
RETRIED: Final = frozenset({429, 503})

_ERROR_OF: Final[dict[int, type[ClientError]]] = {
    401: Denied,
    403: Denied,
    404: NotFound,
    409: WrongState,
    429: Overloaded,
    503: Overloaded,
}
_encode: Final = msgspec.json.Encoder().encode


class Transport:
    """Sends requests to one broker over one connection, one at a time."""

    def __init__(self, url: str, token: str | None, timeout_s: float) -> None:
        address = urlsplit(url)
        if address.scheme not in ("http", "https") or not address.hostname:
            raise ConfigurationError(f"url {url!r}: it needs a form like {URL_DEFAULT}")
        self._host, self._port = address.hostname, address.port
        self._is_tls = address.scheme == "https"
        self._prefix = address.path.rstrip("/")
        self._url = url
        self._token = token
        self._timeout_s = timeout_s
        self._lock = threading.Lock()
        self._connection: Connection | None = None

    def close(self) -> None:
        with self._lock:
            self._disconnect()

    def get(self, path: str, query: Mapping[str, Any] | None = None) -> dict[str, Any]:
        """Get the document at this path. Members of `query` that are None are omitted."""
        return self._call("GET", with_query(path, query or {}), None, is_safe=True)

    def post(self, path: str, body: Any, *, is_safe: bool, content_type: str = "application/json") -> dict[str, Any]:
        """Post a document, or bytes unchanged. `is_safe`: a repeated call has no further effect."""
        data = body if body is None or isinstance(body, bytes) else _encode(body)
        return self._call("POST", path, data, is_safe=is_safe, content_type=content_type)

    def get_once(self, path: str) -> HttpAnswer:
        """Send one GET request. Returns the answer, with any status. Raises OSError if there is no answer."""
        return self._request("GET", path, None, is_safe=True)

    @contextmanager
    def follow(self, path: str, last_event_id: str | None = None) -> Iterator[tuple[int, Iterator[bytes]]]:
        """An event stream on its own connection: the status, and the lines as they arrive. Raises OSError."""
        headers = self._headers("text/event-stream")
        if last_event_id:
            headers["Last-Event-ID"] = last_event_id
        with closing(self._connect()) as connection:
            yield connection.follow("GET", self._prefix + path, headers)

    def long_poll_ms(self, until_s: float | None) -> int:
        """The time that one request may wait at the broker: well below the timeout of the connection."""
        wait_ms = min(LONG_POLL_MS, int(self._timeout_s * 500))
        return wait_ms if until_s is None else max(0, min(wait_ms, int((until_s - time.monotonic()) * 1000)))

    def unreachable(self, error: Exception) -> Unreachable:
        return Unreachable(
            f"no answer from {self._url}: {type(error).__name__}: {error}.",
            code="unreachable",
            hint="Is the broker running (stepwire serve)?",
        )

    def _call(
        self, method: str, path: str, data: bytes | None, *, is_safe: bool, content_type: str = "application/json"
    ) -> dict[str, Any]:
        """Send a request, and retry if that cannot repeat an effect. A request that was refused because of load had no
        effect, so its retry is safe."""
        tries = 0
        while True:
            tries += 1
            wait_s = random.uniform(0, min(BACKOFF_MAX_S, BACKOFF_BASE_S * 2**tries))
            try:
                answer = self._request(method, path, data, is_safe, content_type)
            except OSError as error:
                if tries < TRIES_MAX and is_safe:
                    time.sleep(wait_s)
                    continue
                raise self.unreachable(error) from error
            if answer.status in RETRIED and tries < TRIES_MAX:
                retry_after_s = _seconds(answer.headers.get("retry-after"))
                time.sleep(max(wait_s, min(BACKOFF_MAX_S, retry_after_s)))
                continue
            if answer.status >= 400:
                raise error_of(answer.status, answer.body)
            document: dict[str, Any] = msgspec.json.decode(answer.body) if answer.body else {}
            return document

    def _request(
        self, method: str, path: str, data: bytes | None, is_safe: bool, content_type: str = "application/json"
    ) -> HttpAnswer:
        headers = self._headers("application/json")
        if data is not None:
            headers["Content-Type"] = content_type
        with self._lock:
            if not is_safe:
                self._disconnect()  # if the broker has closed an idle connection, the outcome would be unknown
            if self._connection is None:
                self._connection = self._connect()
            try:
                answer = self._connection.request(method, self._prefix + path, headers, data)
            except BaseException:
                self._disconnect()  # the rest of an answer may still arrive, so the connection cannot be used again
                raise
            if not self._connection.is_reusable:
                self._disconnect()
        return answer

    def _headers(self, accept: str) -> dict[str, str]:
        headers = {"Accept": accept}
        if self._token is not None:
            headers["Authorization"] = f"Bearer {self._token}"
        return headers

    def _connect(self) -> Connection:
        return Connection(self._host, self._port, is_tls=self._is_tls, timeout_s=self._timeout_s)

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


def error_of(status: int, body: bytes) -> ClientError:
    """The exception for an answer with a status of 400 or more."""
    try:
        problem = msgspec.json.decode(body, type=_Problem)
    except (msgspec.DecodeError, UnicodeDecodeError):
        problem = _Problem()
    message = problem.detail or problem.title or f"HTTP {status}"
    return _ERROR_OF.get(status, ClientError)(
        message, status=status, code=problem.code, hint=problem.hint, next=problem.next
    )


def with_query(path: str, query: Mapping[str, Any]) -> str:
    members = {name: value for name, value in query.items() if value is not None}
    return f"{path}?{urlencode(members)}" if members else path


def in_path(value: str | int) -> str:
    """The value as one segment of a path."""
    return quote(str(value), safe="")


def _seconds(text: str | None) -> float:
    """Parse Retry-After in its form as a number of seconds; otherwise 0."""
    return float(text) if text is not None and text.isdigit() and len(text) < 6 else 0.0
