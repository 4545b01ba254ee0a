"""A level-0 handler: a plain loop, one batch after the other, without sessions, leases or deliveries.

The handler answers late, twice, with a whole batch of errors, with an invalid message, or never. It is killed and
suspended. Some handlers do not know some handler classes, and answer so.
"""

from random import Random
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import msgspec
from stepwire_broker.core.workers.level0 import peer_name
from stepwire_protocol import codec, limits, topics
from stepwire_protocol.messages import ErrorDetail, Result, ResultsLevel0, StepRequestLevel0, StepsLevel0

if TYPE_CHECKING:
    from .world import World

HANDLER: Final = "z0"  # no worker offers it


class Received(NamedTuple):
    """A step that this handler received, with the member names of a worker's run."""

    item: tuple[int, int]
    step: StepRequestLevel0


class RunningAtLevel0:
    """One call of a handler."""

    def __init__(self, run: Received, worker: str) -> None:
        self.run = run
        self.worker = worker
        self.entered = True


class PeerNode:
    at_level0 = True

    def __init__(self, world: "World", number: int) -> None:
        self.world = world
        self.name = f"p{number}"
        self.chance = chance = Random(f"{world.seed}/{self.name}")
        self.life = 0
        self.is_alive = False
        self.is_paused = False
        self.is_busy = False
        self.mood = chance.choice((0.0, 0.1, 0.3))
        self.pace_ms = 10.0 + 1_500.0 * chance.random() ** 3
        self.ran = 0
        self.unknown = unknown = Random(f"{world.seed}/{self.name}/unknown")
        self.knows_all = unknown.random() < 0.5
        self.knows_own = number == 0 or unknown.random() < 0.4
        self._backlog: list[tuple[str, tuple[Any, ...]]] = []

    # -- life ---------------------------------------------------------------------------------------------------------

    def start(self) -> None:
        if self.is_alive:
            return
        self.life += 1
        self.is_alive = True
        self.is_paused = self.is_busy = False
        self._backlog = []
        self._queue: list[StepsLevel0] = []
        self._at: RunningAtLevel0 | None = None
        self.id = f"{self.name}.{self.life}"
        self.world.trace("peer_started", self.id)
        self.links = {broker.id: self.world.network.connect(self, self.id, broker) for broker in self.world.brokers}

    @property
    def principal(self) -> str:
        return self.world.hostile.principal_of(self)

    def kill(self) -> None:
        if not self.is_alive:
            return
        world = self.world
        world.trace("peer_killed", self.id)
        self.is_alive = self.is_paused = False
        self._backlog = []
        if self._at is not None:
            world.checks.handler_ended(self._at, None)
            self._at = None
        for link in self.links.values():
            world.network.worker_died(link)
        down_ms = 100.0 + 4_000.0 * self.chance.random() ** 2
        if world.faults.is_over or world.restarts_workers:
            world.schedule.after(down_ms, self.start)

    def pause(self, for_ms: float) -> None:
        if self.is_alive and not self.is_paused:
            self.world.trace("peer_paused", self.id)
            self.is_paused = True
            self.world.schedule.after(for_ms, self.resume, self.life)

    def resume(self, life: int) -> None:
        if self.is_paused and self.life == life:
            self.is_paused = False
            backlog, self._backlog = self._backlog, []
            for kind, args in backlog:
                self.post(kind, *args)

    # -- the loop -----------------------------------------------------------------------------------------------------

    def post(self, kind: str, *args: Any) -> None:
        if self.is_paused:
            self._backlog.append((kind, args))
        elif self.is_alive:
            getattr(self, "_on_" + kind)(*args)

    def _later(self, delay_ms: float, kind: str, *args: Any) -> None:
        self.world.schedule.after(delay_ms, self._come, self.life, kind, args)

    def _come(self, life: int, kind: str, args: tuple[Any, ...]) -> None:
        if life == self.life:
            self.post(kind, *args)

    def _on_message(self, frame: bytes) -> None:
        self._queue.append(codec.decode_steps_level0(codec.split(frame)[1]))
        if not self.is_busy:
            self._next()

    def _next(self) -> None:
        self.is_busy = bool(self._queue)
        if self._queue:
            batch = self._queue.pop(0)
            if not all(map(self._knows, batch.steps)) and self.unknown.random() < 0.3:
                self._later(self._refusal_ms(batch.steps[0]), "refusal", batch)
            else:
                self._run(batch, [])

    def _run(self, batch: StepsLevel0, results: list[Result]) -> None:
        step = batch.steps[len(results)]
        if not self._knows(step):
            self._later(self._refusal_ms(step), "unknown", batch, results)
            return
        worker = peer_name(batch.to, self.principal)
        delivery = self.world.checks.books.delivery_of(step.step_id, worker, batch.batch_id)
        running = self._at = RunningAtLevel0(Received((step.step_id, delivery), step), worker)
        self.ran += 1
        self.world.checks.handler_entered(running, self)
        took_ms = 1.0 + self.chance.expovariate(1.0 / self.pace_ms)
        if self._is_moody() and self.chance.random() < 0.3:
            took_ms = step.metadata.timeout_ms * (0.8 + 1.5 * self.chance.random()) + 9_000.0 * self.chance.random()
        self._later(min(took_ms, 30_000.0), "end", batch, results, running)

    def _is_moody(self) -> bool:
        luck = self.chance.random()
        return luck < self.mood and not self.world.faults.is_over

    def _on_end(self, batch: StepsLevel0, results: list[Result], running: RunningAtLevel0) -> None:
        step_id, delivery = running.run.item
        self._at = None
        if self._is_moody():
            error = ErrorDetail(message="no", retryable=self.chance.random() < 0.8)
            result = Result(step_id=step_id, status=self.chance.choice(("failed", "error")), error=error)
        else:
            value = {"by": self.id, "run": self.ran, "n": step_id % 3}
            result = Result(step_id=step_id, status="completed", output=msgspec.Raw(msgspec.json.encode(value)))
            self.world.checks.level0_returned(step_id, delivery, bytes(result.output))
        self.world.checks.handler_ended(running, result)
        self._go_on(batch, results, result)

    def _go_on(self, batch: StepsLevel0, results: list[Result], result: Result) -> None:
        results.append(result)
        if len(results) < len(batch.steps):
            self._run(batch, results)
            return
        self._answer(batch, results)
        self._next()

    # -- handler classes that it does not know ------------------------------------------------------------------------

    def _knows(self, step: StepRequestLevel0) -> bool:
        return self.knows_own if step.handler_class == HANDLER else self.knows_all

    def _refusal_ms(self, step: StepRequestLevel0) -> float:
        """The time until the answer: usually short, and after the lease for most at_most_once steps and some others."""
        definition = self.world.checks.books.definition(step.task_id, step.step_id - step.task_id - 1)
        share = 0.8 if definition.delivery_mode == "at_most_once" else 0.2
        if self.unknown.random() < share and not self.world.faults.is_over:
            return step.metadata.timeout_ms + 4_000.0 + 4_000.0 * self.unknown.random()
        return 1.0 + self.unknown.expovariate(1.0 / 20.0)

    def _error(self) -> ErrorDetail:
        return ErrorDetail(message="no", code="unknown_handler", retryable=self.unknown.choice((None, True, False)))

    def _on_unknown(self, batch: StepsLevel0, results: list[Result]) -> None:
        step_id = batch.steps[len(results)].step_id
        self.world.checks.books.returned.add((step_id, batch.batch_id))
        result = Result(step_id=step_id, status=self.unknown.choice(("failed", "error")), error=self._error())
        self._go_on(batch, results, result)

    def _on_refusal(self, batch: StepsLevel0) -> None:
        """Refuse the batch as a whole, before any of its steps runs."""
        books = self.world.checks.books
        books.returned.update((step.step_id, batch.batch_id) for step in batch.steps)
        if len({step.handler_class for step in batch.steps}) > 1:
            books.mixed_refusals.add(batch.batch_id)
        self._send(codec.encode(ResultsLevel0(batch_id=batch.batch_id, error=self._error())))
        self._next()

    def _answer(self, batch: StepsLevel0, results: list[Result]) -> None:
        luck = self.chance.random()
        if not self._is_moody():
            self._send_results(batch, results)
        elif luck < 0.3:
            self._send(b'{"batch_id":"' + batch.batch_id.encode() + b'","results":[}')
        elif luck < 0.6:
            self._send_results(batch, results)
            self._send_results(batch, results)
        elif luck < 0.8:
            stranger = results[0].step_id + self.chance.randint(1, 3)
            self._send_results(batch, [*results, Result(step_id=stranger, status="completed")])
        # else: the handler never answers

    def _send_results(self, batch: StepsLevel0, results: list[Result]) -> None:
        if len({result.step_id for result in results}) == len(results):
            self._send(
                codec.encode(
                    ResultsLevel0(
                        batch_id=batch.batch_id, protocol_version=limits.PROTOCOL_LEVEL_0, results=list(results)
                    )
                )
            )

    def _send(self, body: bytes) -> None:
        """Send to all brokers: an answer names no broker."""
        self.world.trace(f"{self.id}>{'+'.join(self.links)}", body)
        for link in self.links.values():
            self.world.network.to_broker(link, topics.RESULTS + body)
