"""One seed: one to three brokers, their database, workers and people, and faults among them.

Then all faults stop, and every task must end.
"""

from collections import Counter
from random import Random
from typing import Any, Final, NamedTuple
from zlib import crc32

import msgspec
from stepwire_broker.core.commit.id_blocks import block_of
from stepwire_broker.core.definitions.settings import (
    BatchSettings,
    BusSettings,
    Level0Settings,
    LimitSettings,
    Settings,
)
from stepwire_broker.core.model.commit_group import CommitGroup
from stepwire_broker.core.state import SLICE_STEPS
from stepwire_broker.store.lane import Rows
from stepwire_protocol import limits as limits_of_wire

from tests.memory_store.tables import DataRefused

from . import focus
from .breakers import Breakers
from .broker_node import BrokerNode
from .checks import Checks, Violation, owners
from .clock import WALL_START_MS, Endless, Schedule
from .driven import DrivenNode, Drivers
from .faults import BREAKER_KINDS, HOSTILE_KINDS, KEY_KINDS, LANE_KINDS, Faults
from .flows import AT_LEVEL0, COUNT
from .follower import Follower
from .hostile import Hostile
from .lane_changes import ELSEWHERE, LaneChanges
from .lost_commits import LostCommits
from .membership import VERSION
from .network import Network
from .peer_node import HANDLER, PeerNode
from .people import People
from .planned_faults import PlannedFaults
from .quotas import Quotas
from .routes import Routes
from .server import Server
from .server_keys import ServerKeys
from .stores import MemoryStore, SqliteStore
from .worker_node import WorkerNode

HEALED_MS: Final = 600_000.0  # after the last fault: every task must have ended by then
SETTLED_MS: Final = 60_000.0
DOUBTED_MS: Final = 40_000.0  # after the last fault: every earlier lease has ended by then
BALANCED_MS: Final = 90_000.0  # after the last fault: every lane is served, and every broker has its share
STEADY_MS: Final = 30_000.0
HOSTILE_SHARE: Final = 0.15  # of the seeds with several brokers, which else would have a thief nearly always
BALANCE_EVERY: Final = 4  # one seed in this many waits for the balance, in which nothing else happens
EVENTS_MAX: Final = 600_000
TRACE_MAX: Final = 4_000


class Report(NamedTuple):
    seed: int
    violation: str | None
    trace_hash: int
    events: int
    simulated_ms: float
    faults: dict[str, int]
    fired: list[str]
    counts: dict[tuple[str, str], int]
    figures: dict[str, int]
    trace: list[str]
    cpu_s: float = 0.0


class Hashes(dict[str, int]):
    def __missing__(self, text: str) -> int:
        value = self[text] = crc32(text.encode())
        return value


LANES: Final = (1, 1, 1, 2, 3, 4)


