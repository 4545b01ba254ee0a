"""Waits for tasks: prints why a task does not move, survives a restart of the broker, and ends with an exit code."""

import re
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Final

from stepwire.client import Client, Unreachable

from stepwire_broker.cli import output
from stepwire_broker.cli.connection import START_A_BROKER
from stepwire_broker.cli.failure import Exit, Failure, leave, usage
from stepwire_broker.cli.options import Options
from stepwire_broker.cli.why import sentence_of
from stepwire_broker.core.reading.durations import milliseconds

OF_STATE: Final = {"completed": Exit.OK, "failed": Exit.TASK_FAILED, "cancelled": Exit.TASK_CANCELLED}
QUIET_S: Final = 3.0  # a task that does not move for this time is explained

_NUMBERS: Final = re.compile(r"\d+")


class Quiet:
    """Explains a task that does not move. A sentence counts as the same if only its numbers differ, such as times."""

    def __init__(self, client: Client) -> None:
        self._client = client
        self._state: tuple[Any, ...] = ()
        self._since_s = 0.0
        self._told = ""
        self.sentence: str | None = None  # why the task does not move; None while it moves

    def look(self, task: dict[str, Any]) -> str | None:
        """Return the sentence if it is new. Asks the broker at most once in QUIET_S."""
        state = _moving_parts(task)
        now_s = time.monotonic()
        if state != self._state:
            self._state, self._since_s, self.sentence = state, now_s, None
            return None
        if now_s - self._since_s < QUIET_S or exit_of(task) is not Exit.TASK_RUNS:
            return None
        self._since_s = now_s
        self.sentence = sentence_of(self._client.why(task["task_id"]))
        told = _NUMBERS.sub("#", self.sentence)
        if told == self._told:
            return None
        self._told = told
        return self.sentence


def _moving_parts(task: dict[str, Any]) -> tuple[Any, ...]:
    names = ("state", "attempt", "deliveries", "started_at", "progress")
    return (task["state"], task["attention"], [[step.get(name) for name in names] for step in task["steps"]])


def until_settled(options: Options, client: Client, task_id: int, wait_s: float | None) -> dict[str, Any]:
    """Wait until the task has ended or waits on a held step, or the wait times out. Returns the task."""
    quiet = Quiet(client)
    task: dict[str, Any] = {}
    for task in client.watch(task_id, wait_s, every_s=QUIET_S):
        if (sentence := quiet.look(task)) is not None:
            output.note(options, why_line(task_id, sentence))
    return task


def why_line(task_id: int, sentence: str) -> str:
    return f"task {task_id}: {output.shortened(sentence, 2_000)}"


@contextmanager
def goes_on(what: str, command: str) -> Iterator[None]:
    """The wait for work that continues without this command. Ctrl-C and a lost broker end only the wait."""
    try:
        yield
    except KeyboardInterrupt:
        output.echo(f"{what}: {command}", err=True)
        leave(Exit.INTERRUPTED)
    except Unreachable as error:
        hint = f"{START_A_BROKER}; then: {command}"
        raise Failure(Exit.UNREACHABLE, error.message.rstrip("."), hint) from None


def task_goes_on(task_id: int) -> Any:
    return goes_on(f"task {task_id} goes on", f"stepwire task watch {task_id}")


def exit_of(document: dict[str, Any]) -> Exit:
    """The exit code for a task in its current state."""
    return OF_STATE.get(document["state"], Exit.TASK_HELD if document["attention"] else Exit.TASK_RUNS)


def seconds(timeout: str | None, option: str = "--timeout") -> float | None:
    if timeout is None:
        return None
    ms = milliseconds(timeout)
    if ms is None:
        usage(f"{option} {timeout}: use a form like 30s or 5m")
    return ms / 1000
