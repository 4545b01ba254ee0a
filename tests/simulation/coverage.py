"""The coverage of a campaign: every transition, event, timer and kind of fault. Exceptions are listed with reasons."""

from collections import Counter
from typing import Final, get_args

from stepwire_broker.core import machine
from stepwire_broker.core.guards import breaker
from stepwire_broker.core.model.states import STEP_TRANSITIONS, TASK_FINAL, TASK_TRANSITIONS
from stepwire_broker.core.timer_kinds import AnyTimer

from .faults import KINDS

IMPOSSIBLE: Final[dict[tuple[str, str], str]] = {
    ("event", "PeersUncertain"): "every connection in this world has a name; the core's own tests have one without",
    ("event", "MessageIgnored"): "every sender in this world has this version; the core's own tests have a later one",
    ("event", "FrameRefused"): "this network carries only whole frames; the core's own tests have a broken one",
    ("event", "LaneLost"): "on SQLite the file lock is the lease, so there is no second broker",
    ("event", "LanesTaken"): "there is no second broker",
    ("event", "LostCommits"): "this database loses nothing",
    ("event", "ReleaseLane"): "there is no second broker",
    ("event", "LaneReleased"): "there is no second broker",
    ("timer", "ReleaseDue"): "there is no second broker",
    **{
        ("event", kind): "there is no second broker"
        for kind in (
            "Beaten",
            "CatalogueRead",
            "Explain",
            "ExplainSteps",
            "HttpServed",
            "LearnCatalogue",
            "LookedAround",
            "MoveLane",
            "Notification",
            "ReportResult",
            "ResultsTaken",
        )
    },
    ("timer", "LookDue"): "there is no second broker",
    ("timer", "StartLimit"): "every worker in this world sends heartbeats; the core's own tests have one that does not",
}
IMPOSSIBLE |= {
    ("step", f"restored: {before} → held"): "no broker runs while a backup replaces its database"
    for before in ("waiting", "ready", "dispatched", "retry_wait")
}

# Reached about once in a thousand seeds: a small campaign may miss them.
RARE_FROM_SEEDS: Final = 20_000
RARE: Final = {
    ("step", "backed_off: held → retry_wait"),
    ("step", "undelivered: held → ready"),
    ("step", "reopened: retry_wait → waiting"),
    ("timer", "ReloadDue"),
}


def required() -> list[tuple[str, str]]:
    kinds = [("event", kind.__name__) for kind in (machine.MESSAGES | machine.HANDLERS)]
    kinds += [("timer", kind.__name__) for kind in get_args(AnyTimer)]
    kinds += [("fault", kind) for kind in KINDS]
    kinds += [("breaker", str(state)) for state in breaker.BreakerPhase]
    for fact, moves in STEP_TRANSITIONS.items():
        kinds += [("step", f"{_tag(fact)}: {before} → {after}") for before, after in moves.items()]
    for task_fact, ways in TASK_TRANSITIONS.items():
        for before, after in ways.items():
            ends = [after] if after is not None else sorted(TASK_FINAL)
            kinds += [("task", f"{_tag(task_fact)}: {before} → {end}") for end in ends]
    return kinds


def missing(counts: Counter[tuple[str, str]], seeds: int) -> list[tuple[str, str]]:
    exceptions = IMPOSSIBLE.keys() | (RARE if seeds < RARE_FROM_SEEDS else set())
    return [each for each in required() if not counts[each] and each not in exceptions]


def _tag(fact: type) -> str:
    return str(fact.__struct_config__.tag)  # type: ignore[attr-defined]
