"""The timeline of a step or a task, from history and all ledgers in one order, shown with a violation."""

from collections.abc import Iterable, Iterator
from datetime import UTC, datetime
from typing import Any, Final, NamedTuple

from . import ledgers as lines
from .database import Case
from .story import STEP_MOVES
from .witnesses import Witnesses

MOMENTS_MAX: Final = 60
FAULTS_MAX: Final = 20
_LEFT_OUT: Final = ("at", "wall", "step_id", "task_id", "items", "results", "mode", "pid", "worker", "step")


class Moment(NamedTuple):
    wall_ns: int
    who: str
    what: str

    def __str__(self) -> str:
        at = datetime.fromtimestamp(self.wall_ns / 1e9, UTC)
        return f"{at:%H:%M:%S.%f}  {self.who:<16}  {self.what}"


def of_step(seen: Witnesses, case: Case, index: int) -> list[Moment]:
    return _bounded([*_facts(case, index), *_of_step(seen, case, index), *_about(seen, case)], seen)


def of_task(seen: Witnesses, case: Case) -> list[Moment]:
    moments = [*_facts(case, None), *_about(seen, case)]
    for row in case.steps:
        moments += _of_step(seen, case, row.position)
    return _bounded(moments, seen)


def _bounded(moments: list[Moment], seen: Witnesses) -> list[Moment]:
    moments.sort()
    moments = moments[:MOMENTS_MAX]
    if moments:
        faults = [
            Moment(line.at + seen.wall_minus_at, line.program or line.role, f"{_event(line)} (process {line.pid})")
            for line in seen.ledgers.faults
            if not isinstance(line, lines.Named | lines.Owned)
            and moments[0].wall_ns <= line.at + seen.wall_minus_at <= moments[-1].wall_ns
        ]
        moments = sorted([*moments, *faults[:FAULTS_MAX]])
    return moments


def _facts(case: Case, index: int | None) -> Iterator[Moment]:
    """Yield the facts of the history: those of one step, or all; those of the task always."""
    for seq, row in case.rows:
        for fact in row:
            is_step_fact = fact[0] in STEP_MOVES
            if not is_step_fact or index is None or fact[2] == index:
                name = f"{case.plan.steps[fact[2]].name} " if is_step_fact and fact[2] < len(case.plan.steps) else ""
                rest = fact[3:] if is_step_fact else fact[2:]
                yield Moment(fact[1] * 1_000_000, f"group {seq}", f"{name}{fact[0]} {rest or ''}".rstrip())


def _of_step(seen: Witnesses, case: Case, index: int) -> Iterator[Moment]:
    step_id = case.task.id + 1 + index
    shift = seen.wall_minus_at
    name = case.plan.steps[index].name if index < len(case.plan.steps) else str(step_id)
    for run in seen.runs.get(step_id, ()):
        yield Moment(run.started.at + shift, f"process {run.started.pid}", f"{name} {_line_as_text(run.started)}")
        if run.end is not None:
            yield Moment(run.end.at + shift, f"process {run.end.pid}", f"{name} {_line_as_text(run.end)}")
    for effect in seen.effects.get(step_id, ()):
        yield Moment(effect.at + shift, f"process {effect.pid}", f"{name} {_line_as_text(effect)}")
    for given in seen.given.get(step_id, ()):
        what = f"{name} received delivery {given.step.delivery} attempt {given.step.attempt} in {given.line.batch_id}"
        yield Moment(given.line.at + shift, f"process {given.line.pid}", what)
    for sent in seen.sent.get(step_id, ()):
        r = sent.result
        what = f"{name} result of delivery {r.delivery} sent: {r.status} {r.code or ''} (message {sent.line.rid})"
        yield Moment(sent.line.at + shift, f"process {sent.line.pid}", what)
        if sent.acked_at is not None:
            yield Moment(sent.acked_at + shift, f"process {sent.line.pid}", f"result message {sent.line.rid} acked")
    for (of_step, delivery, pid), at in _about_step(seen.gone, step_id):
        yield Moment(at + shift, f"process {pid}", f"{name} go for delivery {delivery} of {of_step}")
    for (of_step, delivery, pid), at in _about_step(seen.stops, step_id):
        yield Moment(at + shift, f"process {pid}", f"{name} received a cancel of delivery {delivery} of {of_step}")


def _about_step(of: dict[tuple[int, int, int], int], step_id: int) -> Iterable[tuple[tuple[int, int, int], int]]:
    return [(key, at) for key, at in of.items() if key[0] == step_id]


def _about(seen: Witnesses, case: Case) -> Iterator[Moment]:
    """Yield the actions of clients and operators that concern the task."""
    shift = seen.wall_minus_at
    for name in seen.keys_of.get(case.task.id, ()):
        if name in seen.asked:
            yield Moment(seen.asked[name] + shift, "client", f"submitted {name[1]}")
        yield Moment(
            seen.acknowledged[name][case.task.id] + shift,
            "client",
            f"received the acknowledgement: task {case.task.id}",
        )
    for step_id in (case.task.id, *(row.id for row in case.steps)):
        for order in seen.orders.get(step_id, ()):
            yield Moment(order.at + shift, "operator", f"ordered {order.order}")
    for line in seen.observed.get(case.task.id, ()):
        yield Moment(line.at + shift, "client", f"was shown the task as {line.state}")


def _event(line: Any) -> str:
    return str(line.__struct_config__.tag)


def _line_as_text(line: lines.RunLine) -> str:
    rest = {
        name: value
        for name in line.__struct_fields__
        if name not in _LEFT_OUT and (value := getattr(line, name)) not in (None, "", {})
    }
    return f"{_event(line)} " + " ".join(f"{name}={value}" for name, value in rest.items())
