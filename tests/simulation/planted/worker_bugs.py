"""Bugs of the worker: one line of the Python SDK each, done wrong."""

from typing import Any, Final

from stepwire.session import deliveries, intake, leases, slots, tombstones
from stepwire.session import outbox as sdk_outbox
from stepwire.session import outgoing as sdk_outgoing

from .plant import Bug, Plant


def _lease_from_arrival(plant: Plant) -> None:
    def extend(original: Any, self: Any, peer: Any, until_ms: float, now_ms: float) -> None:
        original(self, peer, now_ms + peer.lease_ms, now_ms)

    plant.method(leases.Leases, "_extend", extend)


def _not_resent(plant: Plant) -> None:
    def again(original: Any, self: Any, now_ms: float) -> None:
        self.resend_at_ms = sdk_outgoing.NEVER

    def answer_again(original: Any, self: Any, peer: Any, held: Any, refused: Any, now_ms: float) -> bool:
        return bool(held.message is None and original(self, peer, held, refused, now_ms))

    plant.method(sdk_outbox.ResultsOutbox, "resend", again)
    plant.method(intake.Intake, "_answer_again", answer_again)


def _no_refusal(plant: Plant) -> None:
    def refuse(original: Any, self: Any, peer: Any, batch_id: str, items: Any, code: str, now_ms: float) -> None:
        if code != "stale":
            original(self, peer, batch_id, items, code, now_ms)

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
    def take_next(original: Any, self: Any) -> Any:
        for held in self.queued:
            held.is_at_most_once = False
        return original(self)

    plant.method(slots.Slots, "take_next", take_next)


BUGS: Final = (
    Bug("worker: lease counted from the answer's arrival", _lease_from_arrival),
    Bug("worker: results not resent", _not_resent),
    Bug("worker: a tombstone sends no refusal", _no_refusal),
    Bug("worker: a disowned delivery may still run", _no_disowning),
    Bug("worker: session not dropped at the lease's end", _lease_unchecked),
    Bug("worker: a dropped session's queue is kept", _drop_keeps_queued),
    Bug("worker: at_most_once starts without a go", _starts_without_go),
)
