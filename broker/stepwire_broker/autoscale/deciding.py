"""How many copies to start or to end. Pure: the same figures give the same decision.

A copy occupies one slot with one step, so the target of utilisation is 1: growth goes at once to the number of copies
with which every step has a slot. Copies end one at a time, after a cool-down, and only below half of the slots in use.
"""

from enum import StrEnum
from typing import Final

from msgspec import Struct

from stepwire_broker.core.pools.scaling import DOWN_FROM, needed_for

TARGET: Final = 1.0


class ChangeReason(StrEnum):
    BUSY = "busy"  # grew: steps wait that the slots of all workers cannot take
    BELOW_MIN = "below_min"  # grew to the smallest number, whatever its backlog
    IDLE = "idle"  # shrank: fewer than half of the slots are in use
    STEADY = "steady"
    AT_MAX = "at_max"  # busy, and as many copies as allowed
    STARTING = "starting"  # busy: the copies that are starting come first
    COOLING_DOWN = "cooling_down"  # idle: the last change was too short a time ago
    LEAVING = "leaving"  # idle: the copy that is leaving comes first
    NO_TAKER = "no_taker"  # steps wait, and these workers do not get them


class CopyLimits(Struct, frozen=True):
    """The options of the command. `least` and `most`: copies. `step`: copies started by one decision."""

    least: int
    most: int
    step: int
    cooldown_ms: int


class CopyFigures(Struct, frozen=True):
    """The backlog and the copies at one moment. `load`: steps of the deployment that wait or run, without those that no
    further worker would help. `copies`: those that are not leaving. `starting`: those of them without a session.
    `slots_per_copy`: None until a copy has named its slots. `other_slots`: of workers that another command has
    started."""

    load: int
    copies: int
    starting: int = 0
    leaving: int = 0
    slots_per_copy: int | None = None
    other_slots: int = 0
    unfit: int = 0  # steps that wait and that workers of this kind do not get
    are_other_workers: bool = False  # the copies do not offer the handlers, or lack the labels


class ChangeDecision(Struct, frozen=True):
    """The number of copies to start, or as a negative number, to end."""

    change: int
    reason: ChangeReason


def decide(limits: CopyLimits, seen: CopyFigures, since_change_ms: int | None) -> ChangeDecision:
    """`since_change_ms`: the time since the last change; None before the first one."""
    needed = copies_needed(seen)
    if seen.copies < limits.least:
        return ChangeDecision(min(limits.least - seen.copies, limits.step), ChangeReason.BELOW_MIN)
    if needed > seen.copies and seen.are_other_workers:
        return ChangeDecision(0, ChangeReason.NO_TAKER)
    if needed > seen.copies:
        return _growing(limits, seen, needed)
    wanted = max(needed, limits.least)
    if seen.copies > wanted and (_is_idle(seen) or seen.copies > limits.most):
        return _shrinking(limits, seen, since_change_ms)
    return ChangeDecision(0, ChangeReason.NO_TAKER if seen.unfit and not seen.load else ChangeReason.STEADY)


def copies_needed(seen: CopyFigures) -> int:
    """Return the number of copies with which every step has a slot, next to the workers of others."""
    load = max(0, seen.load - seen.other_slots)
    if seen.slots_per_copy is None:
        return min(load, 1)  # the first copy names its slots
    return needed_for(load / seen.slots_per_copy, TARGET)


def _growing(limits: CopyLimits, seen: CopyFigures, needed: int) -> ChangeDecision:
    """Two autoscalers see the workers of each other once these have a session. Each waits for its own copies before it
    starts further ones, so that together they exceed what the backlog needs by at most one step."""
    if seen.copies >= limits.most:
        return ChangeDecision(0, ChangeReason.AT_MAX)
    if seen.starting:
        return ChangeDecision(0, ChangeReason.STARTING)
    return ChangeDecision(min(needed - seen.copies, limits.step, limits.most - seen.copies), ChangeReason.BUSY)


def _shrinking(limits: CopyLimits, seen: CopyFigures, since_change_ms: int | None) -> ChangeDecision:
    if seen.starting or seen.leaving:
        return ChangeDecision(0, ChangeReason.STARTING if seen.starting else ChangeReason.LEAVING)
    if since_change_ms is not None and since_change_ms < limits.cooldown_ms:
        return ChangeDecision(0, ChangeReason.COOLING_DOWN)
    return ChangeDecision(-1, ChangeReason.IDLE)


def _is_idle(seen: CopyFigures) -> bool:
    """Another autoscaler may end a copy at the same moment, so that two copies must be dispensable."""
    per_copy = seen.slots_per_copy or 1
    slots = seen.copies * per_copy + seen.other_slots
    left = slots - per_copy * (2 if seen.other_slots else 1)
    return seen.load < DOWN_FROM * TARGET * slots and seen.load <= left
