"""Cycles among the dependencies of a workflow's steps: finding them, and showing one in a message."""

from collections.abc import Iterator
from typing import Final

CYCLE_STEPS_SHOWN: Final = 10


def cycles(needs: list[tuple[int, ...]]) -> Iterator[list[int]]:
    """Yield one cycle of each group of steps that wait for each other. Each step of a cycle depends on the next.

    Linear in steps and edges, and without recursion.
    """
    waits = [len(each) for each in needs]
    dependents: list[list[int]] = [[] for _ in needs]
    for step, each in enumerate(needs):
        for needed in each:
            dependents[needed].append(step)
    free = [step for step, count in enumerate(waits) if count == 0]
    while free:
        for dependent in dependents[free.pop()]:
            waits[dependent] -= 1
            if waits[dependent] == 0:
                free.append(dependent)
    # Each remaining step waits for a remaining step: walking along its dependencies must return to a step of the walk.
    walked_from: dict[int, int] = {}
    for start in (step for step, count in enumerate(waits) if count):
        walk: list[int] = []
        step = start
        while step not in walked_from:
            walked_from[step] = start
            walk.append(step)
            step = next(needed for needed in needs[step] if waits[needed])
        if walked_from[step] == start:
            yield walk[walk.index(step) :]


def drawn(cycle: list[str]) -> str:
    """Return `a needs b, which needs c, which needs a` for a message."""
    omitted = len(cycle) - CYCLE_STEPS_SHOWN
    shown_names = cycle if omitted <= 0 else [*cycle[:CYCLE_STEPS_SHOWN], f"({omitted} more)"]
    first, *others = [*shown_names, cycle[0]]
    return f"the steps wait for each other: {first} needs " + ", which needs ".join(others)
