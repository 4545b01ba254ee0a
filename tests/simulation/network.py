"""The bus between the brokers and their workers: what ZeroMQ and the network do to messages.

The model of ZeroMQ: a bound PUB drops messages for topics that its peer has not subscribed to yet, and the whole queue
of a lost peer. A connected PUB keeps its queue while the broker is away and delivers it to the broker that starts next.
A killed peer's subscription vanishes at once. One connection neither doubles nor reorders messages; faults do.
"""

from random import Random
from typing import TYPE_CHECKING, Final

from stepwire_protocol import codec, topics

if TYPE_CHECKING:
    from .broker_node import BrokerNode
    from .peer_node import PeerNode
    from .server_keys import Place, WorkerFile
    from .worker_node import WorkerNode
    from .world import World

QUEUE_MAX: Final = 1_000
BURST_MESSAGES: Final = 500
BURST_MS: Final = 6_000
RECONNECT_MS: Final = (20.0, 1_000.0)


class Way:
    """One direction between the broker and one worker process."""

    def __init__(self, network: "Network", name: str) -> None:
        self.name = name
        self.count = 0
        self.last_ms = 0.0
        self.cut_until_ms = -1.0
        self.burst_left = 0
        self.burst_until_ms = -1.0
        self.deaf_until_ms = -1.0
        self.stale = 0
        self.chance = Random(f"{network.world.seed}/{name}")


class Link:
    """A worker process's two connections to one broker."""

    def __init__(
        self, network: "Network", broker: "BrokerNode", worker: "WorkerNode | PeerNode", worker_id: str
    ) -> None:
        self.broker = broker
        self.worker = worker
        self.id = worker_id
        self.life = worker.life
        self.up = Way(network, f"{worker.name}.{worker.life}>{broker.id}")
        self.down = Way(network, f"{broker.id}>{worker.name}.{worker.life}")
        self.joined = 0  # the life of the broker that has its subscription
        self.knows_subscription = False  # its own PUB has the broker's subscription, and queues from then on
        self.queue: list[bytes] = []
        self.is_dead = False
        self.to: str | None = None  # at level 0: the address it was granted last
        self.tries = 0  # a connection that was replaced tries no longer
        # With keys of the brokers:
        self.key: str | None = None  # used by its connections; None: no keys
        self.place: Place = "main"
        self.known_keys: set[str] = set()
        self.listed_n = 0  # the highest n of a message with a list of keys
        self.is_misled = False  # the latest list was not the newest one
        self.shut_out_ms: float | None = None  # since when the checks see it without connection
        self.withdrawn_ms: float | None = None  # since when they see it connected with a withdrawn key


