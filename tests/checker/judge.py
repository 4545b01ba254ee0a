"""The judge: reads a database and ledgers, and returns a verdict. Tests call `assert_kept`."""

import gc
from collections import Counter, defaultdict
from collections.abc import Collection, Iterator, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any, Final, NamedTuple

from . import causes
from .database import Case, Database
from .ledgers import read
from .promises import AT_THE_END, CASE_RULES, WHOLE_RULES
from .promises.common import CaseRule, Judged, is_unknown
from .story import Offence
from .timeline import Moment, of_step, of_task
from .witnesses import Witnesses

LEASE_MS: Final = 10_000
SHOWN_MAX: Final = 20
TIMELINES_MAX: Final = 50  # violations that are shown with their timeline


class Violation(NamedTuple):
    rule: str
    what: str
    task_id: int | None = None
    step: str | None = None
    timeline: tuple[Moment, ...] = ()

    def __str__(self) -> str:
        where = "" if self.task_id is None else f"task {self.task_id}{'' if self.step is None else '/' + self.step}: "
        return f"{self.rule}: {where}{self.what}"


class Counts(NamedTuple):
    """The counters of a total queue: what was put in, and what came out."""

    attempt: int
    acknowledged: int
    ok: int  # acknowledged and stored
    lost: int  # acknowledged and not stored
    unexpected: int  # stored and never put in
    duplicated: int  # stored more than once
    recovered: int  # never acknowledged, but stored
    late: int = 0  # acknowledged when it could no longer change anything


class Verdict(NamedTuple):
    violations: list[Violation]
    figures: dict[str, Any]
    counters: dict[str, Counts]

    def __str__(self) -> str:
        figures = ", ".join(f"{name} {value}" for name, value in self.figures.items())
        shown = [f"  {violation}" for violation in self.violations[:SHOWN_MAX]]
        more = [f"  and {len(self.violations) - SHOWN_MAX} more"] if len(self.violations) > SHOWN_MAX else []
        return "\n".join([f"{len(self.violations)} violations; {figures}", *shown, *more])


def judge(
    database: Path,
    ledgers: Path | Sequence[Path],
    *,
    lease_ms: int = LEASE_MS,
    all_ended: bool = True,
    kept_ms: int | None = None,
    without: Collection[CaseRule] = (),
) -> Verdict:
    """Judge a run.

    `all_ended`: every acknowledged task has had the time that it needs. `kept_ms`: the shortest time for which the
    database keeps an ended task. `without`: rules to leave out, to save time.
    """
    case_rules = [rule for rule in CASE_RULES if rule not in without]
    if all_ended:
        case_rules += AT_THE_END
    accused = Database(database, kept_ms)
    was_collecting = gc.isenabled()
    gc.disable()  # millions of small objects without cycles
    try:
        return _judge(
            accused, Witnesses(read(ledgers, accused.seen_at_wall_ns), lease_ms, accused.delivery_in), case_rules
        )
    finally:
        accused.close()
        if was_collecting:
            gc.enable()


def assert_kept(database: Path, ledgers: Path | Sequence[Path], **how: Any) -> Verdict:
    verdict = judge(database, ledgers, **how)
    if verdict.violations:
        raise AssertionError(page(verdict))
    return verdict


def _judge(database: Database, seen: Witnesses, case_rules: Sequence[CaseRule]) -> Verdict:
    judged = Judged(set(), set(), defaultdict(list))
    violations: list[Violation] = []
    tally = _Tally()
    for case in database.cases():
        task = case.task
        judged.tasks.add(task.id)
        judged.steps.update(row.id for row in case.steps)
        if task.key is not None:
            judged.tasks_of[task.namespace, task.key].append(task.id)
        for offence in _offences(database, seen, case, case_rules):
            timeline = _timeline(seen, case, offence.step) if len(violations) < TIMELINES_MAX else ()
            name = None if offence.step is None else case.plan.steps[offence.step].name
            violations.append(Violation(offence.rule, offence.what, task.id, name, tuple(timeline)))
        tally.add(seen, case)
    for rule in WHOLE_RULES:
        violations += [Violation(rule.__name__, what) for what in rule(database, seen, judged)]
    return Verdict(violations, _figures(seen, tally, violations), _counters(seen, judged, tally))


def _offences(database: Database, seen: Witnesses, case: Case, case_rules: Sequence[CaseRule]) -> Iterator[Offence]:
    for offence in case.story.offences:
        if offence.rule not in _BY_WALL_TIME or not seen.has_wall_jumped:
            yield offence
    for rule in case_rules:
        for finding in rule(database, seen, case):
            yield Offence(rule.__name__, finding.step, finding.what)


_BY_WALL_TIME: Final = frozenset({"no_retry_starts_before_its_back_off_ends"})


def _timeline(seen: Witnesses, case: Case, step: int | None) -> list[Moment]:
    return of_task(seen, case) if step is None else of_step(seen, case, step)


# -- figures ----------------------------------------------------------------------------------------------------------


