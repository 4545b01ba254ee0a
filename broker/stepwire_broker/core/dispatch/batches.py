"""Fill one batch with ready steps, for a worker with a session or for a level-0 peer."""

from collections.abc import Callable
from typing import Final

from stepwire_protocol.messages import StepRequest

from stepwire_broker.core.model import facts
from stepwire_broker.core.model.events import Now
from stepwire_broker.core.model.live import Step
from stepwire_broker.core.progress.readiness import enqueue
from stepwire_broker.core.progress.step_outcomes import fail_for
from stepwire_broker.core.shadows import copies
from stepwire_broker.core.state import BrokerState

from .payloads import fetch_payloads
from .requests import REQUEST_OVERHEAD_BYTES, request_of

ASIDE_MAX: Final = 200  # a round ends when it has set aside more steps than this
MESSAGE_BYTES_UNIT: Final = 4096  # limits the number of routes of large steps
FETCHES_IN_FLIGHT_MAX: Final = 256  # steps whose payloads are being read from the database


class DispatchRound:
    """One pass of dispatch over the ready queue, with the steps that it took out and could not hand out."""

    def __init__(self, state: BrokerState) -> None:
        # Lanes whose steps are not handed out now. A lane that is being given up leaves its steps to the next owner.
        self.stalled = {n for n, lane in state.outbox.lanes.items() if lane.stalled is not None}
        self.stalled |= {n for n, own in state.lanes.items() if own.release is not None}
        self.has_rerouted = False  # a step was queued again, for workers that accept larger messages
        self.aside: list[Step] = []  # returned to the queue when the round ends
        self._fetch: list[Step] = []
        self._fetches_in_flight = sum(map(len, state.fetching.values()))

    @property
    def is_over(self) -> bool:
        return len(self.aside) > ASIDE_MAX

    def await_payload(self, step: Step) -> None:
        if self._fetches_in_flight + len(self._fetch) < FETCHES_IN_FLIGHT_MAX:
            self._fetch.append(step)
        else:
            self.aside.append(step)

    def end(self, state: BrokerState) -> None:
        for step in self.aside:
            enqueue(state, step)
        if self._fetch:
            fetch_payloads(state, self._fetch)


class BatchFiller:
    """Steps and their requests for one batch, within its limits of steps and bytes."""

    def __init__(
        self, round: DispatchRound, now: Now, *, steps_max: int, message_bytes_max: int, bytes_max: int, has_lease: bool
    ) -> None:
        self.steps: list[Step] = []
        self.requests: list[StepRequest] = []
        self.left_over: list[Step] = []  # taken out of the queue, but not added to this batch
        self._round = round
        self._now = now
        self._steps_max = steps_max
        self._step_bytes_max = message_bytes_max - REQUEST_OVERHEAD_BYTES
        self._bytes_left = min(bytes_max, self._step_bytes_max)
        self._has_lease = has_lease

    @property
    def has_too_many_aside(self) -> bool:
        return len(self._round.aside) + len(self.left_over) > ASIDE_MAX

    def fill(self, state: BrokerState, first: Step, next_step: Callable[[], Step | None]) -> None:
        """Add the first step, then the steps that `next_step` takes out of the queue, until the batch is full."""
        steps, requests, now, has_lease = self.steps, self.requests, self._now, self._has_lease
        bytes_left, step_bytes_max = self._bytes_left, self._step_bytes_max
        step: Step | None = first
        stalled = self._round.stalled
        while step is not None:
            if stalled and step.task.lane in stalled:
                state.outbox.lanes[step.task.lane].waiting.append(step)
                step = next_step()
                continue
            made = request_of(step, now, has_lease=has_lease)
            if made is None:
                self._round.await_payload(step)
                if self.has_too_many_aside:
                    break
            elif made[1] > step_bytes_max:
                self._set_apart(state, step, made[1] + REQUEST_OVERHEAD_BYTES)
            elif requests and made[1] > bytes_left:
                self.left_over.append(step)
                break
            else:
                bytes_left -= made[1]
                steps.append(step)
                requests.append(made[0])
                if len(steps) >= self._steps_max:
                    break
            step = next_step()

    def _set_apart(self, state: BrokerState, step: Step, message_bytes: int) -> None:
        """Queue a step that is too large for this worker for workers that accept larger messages. Fail the step if the
        broker itself accepts no message of this size."""
        if message_bytes > state.settings.bus.max_message_bytes:
            fail_for(state, step, "too_large", self._now)
            return
        step.message_bytes = -(-message_bytes // MESSAGE_BYTES_UNIT) * MESSAGE_BYTES_UNIT
        step.payload_context = step.fetched_outputs = None  # no worker for it may be connected for a long time
        enqueue(state, step)
        self._round.has_rerouted = True


def record_dispatches(
    state: BrokerState, steps: list[Step], requests: list[StepRequest], worker: str, batch_id: str, now: Now
) -> None:
    """Record that these steps are handed out in this batch.

    A copy of a step is noted if its rule requests one. The payloads that were fetched for the steps are dropped.
    """
    has_asides = state.router.has_asides
    for step, request in zip(steps, requests, strict=True):
        state.record(step.task, facts.Dispatched(now.wall, step.position, request.delivery, worker, batch_id))
        if has_asides:
            copies.handed(state, step, request)
        if step.payload_context is not None or step.fetched_outputs is not None:
            step.payload_context = step.fetched_outputs = None
