"""Run a step by sending it as JSON to an endpoint, with one POST. The answer is the step's output.

A call over a network can end in several ways. For each, the executor must know whether the effect may have happened:

    answer 2xx                        completed; the body, JSON or empty, is the output
    429, 502, 503, 504                retried, not before Retry-After
    any other answer                  failed for good: the endpoint received the step and refused it
    no connection                     nothing was done: the step waits, and no attempt is spent
    no answer, or half of one         outcome unknown: an at_most_once step is held, any other step is retried
"""

import asyncio
import contextlib
import http.client
import json
import socket
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, TypeVar
from urllib.parse import urlsplit

from stepwire_broker.executors.contract import (
    BaseExecutor,
    ExecutionResult,
    NoCapacity,
    StepReady,
    completed,
    failed,
    held,
    retry,
)
from stepwire_protocol import codec

T = TypeVar("T")

NOT_NOW = frozenset({429, 502, 503, 504})
BODY_BYTES_MAX = 4 * 1024 * 1024


class HttpExecutor(BaseExecutor):
    """An executor whose arguments are the options under `executors.options.http`."""

    def __init__(
        self,
        url: str,
        max_concurrent: int = 8,
        headers: dict[str, str] | None = None,
        handlers: Sequence[str] = ("**",),
        connect_s: float = 5.0,
    ) -> None:
        super().__init__("http", max_concurrent)
        parts = urlsplit(url)
        if parts.scheme not in ("http", "https") or not parts.hostname:
            raise ValueError(f"url is {url!r}: it needs a form like https://example.com/steps")
        self.handlers = tuple(handlers)
        self._secure = parts.scheme == "https"
        self._host, self._port = parts.hostname, parts.port
        self._path = (parts.path or "/") + (f"?{parts.query}" if parts.query else "")
        self._headers = dict(headers or {})
        self._connect_s = connect_s
        self._threads = ThreadPoolExecutor(max_concurrent, "http")  # not the loop's: those are the broker's

    async def stop(self) -> None:
        self._threads.shutdown(wait=False, cancel_futures=True)

    async def _in_thread(self, function: Callable[..., T], *arguments: Any) -> T:
        """Call a blocking function in a thread, because the broker's loop must never block."""
        return await asyncio.get_running_loop().run_in_executor(self._threads, function, *arguments)

    async def run(self, step: StepReady) -> ExecutionResult:
        body = codec.encode(await step.request())
        kind = http.client.HTTPSConnection if self._secure else http.client.HTTPConnection
        connection = kind(self._host, self._port, timeout=self._connect_s)
        try:
            await self._in_thread(connection.connect)
        except OSError as error:
            raise NoCapacity(f"{self._host}: {error}") from error
        sock = connection.sock
        sock.settimeout(None if step.timeout_ms is None else step.timeout_ms / 1000)
        try:
            return await self._in_thread(self._call, connection, step, body)
        finally:
            # Needed also when the run is cancelled: the shutdown ends the thread's read and informs the endpoint.
            with contextlib.suppress(OSError):
                sock.shutdown(socket.SHUT_RDWR)
            connection.close()

    def _call(self, connection: http.client.HTTPConnection, step: StepReady, body: bytes) -> ExecutionResult:
        headers = {
            **self._headers,
            "Content-Type": "application/json",
            "Idempotency-Key": step.idempotency_key,  # the same for each attempt, so an endpoint can refuse repeats
            "Stepwire-Step": step.path,
            "Stepwire-Attempt": str(step.attempt),
        }
        try:
            connection.request("POST", self._path, body, headers)
            answer = connection.getresponse()
            content = answer.read(BODY_BYTES_MAX + 1)
        except (OSError, http.client.HTTPException) as error:
            return held(f"the step was sent to {self._host}, but no answer arrived: {error!r}")
        if len(content) > BODY_BYTES_MAX:
            return held(f"the answer of {self._host} exceeds {BODY_BYTES_MAX} bytes")
        return _result(answer.status, answer.getheader("Retry-After"), content)


def _result(status: int, after: str | None, content: bytes) -> ExecutionResult:
    if 200 <= status < 300:
        try:
            output: Any = json.loads(content) if content else None
        except ValueError:
            return held(f"the endpoint answered {status}, and the body is not JSON")
        return completed(output)
    text = f"the endpoint answered {status}: {content[:500].decode(errors='replace')}"
    if status in NOT_NOW:
        after_ms = int(after) * 1000 if after and after.isdigit() else None
        return retry(text, code=f"http_{status}", category="unavailable", retry_after_ms=after_ms)
    return failed(text, code=f"http_{status}")
