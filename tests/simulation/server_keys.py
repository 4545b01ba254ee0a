"""The rotation of the brokers' CURVE key, in the seeds that have one: keys in files, listeners, workers with key files.

An operator begins, ends and cancels rotations at random times. Each broker process reads the files as the gate of the
bus does, and announces and serves their keys with the shipped code; only the sockets are replaced. A worker can connect
if its key is the one that its endpoint serves. Some workers start again meanwhile, with the old key or the new one.
"""

from collections.abc import Coroutine, Generator
from random import Random
from types import coroutine
from typing import TYPE_CHECKING, Any, Final, Literal, NamedTuple

from stepwire.actions import Link as ConfiguredLink
from stepwire_broker.bus.alarms import Alarms
from stepwire_broker.bus.announcement import endpoints_for_workers
from stepwire_broker.bus.endpoints import Endpoint
from stepwire_broker.bus.gate import CHECK_S
from stepwire_broker.bus.keys.key_text import KeyPair
from stepwire_broker.bus.keys.server_key import BrokerKeys
from stepwire_broker.bus.served_keys import ServedKeys
from stepwire_broker.bus.sockets import Bound
from stepwire_broker.core.model.events import EndpointsBound

from .checks import server_keys as checks
from .faults import KEY_KINDS

if TYPE_CHECKING:
    from .broker_node import BrokerNode
    from .worker_node import WorkerNode
    from .world import World

Place = Literal["main", "next"]  # the endpoint of a listener: bus.steps and bus.results, or bus.next

ROTATIONS_MAX: Final = 3
CHECK_MS: Final = CHECK_S * 1_000
WATCH_MS: Final = 250.0
MENDED_MS: Final = 15_000.0  # after the last fault: an operator restarts the workers that are still without connection

_MAIN: Final = ("tcp://b1:7411", "tcp://b1:7412")
_NEXT: Final = ("tcp://b1:7421", "tcp://b1:7422")
_THROUGH_PROXY: Final[dict[Place, ConfiguredLink]] = {
    "main": ConfiguredLink("tcp://proxy:7411", "tcp://proxy:7412"),
    "next": ConfiguredLink("tcp://proxy:7421", "tcp://proxy:7422"),
}
_AS_LISTED: Final[dict[Place, ConfiguredLink]] = {"main": ConfiguredLink(*_MAIN), "next": ConfiguredLink(*_NEXT)}


class WorkerFile(NamedTuple):
    """The environment of a worker's next process: the key of the brokers, and the endpoint to connect to."""

    key: str
    place: Place


class ServerKeys:
    """The files of the deployment, the operator who rotates the key, and the files of the workers."""

    def __init__(self, world: "World", *, is_possible: bool) -> None:
        self.world = world
        if not is_possible:
            world.faults.on -= set(KEY_KINDS)
        self.is_on = "server_key_rotated" in world.faults.on
        self.chance = Random(f"{world.seed}/server_keys")
        self._made = 0
        self.files = BrokerKeys(self._new_pair())
        self.withdrawn_ms: dict[str, float] = {}  # by key: when the files lost it
        self.changed_ms: dict[Place, float] = {"main": 0.0, "next": 0.0}  # when the files last changed a place's key
        self.was_cancelled = False
        self._of_workers: dict[str, WorkerFile] = {}
        self._luck: dict[str, Random] = {}
        self.listeners: Listeners | None = None  # of the broker process that is alive

    def _new_pair(self) -> KeyPair:
        self._made += 1
        return KeyPair(f"{self._made:040d}", f"secret {self._made}")

    # -- the operator -------------------------------------------------------------------------------------------------

    def plan(self, phase_ms: float) -> None:
        if not self.is_on:
            return
        at_ms = 0.0
        for number in range(1 + int(ROTATIONS_MAX * self.world.faults.rates["server_key_rotated"])):
            at_ms += 0.4 * phase_ms * self.chance.random()
            lasts_ms = (3_000.0 if self.chance.random() < 0.3 else 25_000.0) * self.chance.random()
            ends_so, luck = self.chance.random() < 0.2, Random(self.chance.getrandbits(32))
            self.world.schedule.at(at_ms, self._begin, number, lasts_ms, ends_so, luck)
            at_ms += lasts_ms
        self.world.schedule.after(WATCH_MS, self._watch)

    def _begin(self, number: int, lasts_ms: float, is_cancelled: bool, luck: Random) -> None:
        if self.files.next is None and self.world.faults.strikes("server_key_rotated", number):
            self._write(BrokerKeys(self.files.current, self._new_pair()))
            self.world.schedule.after(lasts_ms, self._cancel if is_cancelled else self._finish, self.files)
            self.world.schedule.after(lasts_ms + 20_000.0 * luck.random(), self._restart_refused, luck)

    def _finish(self, begun: BrokerKeys) -> None:
        if self.files == begun and begun.next is not None:
            self._write(BrokerKeys(begun.next))

    def _cancel(self, begun: BrokerKeys) -> None:
        if self.files == begun:
            self.was_cancelled = True
            self._write(BrokerKeys(begun.current))

    def _write(self, files: BrokerKeys) -> None:
        now, before = self.world.now, self.files
        self.files = files
        self.world.trace("server_keys", files.phase)
        for pair in (before.current, before.next):
            if pair is not None and pair not in files:
                self.withdrawn_ms[pair.public] = now
        if before.current != files.current:
            self.changed_ms["main"] = now
        if (before.next or before.current) != (files.next or files.current):
            self.changed_ms["next"] = now

    def heal(self) -> None:
        """End the rotation. An operator then restarts each worker that knows no key of the brokers any longer."""
        if self.is_on:
            self._finish(self.files)
            self.world.schedule.after(MENDED_MS, self._restart_refused, Random(0), 1.0)

    def _restart_refused(self, luck: Random, share: float = 0.6) -> None:
        for worker in self.world.workers[: self.world.on_bus]:
            if worker.is_alive and not self.world.network.is_joined(worker.link) and luck.random() < share:
                worker.kill()

    # -- workers ------------------------------------------------------------------------------------------------------

    def file_of(self, worker: "WorkerNode") -> WorkerFile | None:
        """The file for a new process of this worker: kept while its key is valid, and mostly replaced afterwards."""
        if not self.is_on or worker.number >= self.world.on_bus:
            return None
        luck = self._luck.setdefault(worker.name, Random(f"{self.world.seed}/server_keys/{worker.name}"))
        first, second = luck.random(), luck.random()
        file, current, following = self._of_workers.get(worker.name), self.files.current.public, self.files.next
        if file is None:
            file = WorkerFile(current, "main" if first < 0.8 else "next")
        elif self.world.faults.is_over:
            file = WorkerFile(current, "main")
        elif following is not None and first < 0.5:
            # Some operators are too early: the main endpoints do not serve the next key yet.
            file = WorkerFile(following.public, "next" if second < 0.7 else "main")
        elif file.key in self.withdrawn_ms and first < 0.8:
            file = WorkerFile(current, file.place)
        self._of_workers[worker.name] = file
        return file

    def links_of(self, worker: "WorkerNode", file: WorkerFile | None) -> tuple[ConfiguredLink, ...]:
        """The configured endpoints. Half of the workers connect through a proxy, whose address no broker lists."""
        if file is None:
            return ()
        return ((_AS_LISTED if worker.number % 2 else _THROUGH_PROXY)[file.place],)

    def expected_at(self, place: Place) -> str:
        """The key that this listener serves once the broker has followed the files."""
        pair = self.files.current if place == "main" else self.files.next or self.files.current
        return pair.public

    def _watch(self) -> None:
        checks.check_connections(self.world)
        self.world.schedule.after(WATCH_MS, self._watch)

    # -- brokers ------------------------------------------------------------------------------------------------------

    def broker_started(self, broker: "BrokerNode") -> EndpointsBound:
        """The broker has read the files, and its listeners are bound."""
        if not self.is_on:
            return EndpointsBound("inproc://steps", "inproc://results")
        self.listeners = Listeners(self, broker)
        return self.listeners.endpoints()


