"""What the ledgers and the bank's book prove of a run of the demo. The broker is asked only how each task ended."""

from collections import Counter, defaultdict
from collections.abc import Collection, Mapping, Sequence
from typing import Any, NamedTuple

from .books import Booking, LedgerRun


class Proof(NamedTuple):
    holds: bool
    sentence: str


class Evidence(NamedTuple):
    tasks: Sequence[Mapping[str, Any]]  # as the broker shows them at the end
    runs: Sequence[LedgerRun]  # of these tasks, in the order in which they happened
    bookings: Sequence[Booking]
    needs: Mapping[str, Collection[str]]  # by step, what it depends on
    killed: Collection[int]  # processes
    resolved: Collection[int]  # steps of which an operator said what became of them


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
        f"Nothing was lost: of {_count(total, 'order')} {shipped} were shipped, {refunded} refunded.",
    )


def _charged_once(evidence: Evidence) -> Proof:
    charges = Counter(one.task_id for one in evidence.bookings if one.what == "charge")
    refunds = Counter(one.task_id for one in evidence.bookings if one.what == "refund")
    asked_back = {task["task_id"] for task in evidence.tasks if _states(task)["refund"] != "skipped"}
    everybody = {task["task_id"] for task in evidence.tasks}
    return Proof(
        charges == Counter(everybody) and refunds == Counter(asked_back),
        f"Every card was charged exactly once: {len(charges)} cards, {charges.total()} charges in the bank's book.",
    )


def _in_order(evidence: Evidence) -> Proof:
    """A step whose end only an operator could tell has no end in the ledgers, so nothing is asked of it."""
    begun: dict[tuple[int, str], int] = {}
    ended: dict[tuple[int, str], int] = {}
    for run in evidence.runs:
        moment = (run.task_id, run.step)
        if run.event == "started":
            begun.setdefault(moment, run.at_ns)
        elif run.event == "finished" or run.step == "ship":  # after a failed `ship`, `refund` may begin
            ended.setdefault(moment, run.at_ns)
    early = looked_at = 0
    for (task_id, step), at_ns in begun.items():
        for needed in evidence.needs[step]:
            if (task_id, needed) in ended:
                looked_at += 1
                early += at_ns < ended[task_id, needed]
    return Proof(
        looked_at > 0 and not early,
        f"No step began before what it depends on had finished: {looked_at} pairs of steps compared.",
    )


def _doubles_have_a_cause(evidence: Evidence) -> Proof:
    runs: dict[tuple[int, int], list[LedgerRun]] = defaultdict(list)
    for run in evidence.runs:
        if run.event == "started":
            runs[run.step_id, run.attempt].append(run)
    doubles = {key: each for key, each in runs.items() if len(each) > 1}
    excused = sum(all(run.pid in evidence.killed for run in each[:-1]) for each in doubles.values())
    by_word = sum(step_id in evidence.resolved for step_id, _ in doubles)
    languages = Counter(run.language for each in runs.values() for run in each)
    spread = ", ".join(f"{language} {count}" for language, count in languages.most_common())
    total, by_death = sum(map(len, runs.values())), len(doubles) - by_word
    return Proof(
        excused == len(doubles),
        f"{total} runs of handlers ({spread}): {_count(by_death, 'step')} ran twice, each because its worker was"
        f" killed at it, and {by_word} because an operator said so.",
    )


def _states(task: Mapping[str, Any]) -> dict[str, str]:
    return {step["name"]: step["state"] for step in task["steps"]}


def _count(number: int, what: str) -> str:
    return f"{number} {what}{'s' * (number != 1)}"
