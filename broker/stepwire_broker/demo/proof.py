"""Proofs about a demo run, from the ledgers and the bank's book. The broker supplies only the tasks' end states."""

from collections import Counter, defaultdict
from collections.abc import Collection, Mapping, Sequence
from typing import Any, NamedTuple

from .books import Booking, LedgerRun


class Proof(NamedTuple):
    holds: bool
    sentence: str


class Evidence(NamedTuple):
    tasks: Sequence[Mapping[str, Any]]  # the broker's documents of the tasks at the end
    runs: Sequence[LedgerRun]  # of these tasks, in the order in which they happened
    bookings: Sequence[Booking]
    needs: Mapping[str, Collection[str]]  # by step, the steps that it depends on
    killed: Collection[int]  # process ids
    resolved: Collection[int]  # ids of the steps that an operator resolved


def prove(evidence: Evidence) -> list[Proof]:
    return [_all_ended(evidence), _charged_once(evidence), _in_order(evidence), _doubles_have_a_cause(evidence)]


def _all_ended(evidence: Evidence) -> Proof:
    states = [_states(task) for task in evidence.tasks]
    shipped = sum(one["ship"] == "completed" and one["refund"] == "skipped" for one in states)
    refunded = sum(one["ship"] == "failed" and one["refund"] == "completed" for one in states)
    total = len(evidence.tasks)
    completed = sum(task["state"] == "completed" for task in evidence.tasks)
    return Proof(
        total == completed == shipped + refunded,
        f"No order was lost: of {_count(total, 'order')}, {shipped} were shipped and {refunded} refunded.",
    )


def _charged_once(evidence: Evidence) -> Proof:
    charges = Counter(one.task_id for one in evidence.bookings if one.what == "charge")
    refunds = Counter(one.task_id for one in evidence.bookings if one.what == "refund")
    to_refund = {task["task_id"] for task in evidence.tasks if _states(task)["refund"] != "skipped"}
    to_charge = {task["task_id"] for task in evidence.tasks}
    return Proof(
        charges == Counter(to_charge) and refunds == Counter(to_refund),
        f"Every card was charged exactly once: {len(charges)} cards, {charges.total()} charges in the bank's book.",
    )


def _in_order(evidence: Evidence) -> Proof:
    """Compare the start of each step with the ends of its dependencies. A dependency that an operator resolved has no
    end in the ledgers, so it is not compared."""
    started: dict[tuple[int, str], int] = {}
    ended: dict[tuple[int, str], int] = {}
    for run in evidence.runs:
        key = (run.task_id, run.step)
        if run.event == "started":
            started.setdefault(key, run.at_ns)
        elif run.event == "finished" or run.step == "ship":  # after a failed `ship`, `refund` may start
            ended.setdefault(key, run.at_ns)
    early = compared = 0
    for (task_id, step), at_ns in started.items():
        for needed in evidence.needs[step]:
            if (task_id, needed) in ended:
                compared += 1
                early += at_ns < ended[task_id, needed]
    return Proof(
        compared > 0 and not early,
        f"No step started before the steps that it depends on had finished: {compared} pairs of steps compared.",
    )


def _doubles_have_a_cause(evidence: Evidence) -> Proof:
    runs: dict[tuple[int, int], list[LedgerRun]] = defaultdict(list)
    for run in evidence.runs:
        if run.event == "started":
            runs[run.step_id, run.attempt].append(run)
    doubles = {key: each for key, each in runs.items() if len(each) > 1}
    excused = sum(all(run.pid in evidence.killed for run in each[:-1]) for each in doubles.values())
    by_operator = sum(step_id in evidence.resolved for step_id, _ in doubles)
    languages = Counter(run.language for each in runs.values() for run in each)
    spread = ", ".join(f"{language} {count}" for language, count in languages.most_common())
    total, by_kill = sum(map(len, runs.values())), len(doubles) - by_operator
    return Proof(
        excused == len(doubles),
        f"Of {total} handler runs ({spread}), {_count(by_kill, 'step')} ran twice because their worker was killed,"
        f" and {by_operator} because an operator retried it.",
    )


def _states(task: Mapping[str, Any]) -> dict[str, str]:
    return {step["name"]: step["state"] for step in task["steps"]}


def _count(number: int, what: str) -> str:
    return f"{number} {what}{'s' * (number != 1)}"
