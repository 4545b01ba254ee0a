"""Calls on workers, executors, and the circuit breakers of handlers."""

from collections.abc import Iterable, Mapping
from typing import Any

from .transport import Calls, in_path


class ExecutorCalls(Calls):
    """List workers, executors and breakers; drain workers, pause executors, and set breakers."""

    def workers(self) -> dict[str, Any]:
        """All workers with a session, and the level-0 handlers."""
        return self._transport.get("/v1/workers")

    def drain_worker(self, worker: str, *, quit: bool = False) -> dict[str, Any]:
        """Send no new steps to this worker. With `quit`, the worker also ends when it holds no step."""
        return self._transport.post(f"/v1/workers/{in_path(worker)}/drain", {"quit": quit}, is_safe=True)

    def executors(self) -> dict[str, Any]:
        """All executors."""
        return self._transport.get("/v1/executors")

    def executor(self, key: str) -> dict[str, Any]:
        """One executor by its key."""
        return self._transport.get(f"/v1/executors/{in_path(key)}")

    def pause_executor(self, key: str) -> dict[str, Any]:
        """Dispatch no new steps to this executor until it is resumed or the broker restarts."""
        return self._transport.post(f"/v1/executors/{in_path(key)}/pause", {}, is_safe=True)

    def resume_executor(self, key: str) -> dict[str, Any]:
        """End a pause."""
        return self._transport.post(f"/v1/executors/{in_path(key)}/resume", {}, is_safe=True)

    def backlog(
        self, handlers: Iterable[str] = (), *, labels: Mapping[str, str] | None = None, slots: int | None = None
    ) -> dict[str, Any]:
        """How much work waits for workers with these handlers and labels, and how many of them it needs.

        `handlers`: names or patterns; without any, all handlers. `slots`: of one worker; by default as many as the
        connected workers have."""
        named = ",".join(handlers) or None
        having = ",".join(f"{key}={value}" for key, value in (labels or {}).items()) or None
        return self._transport.get("/v1/backlog", {"handler_class": named, "labels": having, "slots": slots})

    def breakers(self) -> dict[str, Any]:
        """The breakers and retry budgets of handlers that failed recently."""
        return self._transport.get("/v1/breakers")

    def set_breaker(self, handler_class: str, state: str, *, reason: str = "") -> dict[str, Any]:
        """`open`: dispatch no step of this handler; `closed`: dispatch all; `auto`: the breaker decides again."""
        body = {"state": state, "reason": reason}
        return self._transport.post(f"/v1/breakers/{in_path(handler_class)}", body, is_safe=True)
