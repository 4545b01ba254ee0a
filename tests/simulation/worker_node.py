"""A worker: the shipped SDK session. This module replaces its sockets and threads.

Handlers are simulated: they take a while, then succeed, fail in one of the ways a handler can, or hang for long. The
checks record a handler's effect when it is entered.
"""

from collections import Counter, deque
from collections.abc import Callable
from random import Random
from typing import TYPE_CHECKING, Any, Final

import msgspec
from stepwire.actions import CancelRun, Connect, Disconnect, Log, Quit, Rebuild, ResultTooLarge, Run, Send
from stepwire.actions import Link as ConfiguredLink
from stepwire.errors import OutcomeUnknown, Permanent, Retry, StepError
from stepwire.handler import Handler, completed, failed, make_handler, stopped
from stepwire.runners.run_slots import RunSlots
from stepwire.session import Config, Offer, Session
from stepwire.worker.socket_thread import DRAIN_MS, EXPEL_MS
from stepwire_protocol import codec, topics
from stepwire_protocol.messages import Item, Result, ResultMetadata

from .broker_node import HOST, MISSTATED
from .clock import Clock

if TYPE_CHECKING:
    from .broker_node import BrokerNode
    from .network import Link
    from .world import World

RESULTS_AT: Final = topics.results_to("")[:-1]
HANDLERS: Final = tuple(f"h{i}" for i in range(4))


class Running:
    """One call of a handler."""

    __slots__ = (
        "behaviour",
        "cancel_reason",
        "done_at_ms",
        "entered",
        "has_ended",
        "offer",
        "run",
        "started_true_ms",
        "worker",
    )

    def __init__(self, run: Run, worker: str) -> None:
        self.run = run
        self.offer = run.offer
        self.worker = worker
        self.entered = False
        self.has_ended = False
        self.cancel_reason: str | None = None
        self.behaviour = ""
        self.started_true_ms = 0.0
        self.done_at_ms = 0.0


