"""`python -m tests.protocol.planted_sessions.measure [TEXT …]`: which part of the kit notices each fault.

With texts: only the faults whose names contain one of them.

Writes planted.json: for each fault the first dialogue, the first seed of the hostile broker and the first seed of
lockstep that notices it, or null. The suite repeats exactly these, and this command looks for them.
"""

import functools
import json
import multiprocessing
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

from conformance import dialogue as dialogues
from conformance.driver_process import Failed
from conformance.hostile.command import play
from conformance.lockstep.compare import first_difference
from conformance.lockstep.reference import generate
from conformance.worker_stage import grade

from .faults import FAULTS
from .plant import Fault, driver_with

TABLE: Final = Path(__file__).with_name("planted.json")
SEEDS: Final = range(200)
SECONDS_MAX: Final = 6.0  # for one part of the kit and one fault

Noticed = dict[str, Any]


class InProcess:
    """A driver in this process, in the form that the dialogues use."""

    def __init__(self, driver: type[Any]) -> None:
        self._driver = driver()

    def exchange(self, op: dict[str, Any]) -> dict[str, Any]:
        reply = self.try_exchange(op)
        if "error" in reply:
            raise Failed(f"the driver reports an error: {reply['error']}")
        return reply

    def try_exchange(self, op: dict[str, Any]) -> dict[str, Any]:
        try:
            reply: dict[str, Any] = self._driver.handle(op)
        except Exception as fault:
            return {"error": repr(fault)}
        return reply


def by_dialogue(driver: type[Any], dialogue: dialogues.Dialogue) -> bool:
    return grade(dialogue, InProcess(driver)) is not None


def by_hostile(driver: type[Any], seed: int) -> bool:
    return play(seed, InProcess(driver).try_exchange)[1] is not None


def by_lockstep(driver: type[Any], seed: int) -> bool:
    ops, expected = _generated(seed)
    process = InProcess(driver)
    for op, ours in zip(ops, expected, strict=True):
        if first_difference([op], [ours], [process.try_exchange(op)]) is not None:
            return True
    return False


@functools.cache
def _generated(seed: int) -> Any:
    return generate(seed)


def noticed(fault: Fault) -> Noticed:
    """The first of each part of the kit that notices the fault."""
    driver = driver_with(fault)
    named = {d.name: d for d in dialogues.load() if "worker" in d.drives}
    return {
        "dialogue": _first(named, lambda name: by_dialogue(driver, named[name])),
        "hostile": _first(SEEDS, lambda seed: by_hostile(driver, seed)),
        "lockstep": _first(SEEDS, lambda seed: by_lockstep(driver, seed)),
    }


def _first(candidates: Any, notices: Callable[[Any], bool]) -> Any:
    end = time.monotonic() + SECONDS_MAX
    for candidate in candidates:
        if time.monotonic() > end:
            return None
        if notices(candidate):
            return candidate
    return None


def _measure(fault: Fault) -> tuple[str, Noticed]:
    return fault.name, noticed(fault)


def main(texts: list[str]) -> None:
    chosen = [fault for fault in FAULTS if not texts or any(text in fault.name for text in texts)]
    table: dict[str, Noticed] = json.loads(TABLE.read_text()) if TABLE.exists() else {}
    for seed in SEEDS:
        _generated(seed)  # once, before the processes are forked
    with multiprocessing.get_context("fork").Pool(2) as pool:
        for name, found in pool.imap(_measure, chosen):
            table[name] = found
            print(f"{name:65} {found['dialogue']!s:.45}  hostile {found['hostile']}  lockstep {found['lockstep']}")
    ordered = {fault.name: table[fault.name] for fault in FAULTS if fault.name in table}
    TABLE.write_text(json.dumps(ordered, indent=1, ensure_ascii=False) + "\n")
    counts = {
        part: sum(found[part] is not None for found in ordered.values()) for part in ("dialogue", "hostile", "lockstep")
    }
    unnoticed = [name for name, found in ordered.items() if all(by is None for by in found.values())]
    print(
        f"{len(ordered)} faults; noticed by dialogues {counts['dialogue']}, hostile {counts['hostile']}, "
        f"lockstep {counts['lockstep']}; by none: {unnoticed}"
    )


if __name__ == "__main__":
    main(sys.argv[1:])