class Listeners:
    """The listeners of one broker process, with the shipped ServedKeys."""

    def __init__(self, keys: ServerKeys, broker: "BrokerNode") -> None:
        self._keys = keys
        self._broker = broker
        self._network = keys.world.network
        self.served: dict[Place, str] = {"main": keys.files.current.public}
        self._keys_served = ServedKeys(self, keys.files, Alarms(lambda text: None), _pause)
        self._keys_served.on_changed = self._announce
        self._keys_served.on_served = lambda: self._broker.post("event", self.endpoints())
        self._go_on(self._keys_served.start(_BOUND))
        broker.on_keys_later(CHECK_MS, self._check)

    def endpoints(self) -> EndpointsBound:
        return endpoints_for_workers(_BOUND, self._keys_served, None)

    def _check(self) -> None:
        """Read the files, and begin to serve their keys."""
        if self._keys.files != self._keys_served.announced:
            self._broker.may_die_rotating("read")
        self._go_on(self._serve())

    async def _serve(self) -> None:
        await self._keys_served.serve(self._keys.files)
        self._broker.on_keys_later(CHECK_MS, self._check)

    def _go_on(self, serving: Coroutine[Any, Any, None]) -> None:
        """Run until the next pause. The broker's process may end meanwhile."""
        try:
            pause_s = serving.send(None)
        except StopIteration:
            return
        self._broker.on_keys_later(1_000.0 * pause_s, lambda: self._go_on(serving))

    def _announce(self, before: BrokerKeys, after: BrokerKeys) -> None:
        self._broker.post("event", self.endpoints())
        self._broker.may_die_rotating("announced")

    # -- as the sockets -----------------------------------------------------------------------------------------------

    async def replace_key(self, server: KeyPair, bound: tuple[Bound, ...]) -> None:
        self._broker.may_die_rotating("replacing")
        self._bind("main", server)
        self._broker.may_die_rotating("replaced")

    async def serve_next(self, server: KeyPair) -> tuple[str, str] | None:
        if self.served.get("next") != server.public:
            self._bind("next", server)
        return _NEXT

    def _bind(self, place: Place, server: KeyPair) -> None:
        self._keys.world.trace("listener_bound", f"{place} {server.public}")
        self.served[place] = server.public
        self._network.listener_bound(place)


@coroutine
def _pause(seconds: float) -> Generator[float, None, None]:
    yield seconds


def _bound_pair(steps: str, results: str) -> Bound:
    def endpoint(key: str, address: str) -> Endpoint:
        return Endpoint(key, address, "tcp", address, is_loopback=False, has_curve=True)

    return Bound((endpoint("bus.steps", steps), endpoint("bus.results", results)), steps, results)


_BOUND: Final = (_bound_pair(*_MAIN),)