class WorkerNode:
    at_level0 = False

    def __init__(self, world: "World", number: int) -> None:
        self.world = world
        self.name = f"w{number}"
        self.number = number
        self.chance = chance = Random(f"{world.seed}/{self.name}")
        self._thread_chance = Random(f"{world.seed}/{self.name}/threads")
        self.clock = Clock(world.clock_rate(), 5_000.0 + 1e8 * chance.random())
        self.life = 0
        self.is_alive = False
        self.is_paused = False
        self.slots = chance.randint(1, 4)
        self.prefetch = chance.choice((0, 1, 3, None))
        self.host = chance.choice((HOST, HOST, "h2"))
        self.proof = chance.random() < 0.6
        # Some state their start time in another unit: their deaths must not be concluded from it.
        self.misstates_start = Random(f"{world.seed}/{self.name}/start").random() < 0.1
        self.is_provable = self.proof and self.host == HOST and not self.misstates_start
        offered = HANDLERS if number == 0 or chance.random() < 0.6 else tuple(chance.sample(HANDLERS, 2))
        self.concurrency = chance.choice((None, None, None, 1))
        self.offers = tuple(Offer(name, self.concurrency) for name in offered)
        if number == 0 and world.routes.is_on:
            self.offers = tuple(Offer(name, self.concurrency, shadow_safe=True) for name in offered)
        self.accept_delay_ms = chance.choice((0, 5, 50))
        self.mood = chance.choice((0.0, 0.1, 0.3))  # the share of runs that do not simply succeed
        self.pace_ms = 10.0 + 1_500.0 * chance.random() ** 3
        focus = world.focus
        if focus is not None and focus.pace_ms is not None:
            self.pace_ms = chance.uniform(*focus.pace_ms)
        if focus is not None and focus.has_queues:
            self.slots, self.prefetch, self.concurrency = 1, 4, None
            self.offers = tuple(Offer(name) for name in HANDLERS)
        faults = world.faults
        self._rate = {
            kind: faults.rate(kind, most)
            for kind, most in (
                ("worker_killed_before_start", 0.05),
                ("worker_killed_after_effect", 0.05),
                ("worker_killed_after_result", 0.05),
                ("worker_killed_after_hello", 0.3),
            )
        }
        self._elsewhere = Random(f"{world.seed}/{self.name}/elsewhere")
        self._elsewhere_rate = faults.rate("worker_elsewhere", 0.5)
        self._backlog: list[tuple[str, tuple[Any, ...]]] = []
        self.ran = 0
        self._hellos = Random(f"{world.seed}/{self.name}/hellos")
        self._deadlines = Random(f"{world.seed}/{self.name}/deadlines")

    # -- life ---------------------------------------------------------------------------------------------------------

    def start(self) -> None:
        """Start a new process with a new worker id."""
        if self.is_alive:
            return
        world = self.world
        worker_id = self.new_id()
        if worker_id is None:
            return
        self.id = worker_id
        self.life += 1
        world.hostile.owners[worker_id] = self.principal
        self.is_alive = True
        self.is_paused = self.is_quiet = self.is_full = self.is_draining = False
        self._backlog = []
        self.pid = 100 * (self.number + 1) + self.life
        self.running: dict[Item, Running] = {}
        self.key_file = world.server_keys.file_of(self)
        config = Config(
            worker=self.id,
            offers=self.offers,
            slots=self.slots,
            prefetch=self.prefetch,
            accept_delay_ms=self.accept_delay_ms,
            host=self.host,
            pid=self.pid,
            pid_started=MISSTATED if self.misstates_start else 1 + self.life,
            proof=self.proof,
            links=self._configured_links(),
            curve=self.key_file is not None,
        )
        self.session, self.run_slots = self.new_session(config)
        self.ended_ms: deque[float] = deque(maxlen=100)  # when the latest runs ended
        self._wakes = 0
        self._wake_at = float("inf")
        self.links = {
            broker.id: world.network.connect(self, self.id, broker, self.key_file) for broker in self._reached_brokers()
        }
        world.trace("worker_started", self.id)
        self.session.start(self.now())
        self._pump()

    def _reached_brokers(self) -> "list[BrokerNode]":
        """All of them. By a fault, a process reaches one broker only: the endpoints of the others are wrong for it."""
        world = self.world
        if len(world.brokers) > 1:
            luck, place = self._elsewhere.random(), self._elsewhere.randrange(len(world.brokers))
            if luck < self._elsewhere_rate and world.faults.strikes("worker_elsewhere", self.id):
                return [world.brokers[place]]
        return world.brokers

    @property
    def link(self) -> "Link":
        """The connection to the first broker: of workers whose brokers have keys."""
        return self.links["b1"]

    @property
    def principal(self) -> str:
        return self.world.hostile.principal_of(self)

    def new_session(self, config: Config) -> tuple[Session, RunSlots[Running]]:
        """The session and the run slots of a new process."""
        chance = Random(f"{self.world.seed}/{self.id}")
        return Session(config, chance.random), RunSlots(self.slots, self.offers)

    def _configured_links(self) -> tuple[ConfiguredLink, ...]:
        """The endpoints of several brokers. Of one broker they are configured only where its key matters."""
        if len(self.world.brokers) == 1:
            return self.world.server_keys.links_of(self, self.key_file)
        return tuple(link_to(broker.id) for broker in self.world.brokers)

    def new_id(self) -> str | None:
        return f"{self.name}:{self.chance.getrandbits(64):016x}"

    def kill(self) -> None:
        if not self.is_alive:
            return
        world = self.world
        world.trace("worker_killed", self.id)
        self._end()
        down_ms = 100.0 + 4_000.0 * self.chance.random() ** 2
        if world.faults.is_over or world.restarts_workers:
            world.schedule.after(down_ms, self.start)

    def _end(self) -> None:
        self.is_alive = False
        self.is_paused = False
        self._backlog = []
        self.world.checks.worker_died(self)
        for running in self.running.values():
            running.has_ended = True
            self.world.checks.handler_ended(running, None)
        for link in self.links.values():
            self.world.network.worker_died(link)

    def pause(self, for_ms: float) -> None:
        if self.is_alive and not self.is_paused:
            self.world.trace("worker_paused", self.id)
            self.is_paused = True
            self.world.schedule.after(for_ms, self.resume, self.life)

    def resume(self, life: int) -> None:
        if not self.is_paused or self.life != life:
            return
        self.is_paused = False
        backlog, self._backlog = self._backlog, []
        # The thread of the sockets and those of the handlers wake up in any order.
        handlers_first = self.chance.random() < 0.5
        for first in (True, False):
            for kind, args in backlog:
                if (kind in _OF_HANDLERS) == (handlers_first == first):
                    self._enter(kind, args)

    def entered(self) -> Counter[int]:
        """The handlers that run now, by the number of their offer."""
        return Counter(running.offer for running in self.running.values() if running.entered)

    def drain(self, drain_ms: float) -> None:
        """End the worker, as on SIGTERM. Runs have this time to end."""
        if self.is_alive:
            self.post("drain", drain_ms)

    def quiet(self, for_ms: float) -> None:
        """Offer no credit, as on SIGTSTP, and drain later."""
        if self.is_alive:
            self.post("quiet")
            self._later(for_ms, "drain", float(DRAIN_MS))

    def refuse_for(self, for_ms: float) -> None:
        """The runner has no room for a while, although slots are free."""
        if self.is_alive:
            self.post("full", True)
            self._later(for_ms, "full", False)

    # -- events in ----------------------------------------------------------------------------------------------------

    def now(self) -> float:
        return self.clock.mono(self.world.schedule.now)

    def post(self, kind: str, *args: Any) -> None:
        if self.is_paused:
            self._backlog.append((kind, args))
        elif self.is_alive:
            self._enter(kind, args)

    def _enter(self, kind: str, args: tuple[Any, ...]) -> None:
        if self.is_alive:
            _ON[kind](self, *args)

    def _later(self, delay_ms: float, kind: str, *args: Any) -> None:
        self.world.schedule.after(delay_ms, self._come, self.life, kind, args)

    def _come(self, life: int, kind: str, args: tuple[Any, ...]) -> None:
        if life == self.life:
            if self.is_paused:
                self._backlog.append((kind, args))
            elif self.is_alive:
                self._enter(kind, args)

    def _on_message(self, frame: bytes) -> None:
        topic, body = codec.split(frame)
        self.world.checks.worker_received(self, body)
        self.session.receive(topic, body, self.now())
        self.world.checks.worker_handled(self, body)
        self._pump()

    def _on_wake(self, wake: int) -> None:
        if wake == self._wakes:
            self._wake_at = float("inf")
            self._pump()

    def _on_drain(self, drain_ms: float) -> None:
        if not self.is_draining:
            self._later(drain_ms, "expel")
        self.is_draining = True
        self.session.drain(self.now())
        self._pump()

    def _on_expel(self) -> None:
        """The time to drain is over: ask every run to stop, and do not wait for those that go on."""
        self.world.checks.drain_over(self)
        self._later(EXPEL_MS, "leave")
        self._expel()
        self._pump()

    def _expel(self) -> None:
        self.session.expel()

    def _on_leave(self) -> None:
        self._leave()

    def _on_quiet(self) -> None:
        self.is_quiet = True
        self.session.quiet(self.now())
        self._pump()

    def _on_full(self, is_full: bool) -> None:
        self.is_full = is_full
        self.session.full(is_full, self.now())
        self._pump()

    def _pump(self) -> None:
        session, now = self.session, self.now()
        for action in session.actions(now):
            _ACTS[type(action)](self, action)
            if not self.is_alive:
                return
        wake_at = session.wake_at()
        if wake_at < self._wake_at:
            self._wake_at = wake_at
            self._wakes += 1
            # The poll rounds milliseconds up.
            self._later(max(0.0, (wake_at - now) / self.clock.rate) + 0.5, "wake", self._wakes)

    # -- actions of the session ---------------------------------------------------------------------------------------

    def _send(self, action: Send) -> None:
        self.world.checks.worker_sent(self, action.body)
        links = self._links_of(action.topic)
        self.world.trace(f"{self.id}>{'+'.join(link.broker.id for link in links)}", action.body)
        frame = action.topic + action.body
        if action.body.startswith(b'{"type":"hello"') and self._dies_after_hello():
            for link in links:
                self.world.network.to_broker_later(link, frame)
            self.world.schedule.after(0.0, self._kill_in, self.life)
        else:
            for link in links:
                self.world.network.to_broker(link, frame)

    def _links_of(self, topic: bytes) -> "list[Link]":
        """The connections to the brokers that have subscribed to this topic."""
        if topic.startswith(RESULTS_AT):
            link = self.links.get(topic[len(RESULTS_AT) : -1].decode())
            return [] if link is None else [link]
        return list(self.links.values())

    def _dies_after_hello(self) -> bool:
        luck = self._hellos.random()
        name = f"{self.number}.{self.life}.{self.world.now}"
        return luck < self._rate["worker_killed_after_hello"] and self.world.faults.strikes(
            "worker_killed_after_hello", name
        )

    def _kill_in(self, life: int) -> None:
        if self.life == life:
            self.kill()

    def _run(self, action: Run) -> None:
        if self._hits("worker_killed_before_start", action.item):
            self.kill()
            return
        running = self.running[action.item] = Running(action, self.id)
        for started in self.run_slots.add([running]):
            self._start_soon(started)

    def _start_soon(self, running: Running) -> None:
        """The run has a slot. Its thread takes a moment to begin it."""
        self._later(3.0 * self.chance.random() ** 4, "start", running)

    def _release(self, running: Running) -> None:
        """Release the slot of a run. The runner starts the next one by itself, perhaps before the thread of the sockets
        runs again."""
        following = self.run_slots.release(running)
        if following is not None:
            if self._thread_chance.random() < 0.5:
                self._on_start(following)
            else:
                self._start_soon(following)

    def _cancel(self, action: CancelRun) -> None:
        running = self.running.get(action.item)
        if running is None or running.has_ended:
            return
        if running.cancel_reason in (None, "lease_lost"):
            running.cancel_reason = action.reason
        self.world.checks.stop_requested(running, action.reason)
        heeds = self.chance.random() < 0.6 and running.behaviour != "hangs"
        if heeds and running.entered and action.reason != "lease_lost":
            self._later(5.0 + 50.0 * self.chance.random(), "stop", running)

    def _connect(self, action: Connect) -> None:
        """Connect with another key of the broker, or to a broker that another one has listed."""
        if self.key_file is None:
            self._link_again(action.link)
            return
        self.link.key = action.server_key or self.key_file.key
        self.world.trace("worker_key", f"{self.id} {self.link.key}")
        self.world.network.reconnect(self.link)

    def _disconnect(self, action: Disconnect) -> None:
        link = self.links.get(_broker_at(action.link))
        if link is not None:  # a driver leaves its configured address when a list has another one: the same broker
            self.world.network.disconnect(link)

    def _rebuild(self, action: Rebuild) -> None:
        self._link_again(action.link)

    def _link_again(self, configured: ConfiguredLink) -> None:
        """Build new sockets for this pair of endpoints."""
        link = self.links.get(_broker_at(configured))
        if link is not None:
            self.world.network.reconnect(link)

    def _quit(self, action: Quit) -> None:
        self._leave()

    def _leave(self) -> None:
        world = self.world
        world.trace("worker_quit", self.id)
        self._end()
        world.schedule.after(200.0 + 2_000.0 * self.chance.random(), self.start)

    def _result_too_large(self, action: ResultTooLarge) -> None:
        pass  # only logged

    def _log(self, action: Log) -> None:
        self.world.checks.worker_logged(self.id, action)

    # -- handlers -----------------------------------------------------------------------------------------------------

    def _on_start(self, running: Running) -> None:
        """In a handler's thread: check the lease once more, then enter the handler."""
        run = running.run
        if not run.begin(self.now()) or running.cancel_reason is not None:
            self.running.pop(run.item, None)
            running.has_ended = True
            self._release(running)
            self.session.give_back(run.item, self.now())
            self._pump()
            return
        running.entered = True
        running.started_true_ms = self.world.now
        self.ran += 1
        self.world.checks.handler_entered(running, self)
        running.behaviour, took_ms = self._behaviour(run)
        running.done_at_ms = self.world.now + took_ms
        if running.behaviour == "progress":
            self._later(took_ms / 2, "progress", running)
        self._later(took_ms, "end", running)

    def _behaviour(self, run: Run) -> tuple[str, float]:
        left_ms = self._left_to_fail(run)
        if left_ms is not None:
            return "fails", left_ms
        chance = self.chance
        took_ms = 1.0 + chance.expovariate(1.0 / self.pace_ms)
        luck = chance.random()
        focus = self.world.focus
        if focus is not None and luck < focus.unknown_rate and not self.world.faults.is_over:
            return "unknown", took_ms
        if self.world.faults.is_over or luck >= self.mood:
            return "completes", min(took_ms, 2_000.0)
        behaviour = chance.choices(_KINDS, _SHARES)[0]
        if behaviour in ("hangs", "slow"):
            took_ms = run.step.metadata.timeout_ms * (0.8 + 1.5 * chance.random())
            if behaviour == "hangs":
                took_ms += 20_000.0 * chance.random()
        return behaviour, took_ms

    def _left_to_fail(self, run: Run) -> float | None:
        """Return when this run fails, for some runs of at_most_once steps with a deadline: so shortly before the
        deadline that the result and the broker's cancel cross."""
        step = run.step
        if step.metadata.deadline_ms is None or step.delivery_mode != "at_most_once" or self.world.faults.is_over:
            return None
        held = self.session.holdings.get(run.item)
        luck = self._deadlines.random()
        if held is None or luck < 0.5:
            return None
        return max(1.0, held.timeout_at_ms - self.now() - 100.0 * (luck - 0.5))

    def _on_progress(self, running: Running) -> None:
        if not running.has_ended:
            self.session.progressed(running.run.item, 1, 2, "half " * 50, self.now())
            self._pump()

    def _on_stop(self, running: Running) -> None:
        if not running.has_ended:
            assert running.cancel_reason is not None
            step = running.run.step
            version = _handler(step.handler_class).version
            self._finish(running, stopped(step, running.cancel_reason, 1.0, version))

    def _on_end(self, running: Running) -> None:
        if running.has_ended:
            return
        if self._hits("worker_killed_after_effect", running.run.item):
            self.kill()
            return
        step = running.run.step
        handler = _handler(step.handler_class)
        error: Exception
        if self.world.breakers.is_down(step.handler_class):
            self._finish(running, failed(handler, step, StepError("down", category="unavailable"), 1.0))
            return
        match running.behaviour:
            case "fails":
                error = ValueError("no")
            case "permanent":
                error = Permanent("never", code="declined")
            case "retry":
                error = Retry("later", after=0.2 + self.chance.random())
            case "unknown":
                error = OutcomeUnknown("who knows")
            case _:
                value = {"by": self.id, "run": self.ran, "n": step.step_id % 3, "pad": "x" * (step.step_id * 37 % 90)}
                self._finish(running, completed(handler, step, value, 1.0))
                return
        self._finish(running, failed(handler, step, error, 1.0))

    def _finish(self, running: Running, result: Any) -> None:
        running.has_ended = True
        item = running.run.item
        self.ended_ms.append(self.now())
        self.running.pop(item, None)
        if item[0] % 5 == 0:
            result = _with_stderr(result, f"{self.id} ran {item} " * (item[0] % 900))
        self.world.checks.handler_ended(running, result)
        self._release(running)
        if not self.is_alive:
            return
        self.session.finished(item, result, self.now())
        self._pump()
        if self.is_alive and self._hits("worker_killed_after_result", item):
            self.kill()

    def _hits(self, kind: str, item: Item) -> bool:
        luck = self.chance.random()
        return luck < self._rate[kind] and self.world.faults.strikes(kind, f"{item[0]}.{item[1]}.{self.life}")


