"""A worker for dialogues: the Python SDK as it ships, with its threads, over real sockets. Its broker is played."""

import queue
from collections import defaultdict
from pathlib import Path
from typing import Any

from conformance.dialogue import WITHIN_MS, Dialogue
from conformance.sockets import PlayedBroker, retry
from stepwire import Context, StepError, Worker

Delivery = tuple[int, int]


class WorkerOnSockets(PlayedBroker):
    def __init__(self, dialogue: Dialogue, directory: Path) -> None:
        steps, results = f"ipc://{directory}/steps.sock", f"ipc://{directory}/results.sock"
        super().__init__(steps, results)
        given = dialogue.given
        self._runs: list[Delivery] = []
        self._contexts: dict[Delivery, Context] = {}
        self._ends: defaultdict[Delivery, queue.SimpleQueue[Any]] = defaultdict(queue.SimpleQueue)
        self._worker = Worker(
            steps=steps,
            results=results,
            name="shop-1",
            slots=given["slots"],
            prefetch=given["prefetch"],
            heartbeat_ms=min(2_000, given["lease_ms"] // 5),
        )
        for name in given["handlers"]:
            self._worker.handler(name)(self._handle)

    def __enter__(self) -> "WorkerOnSockets":
        self._worker.start()
        return self

    def __exit__(self, *args: object) -> None:
        for item in self._runs:
            self._ends[item].put(None)
        self._worker.drain(0)
        assert self._worker.wait(20)
        self.close()

    def _handle(self, context: Context) -> Any:
        """Run until a line of the dialogue ends the run."""
        item = (context.step_id, context.delivery)
        self._contexts[item] = context
        self._runs.append(item)
        end = self._ends[item].get(timeout=30)
        if isinstance(end, Exception):
            raise end
        return end

    # -- the real side of the stage -----------------------------------------------------------------------------------

    def act(self, what: str, facts: dict[str, Any]) -> None:
        if what == "drain":
            self._worker.drain()
            return
        item = (facts["step_id"], facts["delivery"])
        if why := retry(lambda: None if item in self._runs else f"{item} did not start"):
            raise AssertionError(why)
        # A run ends without a message: its result must not overtake the welcome that was sent before.
        if why := retry(lambda: None if self._has_session() else "the worker has not processed the welcome"):
            raise AssertionError(why)
        self._ends[item].put(facts["output"] if what == "complete" else StepError(facts["message"]))

    def see(self, what: str, facts: dict[str, Any]) -> str | None:
        match what:
            case "ran":
                item, times = (facts["step_id"], facts["delivery"]), facts["times"]
                return retry(lambda: None if self._runs.count(item) == times else f"{self._runs}, not {item} × {times}")
            case "stop_requested":
                step_id, reason = facts["step_id"], facts["reason"]
                return retry(lambda: None if self._is_stopped(step_id, reason) else "the run was not asked to stop")
            case "running":
                item = (facts["step_id"], facts["delivery"])
                return retry(lambda: None if item in self._runs else f"{item} did not start")
            case "gone":
                return None if self._worker.wait(WITHIN_MS / 1000) else "the worker has not ended"
            case "not_gone":
                return "the worker has ended" if self._worker.wait(0.05) else None
        raise ValueError(what)

    def _has_session(self) -> bool:
        thread = self._worker._thread
        return thread is None or self.welcome.get("session") in (None, *thread.session.brokers.sessions().values())

    def _is_stopped(self, step_id: int, reason: str) -> bool:
        (context,) = [c for item, c in self._contexts.items() if item[0] == step_id]
        return bool(context.lease_lost) if reason == "lease_lost" else context.cancel_reason == reason
