"""Two or more workers share the steps of one broker, in simulated time.

The core, the SDK's sessions and the slots of its runners are the shipped ones. A message takes MESSAGE_MS. A run takes
as long as `length` says, times the factor of its worker.
"""

from collections.abc import Callable
from heapq import heappop, heappush
from itertools import count
from typing import Any, Final

from msgspec import Raw
from stepwire.actions import Run, Send
from stepwire.runners.run_slots import RunSlots
from stepwire.session import Config, Offer, Session
from stepwire_broker.core import letters
from stepwire_broker.core.model import events
from stepwire_protocol import codec, topics
from stepwire_protocol.messages import Result

from .world import ONE, World, worker_id

MESSAGE_MS: Final = 0.5


class SharingWorker:
    """One worker: its session, and handlers that only take time."""

    def __init__(
        self,
        work: "SharedWork",
        number: int,
        factor: float,
        slots: int,
        concurrency: int | None = None,
        **config: Any,
    ) -> None:
        self.work = work
        self.id = worker_id("w", number)
        self.factor = factor
        self.slots = slots
        offers = (Offer("**", concurrency),)
        self.session = Session(Config(worker=self.id, offers=offers, slots=slots, **config), lambda: 0.5)
        self.run_slots: RunSlots[Run] = RunSlots(slots, offers)
        self.running = 0
        self.ran = 0
        self.waiting_max = 0
        self._wake_at = float("inf")
        self.session.start(work.now)

    @property
    def waiting(self) -> int:
        """The steps that it holds and has not begun."""
        return self.session.holdings.load - self.running

    def receive(self, frame: bytes) -> None:
        topic, body = codec.split(frame)
        self.session.receive(topic, body, self.work.now)
        self.act()

    def act(self) -> None:
        now = self.work.now
        for action in self.session.actions(now):
            if isinstance(action, Send):
                self.work.later(MESSAGE_MS, self.work.hear, action.body)
            elif isinstance(action, Run):
                for run in self.run_slots.add([action]):
                    self._begin(run)
        self.waiting_max = max(self.waiting_max, self.waiting)
        wake_at = self.session.wake_at()
        if wake_at < self._wake_at:
            self._wake_at = wake_at
            self.work.later(max(0.0, wake_at - now), self._wake, wake_at)

    def _wake(self, wake_at: float) -> None:
        if wake_at == self._wake_at:
            self._wake_at = float("inf")
            self.act()

    def _begin(self, run: Run) -> None:
        following: Run | None = run
        while following is not None:
            if following.begin(self.work.now):
                self.running += 1
                self.work.later(self.work.length(following.step.step_id) * self.factor, self._end, following)
                return
            given_back, following = following, self.run_slots.release(following)
            self.session.give_back(given_back.item, self.work.now)

    def _end(self, run: Run) -> None:
        self.running -= 1
        self.ran += 1
        step_id, delivery = run.item
        following = self.run_slots.release(run)
        if following is not None:
            self._begin(following)
        result = Result(step_id=step_id, delivery=delivery, status="completed", output=Raw(b"null"))
        self.session.finished(run.item, result, self.work.now)
        self.act()


class SharedWork:
    """A broker with ready steps, and its workers."""

    def __init__(self, length: Callable[[int], float], factors: tuple[float, ...], slots: int, **config: Any) -> None:
        self.length = length
        self.world = World()
        self.now = float(self.world.mono)
        self.sat_ms = 0.0  # the longest time for which a step waited at one worker while another had a free slot
        self._sits_since: float | None = None
        self._seq = count()
        self._due: list[tuple[float, int, Callable[..., None], tuple[Any, ...]]] = []
        self.world.apply(ONE)
        self.workers = [SharingWorker(self, i, factor, slots, **config) for i, factor in enumerate(factors, 1)]
        for worker in self.workers:
            self.later(0, self._greet, worker)
        self.pass_time(50)

    def _greet(self, worker: SharingWorker) -> None:
        """Announce the broker, which a worker learns from the bus."""
        worker.receive(codec.frame(topics.BROKERS, letters.here(self.world.state.identity)))

    def later(self, ms: float, function: Callable[..., None], *args: Any) -> None:
        heappush(self._due, (self.now + ms, next(self._seq), function, args))

    def hear(self, body: bytes) -> None:
        """A message of a worker reaches the broker."""
        self.world.handle(codec.decode_worker(body))
        self._deliver()

    def submit(self, tasks: int) -> None:
        self.world.submit(count=tasks)
        self._deliver()

    def pass_time(self, ms: float) -> None:
        self.run_until(lambda: False, self.now + ms)

    def finish(self, within_ms: float) -> None:
        """Run until no step is open."""
        self.run_until(lambda: not self.world.state.tasks, self.now + within_ms)
        assert not self.world.state.tasks, f"{len(self.world.state.tasks)} tasks are open after {within_ms} ms"

    def run_until(self, is_over: Callable[[], bool], end_ms: float) -> None:
        while not is_over():
            wake_at = self.world.machine.wake_at
            at_ms = min(self._due[0][0] if self._due else end_ms, end_ms if wake_at is None else wake_at)
            if at_ms >= end_ms:
                self.now = end_ms
                break
            self.now = max(self.now, at_ms)
            self.world.mono = max(self.world.mono, int(self.now))
            if self._due and self._due[0][0] <= self.now:
                _, _, function, args = heappop(self._due)
                function(*args)
            else:
                self.world.handle(events.Tick())
                self._deliver()
            self._note_sitting()

    def _deliver(self) -> None:
        frames, self.world.frames = self.world.frames, []
        for frame in frames:
            to = topics.worker_of(codec.split(frame)[0])
            self.later(MESSAGE_MS, next(w for w in self.workers if w.id == to).receive, frame)

    def _note_sitting(self) -> None:
        sits = any(a.waiting > 0 and b.running < b.slots for a in self.workers for b in self.workers if a is not b)
        if not sits:
            self._sits_since = None
        elif self._sits_since is None:
            self._sits_since = self.now
        else:
            self.sat_ms = max(self.sat_ms, self.now - self._sits_since)