_OF_HANDLERS: Final = frozenset({"start", "end", "stop", "progress"})
_BEHAVIOURS: Final = (
    ("fails", 0.35),
    ("permanent", 0.10),
    ("retry", 0.10),
    ("unknown", 0.10),
    ("hangs", 0.08),
    ("slow", 0.10),
    ("progress", 0.17),
)
_KINDS: Final = tuple(kind for kind, _ in _BEHAVIOURS)
_SHARES: Final = tuple(share for _, share in _BEHAVIOURS)
_ACTS: Final[dict[type, Callable[[Any, Any], None]]] = {
    Send: WorkerNode._send,
    Run: WorkerNode._run,
    CancelRun: WorkerNode._cancel,
    Connect: WorkerNode._connect,
    Disconnect: WorkerNode._disconnect,
    Rebuild: WorkerNode._rebuild,
    Quit: WorkerNode._quit,
    ResultTooLarge: WorkerNode._result_too_large,
    Log: WorkerNode._log,
}
_ON: Final[dict[str, Callable[..., None]]] = {
    name.removeprefix("_on_"): on for name, on in vars(WorkerNode).items() if name.startswith("_on_")
}
_handlers: dict[str, Handler] = {}


def link_to(broker: str) -> ConfiguredLink:
    return ConfiguredLink(f"tcp://{broker}:7411", f"tcp://{broker}:7412")


def _broker_at(link: ConfiguredLink) -> str:
    """The broker at these endpoints, whose host has its name. Others are a proxy of the first broker."""
    host = link.steps.removeprefix("tcp://").partition(":")[0]
    return "b1" if host == "proxy" else host


def _with_stderr(result: Result, text: str) -> Result:
    metadata = msgspec.structs.replace(result.metadata or ResultMetadata(), stderr=text)
    return msgspec.structs.replace(result, metadata=metadata)


def _handler(name: str) -> Handler:
    known = _handlers.get(name)
    if known is None:
        known = _handlers[name] = make_handler(lambda context: None, name)
    return known


__all__ = ["HANDLERS", "Running", "WorkerNode", "msgspec"]
