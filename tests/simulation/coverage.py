"""What a campaign has to have met: every transition, every event, every timer, every kind of fault. What it cannot meet
is listed here, with the reason.
"""

from collections import Counter
from typing import Final, get_args

from stepwire_broker.core import machine
from stepwire_broker.core.guards import breaker
from stepwire_broker.core.model.states import STEP_TRANSITIONS, TASK_FINAL, TASK_TRANSITIONS
from stepwire_broker.core.timer_kinds import AnyTimer

from .faults import KINDS

IMPOSSIBLE: Final[dict[tuple[str, str], str]] = {
    ("event", "PeersUncertain"): "every connection of this world has a name; the core's own tests have such a peer",
    ("event", "MessageIgnored"): "every sender of this world has this version; the core's own tests have a later one",
    ("event", "FrameRefused"): "this network carries whole frames; the core's own tests have a broken one",
    ("event", "Fenced"): "on SQLite the lock of the file is the lease: there is no second broker",
    ("timer", "StartLimit"): "no worker of this world does without heartbeats; the core's own tests have one",
}
IMPOSSIBLE |= {
    ("step", f"restored: {before} → held"): "a broker does not run while a backup takes its database's place"
    for before in ("waiting", "ready", "dispatched", "retry_wait")
}

# Met about once in a thousand seeds: a small campaign need not.
RARE_FROM_SEEDS: Final = 20_000
RARE: Final = {
    ("step", "backed_off: held → retry_wait"),
    ("step", "reopened: retry_wait → waiting"),
    ("timer", "ReloadDue"),
}


def wanted() -> list[tuple[str, str]]:
    found = [("event", kind.__name__) for kind in machine.HANDLERS]
    found += [("timer", kind.__name__) for kind in get_args(AnyTimer)]
    found += [("fault", kind) for kind in KINDS]
    found += [("breaker", str(state)) for state in breaker.BreakerPhase]
    for fact, moves in STEP_TRANSITIONS.items():
        found += [("step", f"{_tag(fact)}: {before} → {after}") for before, after in moves.items()]
    for task_fact, ways in TASK_TRANSITIONS.items():
        for before, after in ways.items():
            ends = [after] if after is not None else sorted(TASK_FINAL)
            found += [("task", f"{_tag(task_fact)}: {before} → {end}") for end in ends]
    return found


def missing(counts: Counter[tuple[str, str]], seeds: int) -> list[tuple[str, str]]:
    excused = IMPOSSIBLE.keys() | (RARE if seeds < RARE_FROM_SEEDS else set())
    return [each for each in wanted() if not counts[each] and each not in excused]


def _tag(fact: type) -> str:
    return str(fact.__struct_config__.tag)  # type: ignore[attr-defined]
