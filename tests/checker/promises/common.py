"""The types and helpers that the rules of every promise share."""

from collections.abc import Callable, Iterator, Mapping
from typing import Any, Final, NamedTuple, TypeAlias

import msgspec

from tests.checker.database import Case, Database
from tests.checker.story import Outcome, StepStory
from tests.checker.witnesses import Run, Witnesses

LEVEL0: Final = "level0."  # the prefix of level-0 handlers in the history


CLOCK_SLACK_MS: Final = 1_000  # a broker reads the clock once in each turn of its loop


class Judged(NamedTuple):
    """The ids that the rules over all tasks need, collected while each task is judged."""

    tasks: set[int]
    steps: set[int]
    tasks_of: dict[tuple[str, str], list[int]]  # by namespace and key


class Finding(NamedTuple):
    """A breach of a rule, and the step of the task that it concerns."""

    step: int | None
    what: str


Finds: TypeAlias = Iterator[Finding]


CaseRule: TypeAlias = Callable[[Database, Witnesses, Case], Finds]


WholeRule: TypeAlias = Callable[[Database, Witnesses, "Judged"], Iterator[str]]


def runs_of(seen: Witnesses, case: Case) -> list[tuple[StepStory, list[Run]]]:
    if case.runs is None:
        case.runs = _of_steps(seen.runs, case)
    return case.runs


def given_of(seen: Witnesses, case: Case) -> list[tuple[StepStory, list[Any]]]:
    if case.given is None:
        case.given = _of_steps(seen.given, case)
    return case.given


def _of_steps(known: Mapping[int, list[Any]], case: Case) -> list[tuple[StepStory, list[Any]]]:
    first = case.task.id + 1
    pairs = ((step, known.get(first + step.index)) for step in case.story.steps)
    return [(step, of_step) for step, of_step in pairs if of_step is not None]


def may_be_removed(database: Database, seen: Witnesses) -> set[int]:
    """Tasks that no ledger mentions within the time that the database must keep an ended task."""
    if database.kept_ms is None:
        return set()
    before = database.seen_at_wall_ns - database.kept_ms * 1_000_000
    return {task_id for task_id, at in seen.last_mentions().items() if at <= before}


def is_unknown(outcome: Outcome) -> bool:
    return outcome.kind == "held" or (outcome.kind == "failed" and outcome.code == "outcome_unknown")


def token_in(output: str | None) -> str | None:
    """Return the token in an output: the step, delivery and process that made it, where its handler writes one."""
    if output is None or '"token"' not in output:
        return None
    value = msgspec.json.decode(output)
    token = value.get("token") if isinstance(value, dict) else None
    return token if isinstance(token, str) else None


def run_of_token(seen: Witnesses, token: str | None) -> Any:
    parts = (token or "").split("/")
    if len(parts) != 3 or not (parts[0].isdigit() and parts[2].isdigit()):
        return None
    step_id, pid = int(parts[0]), int(parts[2])
    delivery = int(parts[1]) if parts[1].isdigit() else seen.delivery_in(step_id, parts[1])
    return seen.ends.get((step_id, delivery, pid))


def describe(runs: list[Run]) -> str:
    return "; ".join(
        f"delivery {s.delivery} attempt {s.attempt} process {s.pid} started at {s.at / 1e9:.3f} "
        f"{run.verdict or 'and did not end'}{f' at {run.end.at / 1e9:.3f}' if run.end is not None else ''}"
        for run in runs
        for s in (run.started,)
    )