class Network:
    def __init__(self, world: "World") -> None:
        self.world = world
        self.links: dict[tuple[str, str], Link] = {}  # by broker and worker
        self.granted: dict[str, Link] = {}  # at level 0, by `to`
        faults = world.faults
        self._loss = faults.rate("loss", 0.30, 0.02)
        self._duplicate = faults.rate("duplicate", 0.50, 0.02)
        self._late = faults.rate("late_duplicate", 0.05, 0.005)
        self._reorder = faults.rate("reorder", 0.30, 0.02)
        self._delay = faults.rate("delay", 0.5, 0.05)
        self._delay_ms = self._answer_delay_ms = 1.0 + 999.0 * faults.rates["delay"] ** 3
        if world.focus is not None and world.focus.answer_delay_ms is not None:
            self._delay_ms, self._answer_delay_ms = 20.0, world.focus.answer_delay_ms
        self._burst = faults.rate("hwm_burst", 0.004, 0.0005)
        self._stale = 0.5 if "stale_delivery" in faults.on else 0.0
        self._base_ms = 0.2 + 3.0 * faults.rates["loss"]

    # -- connecting ---------------------------------------------------------------------------------------------------

    def connect(
        self,
        worker: "WorkerNode | PeerNode",
        worker_id: str,
        broker: "BrokerNode",
        file: "WorkerFile | None" = None,
    ) -> Link:
        """`file`: the brokers' key that the worker uses first, and the endpoint it connects to; None: no keys."""
        link = self.links[broker.id, worker_id] = Link(self, broker, worker, worker_id)
        if file is not None:
            link.key, link.place = file
            link.known_keys = {file.key}
        self._join_soon(link, 1.0, 30.0)
        return link

    def reconnect(self, link: Link) -> None:
        """The worker built new sockets: the queue of its PUB is gone."""
        self.disconnect(link)
        self._join_soon(link, 1.0, 30.0)

    def disconnect(self, link: Link) -> None:
        link.tries += 1
        link.queue.clear()
        link.knows_subscription = False
        broker = link.broker
        if link.joined == broker.life and broker.is_alive:
            link.joined = 0
            broker.post("vanished", link.id, link.worker.principal)

    def is_joined(self, link: Link) -> bool:
        return link.broker.is_alive and link.joined == link.broker.life

    def listener_bound(self, place: "Place") -> None:
        """The broker serves a key at this place. What was connected there is connected no longer."""
        for link in list(self.links.values()):
            if link.key is not None and link.place == place and self.is_joined(link):
                link.joined = 0
                link.broker.post("vanished", link.id, link.worker.principal)
                self._join_soon(link, *RECONNECT_MS)

    def broker_started(self, broker: "BrokerNode") -> None:
        for link in self.links.values():
            if link.broker is broker and not link.is_dead:
                self._join_soon(link, *RECONNECT_MS)

    def worker_died(self, link: Link) -> None:
        link.is_dead = True
        link.queue.clear()
        broker = link.broker
        del self.links[broker.id, link.id]
        if broker.is_alive and link.joined == broker.life:
            self.world.schedule.after(link.down.chance.random() * 5.0, self._vanish, link, broker.life)

    def _vanish(self, link: Link, life: int) -> None:
        broker = link.broker
        if broker.is_alive and broker.life == life:
            if link.worker.at_level0:
                broker.post("peer_gone", link)
            else:
                broker.post("vanished", link.id, link.worker.principal)

    def _join_soon(self, link: Link, least_ms: float, most_ms: float) -> None:
        wait_ms = least_ms + (most_ms - least_ms) * link.up.chance.random()
        self.world.schedule.after(wait_ms, self._join, link, link.broker.life, link.tries)

    def _join(self, link: Link, life: int, tries: int) -> None:
        """The subscriptions have arrived in both directions. Queued messages follow."""
        world, broker = self.world, link.broker
        if link.is_dead or not broker.is_alive or broker.life != life or link.joined == life:
            return
        if link.worker.at_level0 and (link.worker.is_busy or link.worker.is_paused):
            # Its subscriptions are resent only when it enters its socket.
            self._join_soon(link, 20.0, 60.0)
            return
        if link.key is not None and not self._is_admitted(link):
            if link.tries == tries:
                self._join_soon(link, *RECONNECT_MS)
            return
        link.joined = life
        for way in (link.up, link.down):
            deaf_ms = 100.0 + 1_900.0 * way.chance.random()
            is_slow = way.chance.random() < 0.5 and "slow_joiner" in world.faults.on
            if is_slow and world.faults.strikes("slow_joiner", f"{way.name} {life}"):
                way.deaf_until_ms = world.now + deaf_ms
        if link.worker.at_level0:
            broker.post("peer", link)
        else:
            broker.post("subscribed", link.id, link.worker.principal)
            self.to_worker(broker, link.id, broker.here_frame)
        link.knows_subscription = True
        queue, link.queue = link.queue, []
        for frame in queue:
            self._carry(link, link.up, frame, broker.life)

    def _is_admitted(self, link: Link) -> bool:
        """The handshake succeeds: the listener has the key that the worker expects."""
        listeners = self.world.server_keys.listeners
        return listeners is not None and listeners.served.get(link.place) == link.key

    # -- carrying -----------------------------------------------------------------------------------------------------

    def to_worker(self, broker: "BrokerNode", worker_id: str, frame: bytes) -> None:
        link = self.links.get((broker.id, worker_id))
        if link is not None and link.joined == broker.life:
            self._carry(link, link.down, frame, broker.life)

    def grant(self, link: Link, to: str) -> None:
        link.to = to
        self.granted[to] = link

    def note_batch(self, to: str, body: bytes) -> None:
        link = self.granted.get(to)
        if link is not None:
            self.world.hostile.batches[codec.decode_steps_level0(body).batch_id] = link.worker.principal

    def to_peer(self, to: str, body: bytes) -> None:
        link = self.granted.get(to)
        if link is not None and not link.is_dead and link.to == to and link.joined == link.broker.life:
            self._carry(link, link.down, topics.STEPS + body, link.broker.life)

    def to_broker(self, link: Link, frame: bytes) -> None:
        if link.is_dead or not link.knows_subscription:
            return
        broker = link.broker
        if not broker.is_alive or link.joined != broker.life:
            if len(link.queue) < QUEUE_MAX:
                link.queue.append(frame)
            return
        self._carry(link, link.up, frame, broker.life)

    def to_broker_later(self, link: Link, frame: bytes) -> None:
        """Let a frame arrive after the end of its sender's subscription."""
        broker = link.broker
        if link.joined == broker.life and broker.is_alive and link.knows_subscription:
            later_ms = 6.0 + 40.0 * link.up.chance.random()
            self._arrive_at(link, link.up, frame, broker.life, self.world.now + later_ms, keeps_order=True)

    def _carry(self, link: Link, way: Way, frame: bytes, life: int) -> None:
        world = self.world
        faults, now, chance = world.faults, world.now, way.chance.random
        way.count += 1
        lost, late, doubled, reordered, burst, luck = chance(), chance(), chance(), chance(), chance(), chance()
        if now < way.cut_until_ms or now < way.deaf_until_ms:
            return
        if way.burst_left > 0 and now < way.burst_until_ms:
            way.burst_left -= 1
            return
        if faults.is_over:
            self._arrive_at(link, way, frame, life, now + self._base_ms * (0.5 + luck), keeps_order=True)
            return
        if burst < self._burst and faults.strikes("hwm_burst", f"{way.name} {way.count}"):
            way.burst_left, way.burst_until_ms = BURST_MESSAGES, now + BURST_MS
            return
        if lost < self._loss and faults.strikes("loss", f"{way.name} {way.count}"):
            return
        delay_ms = self._base_ms * (0.5 + luck)
        if luck < self._delay and faults.strikes("delay", f"{way.name} {way.count}"):
            mean_ms = self._delay_ms if way is link.up else self._answer_delay_ms
            delay_ms += mean_ms * way.chance.expovariate(1.0)
        moved = reordered < self._reorder and faults.strikes("reorder", f"{way.name} {way.count}")
        if moved:
            delay_ms += 50.0 * late
        self._arrive_at(link, way, frame, life, now + delay_ms, keeps_order=not moved)
        if link.worker.at_level0 and way is link.down:
            return  # one connection doubles no message, and no level-0 sender resends
        if doubled < self._duplicate and faults.strikes("duplicate", f"{way.name} {way.count}"):
            self._arrive_at(link, way, frame, life, now + delay_ms + 300.0 * luck, keeps_order=False)
        if late < self._late and faults.strikes("late_duplicate", f"{way.name} {way.count}"):
            # No real socket does this, but the promises cover it: a copy arrives much later, even after a restart.
            self._arrive_at(link, way, frame, 0, now + 1_000.0 + 60_000.0 * luck, keeps_order=False)

    def _arrive_at(self, link: Link, way: Way, frame: bytes, life: int, at_ms: float, *, keeps_order: bool) -> None:
        if keeps_order:
            at_ms = way.last_ms = max(at_ms, way.last_ms)
        if way is link.up:
            self.world.schedule.at(at_ms, self._reach_broker, link, frame, life)
        else:
            self.world.schedule.at(at_ms, self._reach_worker, link, frame, link.tries)

    def _reach_broker(self, link: Link, frame: bytes, life: int) -> None:
        broker, world = link.broker, self.world
        if life in (0, broker.life) and broker.is_alive:
            broker.post("message", frame, link.worker.principal)
        elif not link.is_dead:
            link.up.stale += 1
            name = f"{link.up.name} {link.up.stale}"
            if link.up.chance.random() < self._stale and world.faults.strikes("stale_delivery", name):
                if broker.is_alive:
                    broker.post("message", frame, link.worker.principal)
                elif len(link.queue) < QUEUE_MAX:
                    link.queue.append(frame)

    def _reach_worker(self, link: Link, frame: bytes, tries: int) -> None:
        # A worker that connects with another key reads nothing more from the connection before.
        if not link.is_dead and (link.key is None or link.tries == tries):
            link.worker.post("message", frame)