class World:
    def __init__(
        self,
        seed: int,
        kept: frozenset[str] | None = None,
        only: frozenset[str] | None = None,
        keeps_trace: bool = False,
        is_sqlite: bool | None = None,
        drivers: Drivers | None = None,
        always: frozenset[str] = frozenset(),
        lanes: int | None = None,
        brokers: int = 1,
    ) -> None:
        """`drivers`: the sessions of the workers on the bus; None: Python's, in this process. `always`: kinds of faults
        that every seed has. `lanes`: the number of lanes of a database in memory; None: the seed decides. SQLite has
        one. `brokers`: with several, the database is in memory, and the parts that know one broker only are off."""
        self.seed = seed
        self.chance = Random(f"{seed}/world")
        self.schedule = Schedule(EVENTS_MAX)
        self.focus = focus.of(seed, brokers) if only is None else None
        self.faults = Faults(seed, kept, only, self.focus, always, has_several=brokers > 1)
        self.counts: Counter[tuple[str, str]] = Counter()
        self.trace_hash = 0
        self._traced = Hashes()
        self.keeps_trace = keeps_trace
        self.lines: list[str] = []
        self.settings = self._settings()
        self._level0 = Random(f"{seed}/level0")
        is_alone = brokers == 1
        if not is_alone:
            self.faults.on -= set(KEY_KINDS)
            if Random(f"{seed}/hostile/several").random() >= HOSTILE_SHARE:
                self.faults.on -= set(HOSTILE_KINDS) - always
        peers = 0 if self.focus is not None else self._level0.choice((0, 0, 0, 0, 0, 0, 0, 1, 2, 3))
        self.flows_count = COUNT
        if peers:
            self.settings = self._with_level0(self.settings)
        self.breakers = Breakers(self)
        self.settings = self.breakers.settings(self.settings)
        if not self.breakers.is_on:
            self.faults.on -= set(BREAKER_KINDS)
        self.quotas = Quotas(self, is_possible=self.focus is None)
        self.settings = self.quotas.settings(self.settings)
        self.routes = Routes(self, is_possible=self.focus is None and not peers)
        self.settings = self.routes.settings(self.settings)
        self.server_keys = ServerKeys(self, is_possible=not peers and is_alone)
        self._refused_rate = self.faults.rate("data_refused", 0.02)
        if self.focus is not None and self.focus.refused_rate is not None:
            self._refused_rate = self.focus.refused_rate
        self._refused_tasks: set[int] = set()
        self._refused_chance = Random(f"{seed}/refused")
        self.slice_steps = Random(f"{seed}/slices").choice((1, 3, SLICE_STEPS, SLICE_STEPS))
        on_sqlite = self.chance.random() < 0.2
        self.checks = Checks(self)
        by_seed = Random(f"{seed}/lanes").choice(LANES)
        if not is_alone:
            by_seed = brokers * (1 + by_seed % 2)
        if self.faults.on.intersection(LANE_KINDS):
            by_seed, is_sqlite = max(by_seed, 2), False
        self.store: Any
        if is_alone and (on_sqlite if is_sqlite is None else is_sqlite):
            self.store = SqliteStore(self._refuse, self.checks.committed)
        else:
            self.store = MemoryStore(self._refuse, self.checks.committed, by_seed if lanes is None else lanes)
        self.count("lanes", str(len(self.store.tables.seqs)))
        self.tables = self.store.tables
        self.restarts_workers = self.chance.random() < 0.8
        self.hostile = Hostile(self)
        self.network = Network(self)
        self.brokers = [BrokerNode(self, i) for i in range(brokers)]
        self.broker = self.brokers[0]
        self.server = None if is_alone else Server(self)
        self.database_jumped_ms = 0
        self.tables.now_ms = lambda: WALL_START_MS + int(self.now) + self.database_jumped_ms
        self.tables.true_ms = lambda: WALL_START_MS + int(self.now)
        self._askers = Random(f"{seed}/askers")
        workers = self.chance.choice((1, 2, 2, 3, 3, 4, 6))
        if self.focus is not None:
            workers = 2 + workers % 2
        self.workers = [
            WorkerNode(self, i) if drivers is None else DrivenNode(self, i, drivers) for i in range(workers)
        ]
        self.on_bus = len(self.workers)
        self.workers += self.routes.workers(self.on_bus)
        self.peers = [PeerNode(self, i) for i in range(peers)]
        self.lane_changes = LaneChanges(self)
        self.people = People(self)
        self.planned_faults = PlannedFaults(self)
        self.follower = Follower(self)
        self.lost_commits = LostCommits(self)
        self.quieted: set[str] = set()
        self.phase_ms = 1_000.0 * self.chance.choice((5, 10, 15, 20, 30, 45, 60, 90))
        if self.chance.random() < 0.05:
            self.phase_ms = 200_000.0
        if self.focus is not None:
            self.phase_ms = self.focus.phase_ms

    @property
    def now(self) -> float:
        return self.schedule.now

    def clock_rate(self) -> float:
        return 1.0 + 0.01 * (2.0 * self.chance.random() - 1.0)

    def _settings(self) -> Settings:
        chance = self.chance
        limits = LimitSettings(
            max_active_tasks=chance.choice((2, 4, 50_000, 50_000)),
            resident_payload_bytes=chance.choice((40, 100, 16 * 1024, 16 * 1024)),
            active_bytes=chance.choice((600, 1 << 28, 1 << 28)),
            uncommitted_bytes=chance.choice((3_000, *(1 << 26,) * 7)),
            max_open_steps=chance.choice((30, *(1_000_000,) * 7)),
        )
        bus = BusSettings(
            batch=BatchSettings(max_steps=chance.choice((1, 2, 10, 10))),
            max_message_bytes=chance.choice((4_000, *(limits_of_wire.MESSAGE_BYTES_MAX,) * 7)),
            lost_sessions_max=chance.choice((1, 3, 3, 3)),
        )
        self.leases_ms = chance.choice(((5_000, 10_000, 20_000), *((10_000,),) * 6))
        if self.focus is not None:
            limits = self.focus.limits(limits)
        return Settings(bus=bus, limits=limits)

    def _with_level0(self, settings: Settings) -> Settings:
        """Allow level 0. Steps that it may not run must have another handler."""
        chance = self._level0
        level0 = Level0Settings(
            handlers=chance.choice((("**",), (HANDLER,))),
            at_most_once=chance.random() < 0.5,
            batch_max_steps=chance.choice((1, 1, 1, 3)),
        )
        self.flows_count += 2 * AT_LEVEL0 if level0.at_most_once else AT_LEVEL0
        return msgspec.structs.replace(settings, bus=msgspec.structs.replace(settings.bus, level0=level0))

    def settings_of_next_start(self, broker: BrokerNode) -> Settings:
        """Each start may have another lease, while workers still use the one before."""
        lease_ms = self.chance.choice(self.leases_ms)
        if self.focus is not None and self.focus.leases_ms is not None:
            lease_ms = self.focus.leases_ms[(broker.life - 1) % len(self.focus.leases_ms)]
        return msgspec.structs.replace(self.settings, bus=msgspec.structs.replace(self.settings.bus, lease_ms=lease_ms))

    # -- running ------------------------------------------------------------------------------------------------------

    def run(self) -> Report:
        violation = None
        try:
            self._run()
        except Violation as error:
            violation = str(error)
        except Endless as error:
            violation = f"P9 a run ends: {error}"
        except RecursionError:
            raise
        except Exception as error:
            violation = f"P0 a crash: {type(error).__name__}: {error} at {_place(error)}"
        return Report(
            self.seed,
            violation,
            self.trace_hash,
            self.schedule.events,
            self.now,
            dict(self.faults.counts),
            self.faults.fired,
            dict(self.counts),
            self.checks.books.figures(),
            self.lines,
        )

    def _run(self) -> None:
        schedule = self.schedule
        for broker in self.brokers:
            broker.start()
        for worker in self.workers[: self.on_bus]:
            schedule.after(200.0 * self.chance.random(), worker.start)
        for peer in self.peers:
            schedule.after(200.0 * self._level0.random(), peer.start)
        self.people.begin(self.phase_ms)
        self.planned_faults.plan()
        self.follower.plan()
        self.routes.plan(self.phase_ms)
        self.quotas.plan(self.phase_ms)
        self.hostile.plan(self.phase_ms)
        self.server_keys.plan(self.phase_ms)
        if self.lost_commits.is_on:
            self.lost_commits.run()
            return
        schedule.run(self.phase_ms)
        self._heal()
        # A time that was read from the database may be as wrong as the clock was.
        set_back_ms = max(broker.clock.set_back_ms for broker in self.brokers)
        is_over = schedule.run(self.now + HEALED_MS + set_back_ms, self._is_all_over)
        if not is_over:
            self.checks.fail_stuck()
        self.checks.books.is_closing = True
        if not schedule.run(self.now + SETTLED_MS, self._is_settled):
            self.checks.fail_unsettled()
        if self.server is not None and self.seed % BALANCE_EVERY == 0:
            self._judge_balance()
        self.checks.check_end()
        self.follower.check_end()

    def _judge_balance(self) -> None:
        """L6: some time after the last fault every lane is served, the shares are equal, and no lane moves."""
        self.schedule.run(max(self.now, self.healed_ms + BALANCED_MS))
        owners.check_balance(self.checks.books)
        before = dict(self.tables.lanes)
        self.schedule.run(self.now + STEADY_MS)
        owners.check_steady(self.checks.books, before)

    def _is_all_over(self) -> bool:
        """Every task has ended, and no message under way could reopen one."""
        return (
            not self.checks.books.open_tasks
            and self.people.are_done
            and all(broker.has_empty_backlog and broker.is_idle for broker in self.brokers)
        )

    def _is_settled(self) -> bool:
        return (
            all(map(_is_at_rest, self.brokers))
            and not any(peer.is_busy for peer in self.peers)
            and all(not worker.is_alive or worker.session.is_idle for worker in self.workers)
        )

    def _heal(self) -> None:
        """End all faults, and restart every process that is down."""
        self.faults.is_over = True
        self.healed_ms = self.now
        self.trace("healed", self.seed)
        if self.server is not None:
            self.server.heal()
        for broker in self.brokers:
            broker.trouble_until_ms = -1.0
        for link in self.network.links.values():
            for way in (link.up, link.down):
                way.cut_until_ms = way.deaf_until_ms = way.burst_until_ms = -1.0
        for broker in self.brokers:
            broker.resume(broker.life)
            if broker.is_alive and broker.version != VERSION:
                broker.kill()  # it is upgraded
        for worker in self.workers:
            worker.resume(worker.life)
            is_elsewhere = worker.number < self.on_bus and len(worker.links) < len(self.brokers)
            if worker.is_alive and (worker.id in self.quieted or is_elsewhere):
                worker.kill()  # an operator drained it, or it does not reach every broker
            if not worker.is_alive:
                self.schedule.after(1_000.0 * self.chance.random(), worker.start)
        for peer in self.peers:
            peer.resume(peer.life)
            if not peer.is_alive:
                self.schedule.after(1_000.0 * self._level0.random(), peer.start)
        self.schedule.after(DOUBTED_MS, self._restart_doubted)
        self.people.tidy()
        self.routes.heal()
        self.quotas.heal()
        self.hostile.heal()
        self.server_keys.heal()

    def _restart_doubted(self) -> None:
        """Restart idle level-0 handlers, as an operator would.

        A handler whose batch or answer was lost receives no at_most_once step until then.
        """
        for peer in self.peers:
            if peer.is_alive and not peer.is_busy:
                peer.kill()

    def broker_started(self, broker: BrokerNode) -> None:
        self.breakers.broker_started(broker)
        self.planned_faults.broker_started(broker)

    # -- data that the database refuses ------------------------------------------------------------------------------

    def choose_refused(self, group: CommitGroup) -> None:
        """Choose tasks whose rows in this group the database refuses at every attempt."""
        self._refused_tasks = set()
        if self._refused_rate:
            task_ids = [row.task_id for s in group.submissions for row in s.history]
            task_ids += [row.task_id for row in group.history]
            for task_id in dict.fromkeys(task_ids):
                luck = self._refused_chance.random()
                if luck < self._refused_rate and self.faults.strikes("data_refused", f"{task_id}.{group.seq}"):
                    self._refused_tasks.add(task_id)
            for row in group.history:
                if row.task_id in self._refused_tasks:
                    self.checks.rows_refused(row)

    def _refuse(self, rows: Rows) -> None:
        if self._refused_tasks:
            for row in rows.history:
                if row.task_id in self._refused_tasks:
                    raise DataRefused(f"the rows of task {row.task_id}")

    # -- queries ------------------------------------------------------------------------------------------------------

    def any_broker(self) -> BrokerNode:
        return self.broker if len(self.brokers) == 1 else self._askers.choice(self.brokers)

    def owner_of_lane(self, lane: int) -> BrokerNode | None:
        """The broker that owns the lane now, or owned it last."""
        owners = [owner for _, owner in self.tables.owners.get(lane, ()) if owner != ELSEWHERE]
        return next((broker for broker in self.brokers if owners and broker.id == owners[-1]), None)

    def owner_of(self, number: int) -> BrokerNode | None:
        """The broker that owns the lane of the task or the step with this id, or owned it last."""
        return self.owner_of_lane(self.tables.blocks[block_of(number)].lane)

    def is_process(self, worker_id: str, pid: int) -> bool:
        return any(worker.is_alive and worker.id == worker_id and worker.pid == pid for worker in self.workers)

    def count(self, what: str, which: str) -> None:
        self.counts[what, which] += 1

    def trace(self, what: str, value: object) -> None:
        now = self.schedule.now
        data = value if isinstance(value, bytes) else str(value).encode()
        # The raw bytes: to format each message takes longer than to simulate it.
        self.trace_hash = crc32(data, (self._traced[what] ^ self.trace_hash ^ int(now * 1_000.0)) & 0xFFFFFFFF)
        if self.keeps_trace:
            self.lines.append(f"{now:.3f} {what} {value!s}")


def _is_at_rest(broker: BrokerNode) -> bool:
    return (
        broker.is_idle
        and not broker.state.tasks
        and len(broker.state.outbox) == 0
        and not broker.state.fetching
        and not broker.state.level0.handouts
        and not broker.state.shadows.by_id
    )


def _place(error: BaseException) -> str:
    trace = error.__traceback__
    places = []
    while trace is not None:
        code = trace.tb_frame.f_code
        places.append(f"{code.co_filename.rpartition('/')[2]}:{trace.tb_lineno}")
        trace = trace.tb_next
    return " > ".join(places[-5:])
