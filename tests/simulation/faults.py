"""What goes wrong in a seed. Kinds are switched on or off and given rates by the seed (a swarm: with every kind always
on, each hides the others); every single fault has a name that stays the same when others are left out.
"""

from collections import Counter
from random import Random
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from .focus import Focus

LEVEL0_KINDS: Final = ("peer_killed", "peer_paused")
BREAKER_KINDS: Final = (
    "handler_unavailable",  # what a handler needs is down, and it says so
    "operator_breaker",
)
KINDS: Final = (
    # messages
    "loss",
    "duplicate",
    "late_duplicate",
    "delay",
    "reorder",
    "partition",
    "hwm_burst",
    "slow_joiner",
    "stale_delivery",  # what was on its way to a broker that died reaches the one that comes after it
    # the broker
    "broker_killed",
    "broker_killed_loading",
    "broker_killed_handed",
    "broker_killed_before_commit",
    "broker_killed_after_commit",
    "broker_killed_before_send",
    "broker_killed_between_sends",
    "broker_paused",
    "broker_stopped",
    "wall_jump",
    # workers
    "worker_killed",
    "worker_killed_before_start",
    "worker_killed_after_effect",
    "worker_killed_after_result",
    "worker_paused",
    "worker_drained",
    "worker_forgets",  # the supervisor says `gone` of a worker
    # the database
    "error_before_commit",
    "error_after_commit",
    "slow_commit",
    "disk_full",
    "locked",
    "fsync_failed",
    "data_refused",
    "read_failed",
    # people
    "submitted_twice",
    "key_conflict",
    "client_gone",
    "operator_cancel",
    "operator_drain",
    "operator_pause",
    "operator_retry",
    "operator_retry_from",
    "operator_resolve",
    *LEVEL0_KINDS,
    "slow_read",  # what was read is long not so any more when it is heard
    *BREAKER_KINDS,
)
OFTEN: Final = 0.7  # in the half of the seeds that can have them
MESSAGE_KINDS: Final = frozenset(
    {"loss", "duplicate", "late_duplicate", "delay", "reorder", "hwm_burst", "slow_joiner"}
)
DEATH_KINDS: Final = frozenset(
    {"worker_killed", "worker_killed_before_start", "worker_killed_after_effect", "worker_killed_after_result"}
)
RESTART_KINDS: Final = frozenset(kind for kind in KINDS if kind.startswith("broker_killed")) | {"broker_stopped"}
PAUSE_KINDS: Final = frozenset({"broker_paused", "slow_commit"})


class Faults:
    """`kept`: only these named ones strike (None: all). Whoever asks draws his luck first, so that the rest of the seed
    is drawn the same whatever is left out."""

    def __init__(
        self,
        seed: int,
        kept: frozenset[str] | None = None,
        only: frozenset[str] | None = None,
        focus: "Focus | None" = None,
    ) -> None:
        self.kept = kept
        self.fired: list[str] = []
        self.counts: Counter[str] = Counter()
        self.is_over = False
        chance = Random(f"faults/{seed}")
        if only is None:
            shape = chance.random()
            if shape < 0.08:
                only = frozenset({"loss"})
            elif shape < 0.16:
                only = MESSAGE_KINDS
            elif shape < 0.20:
                only = frozenset()
            elif shape < 0.26:
                only = DEATH_KINDS
            elif shape < 0.32:
                only = RESTART_KINDS
            elif shape < 0.36:
                only = PAUSE_KINDS
        share = chance.choice((0.15, 0.35, 0.6))
        # In the order in which they came to be: a seed stays what it was.
        chances = dict.fromkeys(KINDS, chance) | dict.fromkeys(LEVEL0_KINDS, Random(f"faults/level0/{seed}"))
        chances["slow_read"] = Random(f"faults/slow_read/{seed}")
        chances |= dict.fromkeys(BREAKER_KINDS, Random(f"faults/breakers/{seed}"))
        self.on = {kind for kind in KINDS if chances[kind].random() < (OFTEN if kind in BREAKER_KINDS else share)}
        if only is not None:
            self.on = set(only)
        self.rates = {kind: chances[kind].random() for kind in KINDS}
        if focus is not None:
            self.on = set(focus.kinds)
            for kind in sorted(focus.often):
                self.rates[kind] = 0.7 + 0.3 * self.rates[kind]
        self.only_messages = self.on <= MESSAGE_KINDS

    def rate(self, kind: str, most: float, least: float = 0.0) -> float:
        """The seed's own probability of this kind; 0 if it is off. The square: mostly low, sometimes high."""
        return least + (most - least) * self.rates[kind] ** 2 if kind in self.on else 0.0

    def strikes(self, kind: str, name: object) -> bool:
        """Somebody's luck was bad: does it happen?"""
        if self.is_over:
            return False
        number = f"{kind} {name}"
        if self.kept is not None and number not in self.kept:
            return False
        self.fired.append(number)
        self.counts[kind] += 1
        return True
