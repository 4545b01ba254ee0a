"""Bugs of the worker: one line of the Python SDK each, done wrong."""

from typing import Any, Final

from stepwire.actions import NEVER, Run
from stepwire.runners import run_slots
from stepwire.session import Session, credit, deliveries, intake, leases, slots, tombstones
from stepwire.session import outbox as sdk_outbox

from .plant import Bug, Plant


def _lease_from_arrival(plant: Plant) -> None:
    def extend(original: Any, self: Any, peer: Any, until_ms: float, now_ms: float) -> None:
        original(self, peer, now_ms + peer.lease_ms, now_ms)

    plant.method(leases.Leases, "_extend", extend)


def _not_resent(plant: Plant) -> None:
    def again(original: Any, self: Any, now_ms: float) -> None:
        self.resend_at_ms = NEVER

    def answer_again(original: Any, self: Any, peer: Any, held: Any, refused: Any, now_ms: float) -> bool:
        return bool(held.message is None and original(self, peer, held, refused, now_ms))

    plant.method(sdk_outbox.ResultsOutbox, "resend", again)
    plant.method(intake.Intake, "_answer_again", answer_again)


def _no_refusal(plant: Plant) -> None:
    def refuse(
        original: Any, self: Any, peer: Any, batch_id: str, items: Any, code: str, *args: Any, **kw: Any
    ) -> None:
        if code != "stale":
            original(self, peer, batch_id, items, code, *args, **kw)

    plant.method(intake.Intake, "refuse", refuse)


def _no_disowning(plant: Plant) -> None:
    plant.method(tombstones.Tombstones, "disown", lambda _, self, item, peer, now_ms: None)


def _lease_unchecked(plant: Plant) -> None:
    plant.method(leases.Leases, "check", lambda _, self, now_ms: None)


def _drop_keeps_queued(plant: Plant) -> None:
    def drop(original: Any, self: Any, *args: Any) -> None:
        held = self._holdings
        bury = held.bury
        held.bury = lambda one, now_ms: None if one.state == deliveries.QUEUED else bury(one, now_ms)
        try:
            original(self, *args)
        finally:
            del held.bury

    plant.method(leases.Leases, "_drop", drop)


def _starts_without_go(plant: Plant) -> None:
    def take_next(original: Any, self: Any, now_ms: float) -> Any:
        for held in self._queued:
            held.is_at_most_once = False
        return original(self, now_ms)

    plant.method(slots.Slots, "take_next", take_next)


def _begins_after_lease(plant: Plant) -> None:
    def begin(original: Any, self: Any, now_ms: float) -> bool:
        if now_ms < self.lease.until_ms:
            return bool(original(self, now_ms))
        self.started_ms = now_ms
        self.timeout_at_ms = now_ms + self.timeout_ms
        return True

    plant.method(Run, "begin", begin)


def _taken_back_in_name_only(plant: Plant) -> None:
    def take_back(original: Any, self: Any) -> bool:
        return bool(self.started_ms is None)

    plant.method(Run, "take_back", take_back)


def _hoards(plant: Plant) -> None:
    plant.method(credit.Credit, "excess", lambda _, self, now_ms: (0, set()))


def _returns_with_credit(plant: Plant) -> None:
    def excess(original: Any, self: Any, now_ms: float) -> Any:
        original(self, now_ms)
        held = self._holdings
        queued = sum(item[2] == "queued" for item in held.report(now_ms))
        return (queued if queued > 2 * self.room(now_ms) else 0), set(self._brokers)

    def watch(original: Any, self: Any, now_ms: float) -> None:
        if self._holdings.load:
            self.return_at_ms = min(self.return_at_ms, now_ms + credit.RETURN_EVERY_MS)

    plant.method(credit.Credit, "excess", excess)
    plant.method(credit.Credit, "watch", watch)


def _more_runs_than_slots(plant: Plant) -> None:
    def add(original: Any, self: Any, calls: Any) -> Any:
        self._free += 1
        started = original(self, calls)
        self._free -= 1
        return started

    plant.method(run_slots.RunSlots, "add", add)


def _full_offers_credit(plant: Plant) -> None:
    def is_closed(original: Any, self: Any, peer: Any) -> bool:
        return bool(self.is_draining or self.is_quiet or peer.is_quiet)

    plant.method(credit.Credit, "_is_closed", is_closed)


def _never_quits(plant: Plant) -> None:
    plant.method(Session, "_may_quit", lambda _, self: False)


BUGS: Final = (
    Bug("worker: lease counted from the answer's arrival", _lease_from_arrival),
    Bug("worker: results not resent", _not_resent),
    Bug("worker: a tombstone sends no refusal", _no_refusal),
    Bug("worker: a disowned delivery may still run", _no_disowning),
    Bug("worker: session not dropped at the lease's end", _lease_unchecked),
    Bug("worker: a dropped session's queue is kept", _drop_keeps_queued),
    Bug("worker: at_most_once starts without a go", _starts_without_go),
    Bug("worker: a step that waited in the runner starts after its lease", _begins_after_lease),
    Bug("worker: a returned step starts nevertheless", _taken_back_in_name_only),
    Bug("worker: steps that became long are not returned", _hoards),
    Bug("worker: steps are returned although credit is left", _returns_with_credit),
    Bug("worker: the runner starts more steps than it has slots", _more_runs_than_slots),
    Bug("worker: a full runner offers credit", _full_offers_credit),
    Bug("worker: a drained worker does not quit", _never_quits),
)
