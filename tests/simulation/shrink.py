"""Reduces a failing seed to the few faults that make it fail: delta debugging over the named faults.

Random numbers are drawn whether or not a fault strikes, so everything before the first fault left out stays the same.
"""

from typing import Final

from .driven import Drivers
from .world import World

RUNS_MAX: Final = 400


def shrink(
    seed: int, drivers: Drivers | None = None, always: frozenset[str] = frozenset(), brokers: int = 1
) -> tuple[list[str], int]:
    """Return the faults that suffice to break the same promise, and the number of runs that took."""
    first = World(seed, drivers=drivers, always=always, brokers=brokers).run()
    assert first.violation is not None, f"seed {seed} does not fail"
    promise = _promise(first.violation)
    runs = 1

    def fails(kept: list[str]) -> bool:
        nonlocal runs
        runs += 1
        violation = World(seed, frozenset(kept), drivers=drivers, always=always, brokers=brokers).run().violation
        return violation is not None and _promise(violation) == promise

    kept = list(dict.fromkeys(first.fired))
    if fails([]):
        return [], runs
    parts = 2
    while len(kept) >= 2 and runs < RUNS_MAX:
        size = -(-len(kept) // parts)
        chunks = [kept[i : i + size] for i in range(0, len(kept), size)]
        for i, chunk in enumerate(chunks):
            rest = [fault for j, other in enumerate(chunks) if j != i for fault in other]
            if parts == 2 and fails(chunk):
                kept, parts = chunk, 2
                break
            if fails(rest):
                kept, parts = rest, max(parts - 1, 2)
                break
            if runs >= RUNS_MAX:
                break
        else:
            if parts >= len(kept):
                break
            parts = min(len(kept), 2 * parts)
    return kept, runs


def _promise(violation: str) -> str:
    return violation.partition(":")[0]
