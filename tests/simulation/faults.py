"""The faults of a seed, which switches each kind on or off and gives it a rate: kinds always on hide each other.

Every single fault has a name that stays the same when other faults are left out.
"""

from collections import Counter
from random import Random
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from .focus import Focus

LEVEL0_KINDS: Final = ("peer_killed", "peer_paused")
BREAKER_KINDS: Final = (
    "handler_unavailable",  # a service that the handler needs is down, and the handler reports it
    "operator_breaker",
)
HOSTILE_KINDS: Final = ("forged", "revoked")
ERASE_KINDS: Final = ("operator_erase",)
KEY_KINDS: Final = (
    "server_key_rotated",
    "broker_killed_rotating",  # at any step of the rotation
)
CREDIT_KINDS: Final = (
    "worker_quiet",  # its program stops to offer credit, and ends later
    "worker_full",  # its runner has no room for a while
)
LANE_KINDS: Final = ("lane_lost",)  # only with one broker, and only if they are asked for
CLUSTER_KINDS: Final = (  # only with several brokers
    "broker_away",  # it is killed, and its next start comes long after the end of its lease
    "database_cut",  # the network between one broker and the database, one way or both
    "database_down",  # the outcome of every open transaction is unknown
    "beats_stopped",  # the thread that beats stands still while the loop turns
    "loop_hangs",  # the loop stands still while the threads go on
    "worker_elsewhere",  # a worker process is connected to one broker only, until the faults end
    "late_commit",  # a COMMIT is executed up to 30 s after its client gave up
)
# Added later, and drawn apart, so that older seeds stay the same.
MOVE_KINDS: Final = (
    "lane_moved",  # an operator gives a lane to another broker
    "database_clock",  # the clock of the database is set
    "commits_lost",  # the database returns to an earlier state: the end of the seed
    "broker_older",  # a broker has an older version, until it is upgraded at the end
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
    "stale_delivery",  # a message to a broker that died reaches the next one
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
    "worker_forgets",  # the supervisor sends `gone` for a worker
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
    "slow_read",  # the answer to a read reaches the core long after the read
    *BREAKER_KINDS,
    "worker_killed_after_hello",  # the end of its subscription and its hello reach the broker in any order
    *HOSTILE_KINDS,
    *CREDIT_KINDS,
    *ERASE_KINDS,
    *KEY_KINDS,
)
OFTEN: Final = 0.7  # in the half of the seeds that can have them
SELDOM: Final = 0.08
MESSAGE_KINDS: Final = frozenset(
    {"loss", "duplicate", "late_duplicate", "delay", "reorder", "hwm_burst", "slow_joiner"}
)
DEATH_KINDS: Final = frozenset(
    {
        "worker_killed",
        "worker_killed_before_start",
        "worker_killed_after_effect",
        "worker_killed_after_result",
        "worker_killed_after_hello",
    }
)
RESTART_KINDS: Final = frozenset(kind for kind in KINDS if kind.startswith("broker_killed")) | {"broker_stopped"}
PAUSE_KINDS: Final = frozenset({"broker_paused", "slow_commit"})


class Faults:
    """The faults of one seed. `kept`: only faults with these names strike; None: all.

    A caller draws its random numbers before it calls `strikes`, so that faults left out change nothing else.
    """

    def __init__(
        self,
        seed: int,
        kept: frozenset[str] | None = None,
        only: frozenset[str] | None = None,
        focus: "Focus | None" = None,
        always: frozenset[str] = frozenset(),
        has_several: bool = False,
    ) -> None:
        """`always`: kinds that are on whatever the seed says. The seed still gives them their rates. `has_several`:
        there are several brokers."""
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
        # In the order in which the kinds were added, so that older seeds stay the same.
        chances = dict.fromkeys(KINDS, chance) | dict.fromkeys(LEVEL0_KINDS, Random(f"faults/level0/{seed}"))
        chances["slow_read"] = Random(f"faults/slow_read/{seed}")
        chances |= dict.fromkeys(BREAKER_KINDS, Random(f"faults/breakers/{seed}"))
        chances["worker_killed_after_hello"] = Random(f"faults/after_hello/{seed}")
        chances |= dict.fromkeys(HOSTILE_KINDS, Random(f"faults/hostile/{seed}"))
        chances |= dict.fromkeys(CREDIT_KINDS, Random(f"faults/credit/{seed}"))
        chances |= dict.fromkeys(ERASE_KINDS, Random(f"faults/erase/{seed}"))
        chances |= dict.fromkeys(KEY_KINDS, Random(f"faults/keys/{seed}"))
        shares = dict.fromkeys(KINDS, share) | dict.fromkeys((*BREAKER_KINDS, *HOSTILE_KINDS), OFTEN)
        shares |= dict.fromkeys((*CREDIT_KINDS, *ERASE_KINDS, *KEY_KINDS), SELDOM)
        self.on = {kind for kind in KINDS if chances[kind].random() < shares[kind]}
        if only is not None:
            self.on = set(only)
        self.rates = {kind: chances[kind].random() for kind in KINDS}
        if has_several:
            of_several = Random(f"faults/cluster/{seed}")
            on = {kind for kind in CLUSTER_KINDS if of_several.random() < max(share, 0.35)}
            self.on |= on if only is None else set()
            self.rates |= {kind: of_several.random() for kind in CLUSTER_KINDS}
            for kind in MOVE_KINDS:
                of_kind = Random(f"faults/cluster/{kind}/{seed}")
                self.on |= {kind} if of_kind.random() < SELDOM and only is None else set()
                self.rates[kind] = of_kind.random()
        self.rates |= {kind: Random(f"faults/{kind}/{seed}").random() for kind in LANE_KINDS}
        if focus is not None:
            self.on = set(focus.kinds)
            for kind in sorted(focus.often):
                self.rates[kind] = 0.7 + 0.3 * self.rates[kind]
        self.on |= always
        self.only_messages = self.on <= MESSAGE_KINDS

    def rate(self, kind: str, most: float, least: float = 0.0) -> float:
        """The probability of this kind in this seed; 0 if it is off. Squared, so mostly low and sometimes high."""
        return least + (most - least) * self.rates[kind] ** 2 if kind in self.on else 0.0

    def strikes(self, kind: str, name: object) -> bool:
        """Return whether this fault strikes, and record it. The caller has already drawn it."""
        if self.is_over:
            return False
        number = f"{kind} {name}"
        if self.kept is not None and number not in self.kept:
            return False
        self.fired.append(number)
        self.counts[kind] += 1
        return True
