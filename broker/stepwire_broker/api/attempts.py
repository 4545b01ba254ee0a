"""The deliveries of one step, read from its task's history: how each began and ended, and the error of each."""

from collections.abc import Iterator
from typing import Final, NamedTuple

from msgspec import Struct

from stepwire_broker.core.model import facts
from stepwire_broker.core.model.facts import Fact
from stepwire_broker.store.queries import PAGE_ROWS_MAX, Queries
from stepwire_broker.timestamps import rfc3339, rfc3339_or_none

from .documents import AttemptDocument, CancelDocument

ATTEMPTS_MAX: Final = 100  # in one answer, the latest
PAGES_MAX: Final = 50  # of the history of one task; a longer history is shown as far as this


class _Delivery(Struct):
    """One delivery, while the history is read."""

    number: int
    attempt: int
    worker: str | None = None
    dispatched_ms: int | None = None
    started_ms: int | None = None
    ended_ms: int | None = None
    run_ms: int | None = None
    outcome: str | None = None
    code: str | None = None
    message: str | None = None


class Attempts(NamedTuple):
    latest: list[AttemptDocument]
    omitted: int


def of_step(queries: Queries, task_id: int, position: int) -> Attempts:
    """The deliveries of the step at this position of its task, the oldest first."""
    story = _DeliveriesSoFar()
    for fact in _facts(queries, task_id):
        if isinstance(fact, facts.StepFact) and fact.step == position:
            story.add(fact)
    latest = story.deliveries[-ATTEMPTS_MAX:]
    return Attempts([_document(each) for each in latest], len(story.deliveries) - len(latest))


def cancel_of(queries: Queries, task_id: int) -> CancelDocument | None:
    """The latest request to cancel the task."""
    asked: facts.CancelAsked | None = None
    for fact in _facts(queries, task_id):
        if isinstance(fact, facts.CancelAsked):
            asked = fact
    return None if asked is None else CancelDocument(rfc3339(asked.at), asked.reason, asked.by)


def _facts(queries: Queries, task_id: int) -> Iterator[Fact]:
    after: tuple[int, int, int] | None = None
    for _ in range(PAGES_MAX):
        rows = queries.task_events(task_id, after)
        for row in rows:
            yield from facts.decode(row.facts)
        if len(rows) < PAGE_ROWS_MAX:
            return
        last = rows[-1]
        after = (last.lane_id, last.seq, last.position)


class _DeliveriesSoFar:
    """The deliveries so far, and the number of failed attempts since the start or the last retry by an operator."""

    def __init__(self) -> None:
        self.deliveries: list[_Delivery] = []
        self._attempt = 0

    def add(self, fact: facts.StepFact) -> None:
        match fact:
            case facts.Dispatched():
                each = _Delivery(fact.delivery, self._attempt, fact.worker, fact.at)
                self.deliveries.append(each)
            case facts.Started():
                self._of(fact.delivery).started_ms = fact.at
            case facts.Undelivered():
                self._end(fact, fact.delivery, fact.code)
            case facts.Completed():
                self._end(fact, fact.delivery, None, fact.run_ms)
            case facts.BackedOff():
                self._end(fact, fact.delivery, fact.code, fact.run_ms, fact.message)
                self._attempt += 1
            case facts.Failed() | facts.Held():
                self._end(fact, fact.delivery, fact.code, fact.run_ms, fact.message)
            case facts.StepCancelled():
                if self.deliveries and self.deliveries[-1].outcome is None:
                    self._end(fact, self.deliveries[-1].number, fact.code)
            case facts.Reopened():
                self._attempt = 0
            case _:
                pass  # the other facts are not about a delivery

    def _of(self, number: int) -> _Delivery:
        """The delivery with this number. A step that failed while no worker had it gets an entry of its own."""
        for each in reversed(self.deliveries):
            if each.number == number:
                return each
        each = _Delivery(number, self._attempt)
        self.deliveries.append(each)
        return each

    def _end(
        self, fact: facts.StepFact, number: int, code: str | None, run_ms: int | None = None, message: str | None = None
    ) -> None:
        each = self._of(number)
        if each.outcome is not None and not (each.outcome == "held" or isinstance(fact, facts.Completed)):
            # The delivery had ended before: the step failed while it waited for the next one.
            each = _Delivery(number, self._attempt)
            self.deliveries.append(each)
        each.outcome = str(type(fact).__struct_config__.tag)
        each.ended_ms = fact.at
        each.code = code
        if message is not None or code is None:
            each.message = message
        if run_ms is not None:
            each.run_ms = run_ms
            if each.started_ms is None and each.dispatched_ms is not None:
                each.started_ms = max(each.dispatched_ms, fact.at - run_ms)


def _document(each: _Delivery) -> AttemptDocument:
    return AttemptDocument(
        delivery=each.number,
        attempt=each.attempt,
        worker=each.worker,
        dispatched_at=rfc3339_or_none(each.dispatched_ms),
        started_at=rfc3339_or_none(each.started_ms),
        ended_at=rfc3339_or_none(each.ended_ms),
        run_ms=each.run_ms,
        outcome=each.outcome,
        code=each.code,
        message=each.message,
    )
