"""The faults at planned times: kills, suspensions, partitions, clock jumps and trouble of the database."""

from random import Random
from typing import TYPE_CHECKING, Any

import msgspec
from stepwire.worker.socket_thread import DRAIN_MS
from stepwire_broker.core.sharing.moving import MoveLane

from .broker_node import BrokerNode
from .faults import LEVEL0_KINDS
from .peer_node import PeerNode
from .worker_node import WorkerNode

if TYPE_CHECKING:
    from .world import World


class PlannedFaults:
    def __init__(self, world: "World") -> None:
        self.world = world

    def plan(self) -> None:
        plan = (
            ("broker_killed", 4, self._kill_broker),
            ("broker_stopped", 2, self._stop_broker),
            ("broker_paused", 3, self._pause_broker),
            ("wall_jump", 4, self._jump),
            ("worker_killed", 6, self._kill_worker),
            ("worker_paused", 5, self._pause_worker),
            ("worker_drained", 4, self._drain_worker),
            ("worker_forgets", 3, self._report_gone),
            ("worker_quiet", 3, self._quiet_worker),
            ("worker_full", 4, self._fill_worker),
            ("peer_killed", 5, self._kill_peer),
            ("peer_paused", 4, self._pause_peer),
            ("partition", 6, self._cut),
            ("disk_full", 2, self._fill_disk),
            ("locked", 3, self._lock_database),
            ("handler_unavailable", 5, self.world.breakers.strike),
            ("lane_lost", 6, self.world.lane_changes.strike),
            ("broker_away", 3, self._send_broker_away),
            ("database_cut", 4, self._cut_database),
            ("database_down", 3, self._end_database),
            ("beats_stopped", 3, self._stop_beats),
            ("loop_hangs", 3, self._hang_loop),
            ("lane_moved", 8, self._move_lane),
            ("database_clock", 3, self._set_database_clock),
        )
        for kind, most, strike in plan:
            if self.world.focus is not None:
                most *= self.world.focus.plan_factor
            chance = Random(f"{self.world.seed}/plan/{kind}")
            # Mostly early, when there is work.
            times = [
                (self.world.phase_ms * chance.random() ** 1.7, chance.random(), chance.random()) for _ in range(most)
            ]
            times = times[: 1 + int(most * self.world.faults.rates.get(kind, 0.0))]
            if kind in self.world.faults.on and (self.world.peers or kind not in LEVEL0_KINDS):
                for i, (at_ms, luck, size) in enumerate(times):
                    self.world.schedule.at(at_ms, self._strike, kind, i, strike, luck, size)

    def _strike(self, kind: str, number: int, strike: Any, luck: float, size: float) -> None:
        if self.world.faults.strikes(kind, number):
            strike(luck, size)

    def _broker(self, luck: float) -> BrokerNode:
        """One of the brokers. The same number may also decide how long a fault lasts."""
        brokers = self.world.brokers
        return brokers[int(luck * 97 % 1 * len(brokers))]

    def _kill_broker(self, luck: float, size: float) -> None:
        broker = self._broker(luck)
        if broker.is_alive:
            broker.kill()

    def _send_broker_away(self, luck: float, size: float) -> None:
        broker = self._broker(luck)
        if broker.is_alive:
            broker.away_ms = 8_000.0 + 40_000.0 * size
            broker.kill()

    def _cut_database(self, luck: float, size: float) -> None:
        server = self.world.server
        assert server is not None
        least_ms, most_ms, focus = 1_000.0, 60_000.0, self.world.focus
        if focus is not None and focus.database_cut_ms is not None:
            least_ms, most_ms = focus.database_cut_ms
        path, until_ms = server.paths[self._broker(luck).id], self.world.now + least_ms + (most_ms - least_ms) * size**2
        ways = int(luck * 31) % 3
        if ways != 0:
            path.up_until_ms = until_ms
        if ways != 1:
            path.down_until_ms = until_ms

    def _end_database(self, luck: float, size: float) -> None:
        assert self.world.server is not None
        self.world.server.crash(500.0 + 39_500.0 * size**3)

    def _stop_beats(self, luck: float, size: float) -> None:
        broker = self._broker(luck)
        if broker.is_alive:
            broker.membership.stopped_until_ms = self.world.now + 3_000.0 + 30_000.0 * size**2

    def _hang_loop(self, luck: float, size: float) -> None:
        self._broker(luck).pause(1_000.0 + 29_000.0 * size**2, only_loop=True)

    def _set_database_clock(self, luck: float, size: float) -> None:
        self.world.database_jumped_ms = int(7_200_000 * (size - 0.5)) if luck < 0.8 else 0

    def _move_lane(self, luck: float, size: float) -> None:
        """An operator gives a lane to a broker, which may be dead or own it already."""
        world = self.world
        lane, to = 1 + int(luck * 89 % 1 * len(world.tables.lanes)), world.brokers[int(size * len(world.brokers))].id
        world.people.command(lambda request: MoveLane(request, lane, to))

    def _stop_broker(self, luck: float, size: float) -> None:
        self._broker(luck).drain_and_stop()

    def _pause_broker(self, luck: float, size: float) -> None:
        broker = self._broker(luck)
        if self.world.focus is not None and self.world.focus.pause_ms is not None:
            least_ms, most_ms = self.world.focus.pause_ms
            broker.pause(least_ms + (most_ms - least_ms) * size)
        else:
            broker.pause(300.0 + (5_000.0 if luck < 0.5 else 85_000.0) * size**2)

    def _jump(self, luck: float, size: float) -> None:
        hosts = [self._broker(luck), *self.world.workers]
        hosts[int(luck * 2) * int(luck * len(hosts))].clock.jump(int(7_200_000 * (size - 0.5)), self.world.now)

    def _worker(self, luck: float) -> WorkerNode:
        return self.world.workers[int(luck * self.world.on_bus)]

    def _kill_worker(self, luck: float, size: float) -> None:
        self._worker(luck).kill()

    def _pause_worker(self, luck: float, size: float) -> None:
        self._worker(luck).pause(1_000.0 + (15_000.0 if size < 0.7 else 85_000.0) * size)

    def _peer(self, luck: float) -> PeerNode:
        return self.world.peers[int(luck * len(self.world.peers))]

    def _kill_peer(self, luck: float, size: float) -> None:
        self._peer(luck).kill()

    def _pause_peer(self, luck: float, size: float) -> None:
        self._peer(luck).pause(1_000.0 + (15_000.0 if size < 0.7 else 85_000.0) * size)

    def _drain_worker(self, luck: float, size: float) -> None:
        self._worker(luck).drain(DRAIN_MS * size**2)

    def _quiet_worker(self, luck: float, size: float) -> None:
        self._worker(luck).quiet(30_000.0 * size**2)

    def _fill_worker(self, luck: float, size: float) -> None:
        self._worker(luck).refuse_for(20_000.0 * size**2)

    def _report_gone(self, luck: float, size: float) -> None:
        """A worker dies, and its supervisor reports it."""
        worker = self._worker(luck)
        if worker.is_alive:
            gone = msgspec.json.encode({"type": "gone", "v": "2.0", "worker": worker.id})
            worker.kill()
            for broker in self.world.brokers:
                self.world.schedule.after(50.0 * size, broker.post, "message", b"workers " + gone, worker.principal)

    def _cut(self, luck: float, size: float) -> None:
        worker = self._worker(luck)
        if not worker.is_alive:
            return
        link = worker.links.get(self._broker(luck).id) or next(iter(worker.links.values()))
        if self.world.focus is not None and self.world.focus.cut_ms is not None:
            least_ms, most_ms = self.world.focus.cut_ms
            link.up.cut_until_ms = self.world.now + least_ms + (most_ms - least_ms) * size
        else:
            for way in (link.up, link.down)[int(size * 10) % 3 // 2 :][: 1 + int(size * 100) % 2]:
                way.cut_until_ms = self.world.now + 1_000.0 + 39_000.0 * size**2

    def _cut_after_start(self, life: int, worker: int, size: float) -> None:
        if self.world.faults.strikes("partition", f"{life}.{worker}"):
            self._cut((worker + 0.5) / len(self.world.workers), size)

    def _fill_disk(self, luck: float, size: float) -> None:
        self._trouble("disk_full", 60_000.0 * size**2)

    def _lock_database(self, luck: float, size: float) -> None:
        self._trouble("database_locked", 15_000.0 * size)

    def _trouble(self, code: str, for_ms: float) -> None:
        """The database refuses every write for a while."""
        for broker in self.world.brokers:
            broker.trouble_until_ms, broker.trouble_code = self.world.now + for_ms, code

    def broker_started(self, broker: BrokerNode) -> None:
        """Cut workers off soon after every second start, where the focus requires it."""
        if self.world.focus is not None and self.world.focus.cuts_after_start and broker.life % 2 == 0:
            chance = Random(f"{self.world.seed}/cuts/{broker.life}")
            for i in range(len(self.world.workers)):
                wait_ms, size = 1_500.0 + 3_000.0 * chance.random(), chance.random()
                self.world.schedule.after(wait_ms, self._cut_after_start, broker.life, i, size)
