"""Trigger rules that miss failures: `{failed: X}`, where a failure before X leaves X skipped.

A step runs only if the steps before it did. When one of them fails, X does not fail: X is skipped, and a compensation
that waits for `{failed: X}` is skipped too. The check runs the workflow on paper once for each step that can fail.
"""

from collections.abc import Iterator, Sequence
from typing import Final, NamedTuple, TypeAlias, assert_never

from .step_reader import WrittenStep
from .trigger_rules import Compare, DependencyEnded, Every, Nothing, Some, TriggerRule

VISITS_MAX: Final = 200_000  # steps looked at in all: a large workflow is checked in part

Outcomes: TypeAlias = dict[int, str]  # completed, failed or skipped, by the index of the step


class MissedFailure(NamedTuple):
    """The rule of `step` asks for `{failed: named}`. If `failing` fails, `named` is skipped, and the rule is false."""

    step: int
    named: int
    failing: int
    names_completed: bool  # the rule also asks for `{completed: …}`


def missed_failures(steps: Sequence[WrittenStep]) -> Iterator[MissedFailure]:
    """Yield at most one finding for each step and each `{failed: X}` in its rule.

    A rule that also names `{skipped: X}` was written with this case in mind, and is not reported.
    """
    visits = 0
    for index, step in enumerate(steps):
        named = [] if step.rule is None else list(_named(step.rule))
        asked = {atom.step for atom in named if atom.state == "failed"}
        asked -= {atom.step for atom in named if atom.state == "skipped"}
        if not asked:
            continue
        order = _before(steps, index)
        position = {earlier: i for i, earlier in enumerate(order)}
        names_completed = any(atom.state == "completed" for atom in named)
        for x in sorted(asked):
            nearest_first = sorted(_before(steps, x), key=position.__getitem__, reverse=True)
            for failing in nearest_first:
                visits += len(order)
                if _is_missed(steps, order, step.rule, x, failing):
                    yield MissedFailure(index, x, failing, names_completed)
                    break
                if visits > VISITS_MAX:
                    return
        visits += len(order)
        if visits > VISITS_MAX:
            return


def _is_missed(
    steps: Sequence[WrittenStep], order: list[int], rule: TriggerRule | None, named: int, failing: int
) -> bool:
    """True if a failure of `failing` skips `named`, and the rule is false only because `named` did not fail."""
    assert rule is not None
    if _outcomes(steps, order, failing=None)[named] != "completed":
        return False
    outcomes = _outcomes(steps, order, failing)
    if outcomes[failing] != "failed" or outcomes[named] != "skipped":
        return False
    return not _can_be(rule, outcomes)[True] and _can_be(rule, outcomes | {named: "failed"})[True]


def _outcomes(steps: Sequence[WrittenStep], order: list[int], failing: int | None) -> Outcomes:
    """How the steps end if every step that can run completes, except the failing one."""
    outcomes: Outcomes = {}
    for index in order:
        step = steps[index]
        if step.rule is None:
            runs = all(outcomes[needed] == "completed" for needed in step.needs)
        else:
            runs = _can_be(step.rule, outcomes)[True]
        outcomes[index] = "skipped" if not runs else "failed" if index == failing else "completed"
    return outcomes


def _can_be(rule: TriggerRule, outcomes: Outcomes) -> dict[bool, bool]:
    """Return whether the rule can be true and whether it can be false, for any context and outputs."""
    match rule:
        case DependencyEnded(state, step):
            holds = outcomes[step] == state
            return {True: holds, False: not holds}
        case Compare():
            return {True: True, False: True}
        case Every(rules):
            each = [_can_be(one, outcomes) for one in rules]
            return {True: all(one[True] for one in each), False: any(one[False] for one in each)}
        case Some(rules):
            each = [_can_be(one, outcomes) for one in rules]
            return {True: any(one[True] for one in each), False: all(one[False] for one in each)}
        case Nothing(rules):
            some = _can_be(Some(rules), outcomes)
            return {True: some[False], False: some[True]}
        case _:
            assert_never(rule)


def _named(rule: TriggerRule) -> Iterator[DependencyEnded]:
    match rule:
        case DependencyEnded():
            yield rule
        case Compare():
            return
        case Every(rules) | Some(rules) | Nothing(rules):
            for one in rules:
                yield from _named(one)
        case _:
            assert_never(rule)


def _before(steps: Sequence[WrittenStep], index: int) -> list[int]:
    """All steps before this one, each after the steps that it needs. Without recursion: a chain may be long."""
    order: list[int] = []
    seen = {index}
    walk = [(index, iter(steps[index].needs))]
    while walk:
        step, needs = walk[-1]
        needed = next(needs, None)
        if needed is None:
            walk.pop()
            order.append(step)
        elif needed not in seen:
            seen.add(needed)
            walk.append((needed, iter(steps[needed].needs)))
    order.pop()  # the step itself comes last
    return order