class _Tally:
    """The counts over all tasks."""

    def __init__(self) -> None:
        self.tasks = self.steps = self.facts = self.held = self.results_ok = self.results_lost = 0
        self.unexpected = self.duplicated = self.recovered = self.sent = self.acked = self.late = 0
        self.again: Counter[str] = Counter()
        self.held_for: Counter[str] = Counter()

    def add(self, seen: Witnesses, case: Case) -> None:
        self.tasks += 1
        self.steps += len(case.steps)
        self.facts += case.story.facts
        self.held += sum(row.state == "held" for row in case.steps)
        for step in case.story.steps:
            step_id = case.task.id + 1 + step.index
            for earlier, later in pairwise(seen.runs.get(step_id, ())):
                self.again[causes.of_running_again(seen, case, step, earlier, later) or "none"] += 1
            for outcome in step.outcomes:
                if is_unknown(outcome):
                    self.held_for[causes.of_holding(seen, case, step, outcome) or "none"] += 1
            if seen.recorded_pids:
                self._add_results(seen, step_id, step)

    def _add_results(self, seen: Witnesses, step_id: int, step: Any) -> None:
        of_delivery = {sent.result.delivery: sent for sent in seen.sent.get(step_id, ())}
        acked = {d for d, sent in of_delivery.items() if sent.acked_at is not None}
        applied = Counter(
            o.delivery for o in step.outcomes if o.kind != "undelivered" and o.kind != "cancelled" and not o.by_operator
        )
        explained = {d for d in applied if d in of_delivery}
        self.sent += len(of_delivery)
        self.acked += len(acked)
        self.results_ok += len(acked & explained)
        self.late += len(acked - explained)
        self.recovered += len(explained - acked)
        completed = Counter(o.delivery for o in step.outcomes if o.kind == "completed")
        self.unexpected += sum(d not in of_delivery for d in completed) if step_id in seen.sent else 0
        self.duplicated += sum(count > 1 for count in completed.values())


def _figures(seen: Witnesses, tally: _Tally, violations: list[Violation]) -> dict[str, Any]:
    count = Counter(violation.rule for violation in violations)
    lost = {
        violation.what if violation.task_id is None else violation.task_id
        for violation in violations
        if violation.rule in ("nothing_acknowledged_is_lost", "a_task_is_stored_whole", "a_task_has_its_key")
    }
    return {
        "tasks": tally.tasks,
        "acknowledged": sum(map(len, seen.acknowledged.values())),
        "lost": len(lost),
        "steps": tally.steps,
        "started": sum(map(len, seen.runs.values())),
        "started again": dict(tally.again),
        "held": tally.held,
        "held for": dict(tally.held_for),
        "doubled": count["no_step_runs_again_without_a_cause"] + count["an_at_most_once_step_starts_once"],
        "killed": sum(outage.was_killed for outage in seen.outages),
        "paused": sum(not outage.was_killed for outage in seen.outages),
        "events": tally.facts + seen.ledgers.count,
        "left out": seen.ledgers.left_out,
        "wall clock": "steady" if seen.is_wall_steady else "not reliable",
    }


def _counters(seen: Witnesses, judged: Judged, tally: _Tally) -> dict[str, Counts]:
    acknowledged, stored = seen.acknowledged.keys(), judged.tasks_of.keys()
    kept = {name for name, tasks in seen.acknowledged.items() if tasks.keys() <= judged.tasks}
    return {
        "submissions": Counts(
            attempt=len(seen.asked),
            acknowledged=len(acknowledged),
            ok=len(kept),
            lost=len(acknowledged) - len(kept),
            unexpected=len(stored - seen.asked.keys()) if seen.asked else 0,
            duplicated=sum(len(ids) > 1 for ids in judged.tasks_of.values()),
            recovered=len((stored & seen.asked.keys()) - acknowledged),
        ),
        "results": Counts(
            attempt=tally.sent,
            acknowledged=tally.acked,
            ok=tally.results_ok,
            lost=tally.acked - tally.results_ok - tally.late,
            unexpected=tally.unexpected,
            duplicated=tally.duplicated,
            recovered=tally.recovered,
            late=tally.late,
        ),
    }


# -- reports ---------------------------------------------------------------------------------------------------------


def as_json(verdict: Verdict) -> dict[str, Any]:
    return {
        "kept": not verdict.violations,
        "figures": verdict.figures,
        "counters": {name: counts._asdict() for name, counts in verdict.counters.items()},
        "violations": [
            {**violation._asdict(), "timeline": [moment._asdict() for moment in violation.timeline]}
            for violation in verdict.violations
        ],
    }


def page(verdict: Verdict) -> str:
    """Return the verdict as text: figures, counters, and each violation with its timeline."""
    text = ["Every promise was kept." if not verdict.violations else f"{len(verdict.violations)} violations", ""]
    text += [f"  {name:<14} {_as_text(value)}" for name, value in verdict.figures.items()]
    head = Counts._fields
    text += ["", f"  {'':<12}" + "".join(f"{name:>14}" for name in head)]
    text += [f"  {name:<12}" + "".join(f"{n:>14}" for n in counts) for name, counts in verdict.counters.items()]
    by_rule: dict[str, list[Violation]] = defaultdict(list)
    for violation in verdict.violations:
        by_rule[violation.rule].append(violation)
    for rule, broken in sorted(by_rule.items(), key=lambda each: -len(each[1])):
        text += ["", f"{rule.replace('_', ' ').upper()} ({len(broken)})"]
        shown: set[tuple[int | None, str | None]] = set()
        for violation in broken[:SHOWN_MAX]:
            text += ["", f"  {str(violation).partition(': ')[2]}"]
            if (violation.task_id, violation.step) not in shown:
                text += [f"    {moment}" for moment in violation.timeline]
                shown.add((violation.task_id, violation.step))
        if len(broken) > SHOWN_MAX:
            text += ["", f"  and {len(broken) - SHOWN_MAX} more"]
    return "\n".join([*text, ""])


def _as_text(value: Any) -> str:
    if isinstance(value, dict):
        return ", ".join(f"{name}: {count}" for name, count in value.items()) or "-"
    return str(value)
