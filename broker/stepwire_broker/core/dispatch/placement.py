"""Who runs what: ready steps go, a batch at a time, to the live session with the largest share of free slots.

Called when the lane's writer is about to take a group, so that a batch holds all that became ready meanwhile.
"""

from typing import Final

import msgspec
from msgspec import UNSET, Raw, UnsetType
from stepwire_protocol import codec, limits
from stepwire_protocol.messages import StepMetadata, StepRequest, Steps

from stepwire_broker.core.commit.decision import FetchPayloads
from stepwire_broker.core.commit.outbox import SendBatch
from stepwire_broker.core.definitions.input_mapping import mapped
from stepwire_broker.core.guards import allowance
from stepwire_broker.core.model import facts
from stepwire_broker.core.model.events import Now
from stepwire_broker.core.model.live import Step, StepBatch, Task, WorkerSession
from stepwire_broker.core.model.states import COMPLETED
from stepwire_broker.core.model.targets import Route
from stepwire_broker.core.progress.progress import enqueue, fail_for, hand_to
from stepwire_broker.core.shadows import copies
from stepwire_broker.core.state import BrokerState

V: Final = limits.PROTOCOL_LEVEL_1
REQUEST_OVERHEAD_BYTES: Final = 1_500  # what a request holds beside its payloads, at the most
FETCHES_IN_FLIGHT_MAX: Final = 256  # steps whose payloads are on their way from the database


def dispatch(state: BrokerState, now: Now, *, whole_batches: bool = False) -> None:
    """Hand out what is ready; with `whole_batches`, only while there is enough for a full one."""
    if state.draining or state.stalled is not None or not state.ready.count:
        return
    least = state.settings.bus.batch.max_steps if whole_batches else 1
    if state.ready.count < least:
        return
    aside: list[Step] = []
    fetch: list[Step] = []
    takers = _takers(state)
    rooms = allowance.limits(state, takers, now)
    if rooms:
        takers = _with_room(takers, rooms)
    while takers and len(aside) <= ASIDE_MAX and state.ready.count_of(takers) >= least:
        found = state.ready.next(takers)
        if found is None:
            break
        route, step = found
        session = _choose(takers[route], step)
        room = rooms.get(route)
        if room is None:
            others = {r: s for r, s in takers.items() if r not in rooms} if rooms else takers
            _fill(state, session, route, step, others, aside, fetch, now)
        else:
            stood = state.ready.count + 1
            others = {} if room.is_for_probes else {route: takers[route]}
            _fill(state, session, route, step, others, aside, fetch, now, most=room.left)
            room.left -= stood - state.ready.count
            takers = _with_room(takers, rooms)
        if session.credit <= 0 or session.suspects:
            takers = _without(takers, session)
    for step in aside:
        enqueue(state, step)
    if fetch:
        fetch_for(state, fetch)


ASIDE_MAX: Final = 200


def _takers(state: BrokerState) -> dict[Route, list[WorkerSession]]:
    """By route that has ready steps: the sessions that offer it and have room."""
    found: dict[Route, list[WorkerSession]] = {}
    for route in state.ready.routes():
        if route not in found:
            takers = [s for s in offering(state, route) if s.credit > 0 and not (route[2] and s.suspects)]
            if takers:
                found[route] = takers
    return found


def _without(takers: dict[Route, list[WorkerSession]], session: WorkerSession) -> dict[Route, list[WorkerSession]]:
    """It has no room any more; or none for a step that goes alone, because it has one."""
    full = session.credit <= 0
    left = {r: [s for s in sessions if s is not session or not (full or r[2])] for r, sessions in takers.items()}
    return {route: sessions for route, sessions in left.items() if sessions}


def _with_room(
    takers: dict[Route, list[WorkerSession]], rooms: dict[Route, allowance.Allowance]
) -> dict[Route, list[WorkerSession]]:
    """Without those routes of which nothing more may go now."""
    return {r: sessions for r, sessions in takers.items() if r not in rooms or rooms[r].left > 0}


def offering(state: BrokerState, route: Route) -> list[WorkerSession]:
    """Live sessions of the route's executor that offer this handler_class and bear the labels asked for."""
    cached = state.offer_cache.get(route)
    if cached is None:
        target, handler_class = route[:2]
        cached = state.offer_cache[route] = [
            s
            for s in state.sessions.values()
            if target.takes(s) and s.offers(handler_class) and handler_class not in s.unknown
        ]
    return cached


def _choose(takers: list[WorkerSession], step: Step) -> WorkerSession:
    """The largest free share, ties to the longest idle; who gave it back or lost it only if nobody else can."""
    allowed = takers
    if step.avoid:
        allowed = [s for s in allowed if s.worker not in step.avoid] or allowed
    if len(allowed) == 1:
        return allowed[0]
    return max(allowed, key=lambda s: (s.share, -s.idle_since_mono))


def _fill(
    state: BrokerState,
    session: WorkerSession,
    route: Route,
    first: Step,
    takers: dict[Route, list[WorkerSession]],
    aside: list[Step],
    fetch: list[Step],
    now: Now,
    *,
    most: int = limits.BATCH_ITEMS_MAX,
) -> None:
    """One batch for this session, beginning with this step; a step that goes alone is all of it."""
    settings = state.settings.bus.batch
    # Free slots are shared out before anybody's prefetch is filled.
    slots_free = session.credit - session.prefetch
    room = min(settings.max_steps, most, slots_free if slots_free > 0 else session.credit)
    bytes_left = min(settings.max_bytes, session.max_message_bytes - REQUEST_OVERHEAD_BYTES)
    own = set() if route[2] else {r for r, sessions in takers.items() if session in sessions and not r[2]}
    fetching = sum(map(len, state.fetching.values()))
    steps: list[Step] = []
    requests: list[StepRequest] = []
    later: list[Step] = []
    step: Step | None = first
    while step is not None:
        made = request_of(state, step, now, has_lease=session.has_lease)
        if made is None:
            if fetching + len(fetch) < FETCHES_IN_FLIGHT_MAX:
                fetch.append(step)
            else:
                aside.append(step)
        else:
            request, size = made
            if size > session.max_message_bytes - REQUEST_OVERHEAD_BYTES:
                fail_for(state, step, "too_large", now)
            elif requests and size > bytes_left:
                later.append(step)
                break
            else:
                bytes_left -= size
                steps.append(step)
                requests.append(request)
        step = None
        while own and len(steps) < room and len(aside) + len(later) <= ASIDE_MAX:
            found = state.ready.next(own)
            if found is None:
                break
            other, candidate = found
            if not candidate.avoid or _choose(takers[other], candidate) is session:
                step = candidate
                break
            later.append(candidate)
    for step in later:
        enqueue(state, step)
    if requests:
        _send(state, session, steps, requests, now)


def _send(state: BrokerState, session: WorkerSession, steps: list[Step], requests: list[StepRequest], now: Now) -> None:
    identity = state.identity
    state.batches += 1
    batch_id = f"batch_{identity.nonce}_{state.batches}"
    frame = codec.frame(
        session.topic,
        Steps(
            v=V,
            broker=identity.broker,
            epoch=identity.epoch,
            session=session.id,
            batch_id=batch_id,
            protocol_version=V,
            steps=requests,
        ),
    )
    batch = StepBatch(id=batch_id, session=session, steps=steps, frame=frame)
    has_asides = state.router.has_asides
    for step, request in zip(steps, requests, strict=True):
        state.record(
            step.task,
            facts.Dispatched(now.wall, step.position, request.delivery, session.worker, batch_id),
        )
        step.batch = batch
        if has_asides:
            copies.handed(state, step, request)
        step.payload_context = None
        step.fetched_outputs = None
        hand_to(step, session)
        if not session.has_lease:
            # Nobody renews a lease here: each step has the time of all that stand before it.
            ahead = len(session.deliveries)
            due = now.mono + ahead * (step.definition.timeout_ms + limits.TIMEOUT_GRACE_MS)
            state.timers.set(due, "unstarted", (step, request.delivery))
    if state.guards.by_handler:
        allowance.handed(state, steps, now)
    session.unanswered += len(steps)
    session.unanswered_batches[batch_id] = batch
    session.idle_since_mono = now.mono
    state.counters.dispatched += len(steps)
    state.outbox.send(SendBatch(batch))


def request_of(state: BrokerState, step: Step, now: Now, *, has_lease: bool) -> tuple[StepRequest, int] | None:
    """The step as its worker gets it, and about its size. None when a payload has to be fetched first."""
    task, definition = step.task, step.definition
    context = task.context if task.context is not None else step.payload_context
    if context is None:
        return None
    previous = _previous(step)
    if previous is None:
        return None
    given: Raw | UnsetType = UNSET
    if definition.input is not None:
        given = Raw(mapped(definition.input, context, lambda name: _output_of(step, task.workflow.by_name[name])))
    key = f"{task.uid}/{definition.name}"
    if step.key_number:
        key = f"{key}/{step.key_number}"
    request = StepRequest(
        step_id=step.id,
        task_id=task.id,
        step_name=definition.name,
        handler_class=definition.handler_class,
        handler_config=definition.handler_config,
        task_context=Raw(context),
        previous_results=Raw(previous),
        input=given,
        delivery=step.delivery + 1,
        delivery_mode="at_most_once" if not has_lease else definition.delivery_mode,
        metadata=StepMetadata(
            attempt=step.attempt,
            retry_limit=definition.retry_limit,
            timeout_ms=definition.timeout_ms,
            idempotency_key=key,
            traceparent=f"00-{task.uid}-{(step.id << 10 | (step.delivery + 1) & 1023):016x}-01",
            deadline_ms=None if step.deadline_mono is None else max(0, step.deadline_mono - now.mono),
        ),
    )
    size = len(context) + len(previous) + len(bytes(definition.handler_config)) + REQUEST_OVERHEAD_BYTES // 2
    return request, size + (0 if given is UNSET else len(bytes(given)))


def _output_of(step: Step, index: int) -> bytes | None:
    before = step.task.steps[index]
    if before.state is not COMPLETED:
        return None
    if before.output is not None:
        return before.output
    return step.fetched_outputs.get(index) if step.fetched_outputs is not None else None


def _previous(step: Step) -> bytes | None:
    """The outputs of its direct dependencies by name. None when one of them has to be fetched first."""
    members = []
    for index in step.definition.depends_on:
        before = step.task.steps[index]
        if before.state is COMPLETED:
            output = _output_of(step, index)
            if output is None:
                return None
            members.append(b'"%s":%s' % (before.definition.name.encode(), output))
    return b"{" + b",".join(members) + b"}"


def fetch_for(state: BrokerState, steps: list[Step]) -> None:
    request = state.next_read()
    tasks: set[int] = set()
    outputs: set[int] = set()
    for step in steps:
        missing_context, missing_outputs = missing_payloads(step)
        if missing_context:
            tasks.add(step.task.id)
        outputs.update(missing_outputs)
    state.fetching[request] = steps
    state.decision.reads.append(FetchPayloads(request, sorted(tasks), sorted(outputs)))


def forget_fetched(state: BrokerState, steps: list[Step]) -> None:
    """What is fetched for these, or is on its way, is of a run that no longer counts."""
    for step in steps:
        step.payload_context = step.fetched_outputs = None
    for fetching in state.fetching.values():
        fetching[:] = [step for step in fetching if step not in steps]


def missing_payloads(step: Step) -> tuple[bool, list[int]]:
    """Is the context not in memory, and which steps' outputs are not?"""
    task: Task = step.task
    before = [task.steps[i] for i in step.definition.depends_on]
    return task.context is None, [s.id for s in before if s.state is COMPLETED and s.output is None]


def retransmit(state: BrokerState, batch: StepBatch, now: Now) -> None:
    """It was not answered: the same bytes again, inside this session only."""
    session = batch.session
    if batch.answered or session.dead:
        return
    if session.has_lease and now.mono - batch.released_mono >= state.settings.bus.lease_ms:
        # It renews its lease and says nothing of what it was given: let the lease run out, then the steps are ours.
        session.muted = True
        return
    if not say_again(state, batch):
        return
    state.counters.retransmitted += 1
    batch.pause_ms = min(batch.pause_ms * 2, limits.STEPS_RETRANSMIT_MAX_MS)
    state.timers.set(now.mono + batch.pause_ms, "retransmit", batch)


def say_again(state: BrokerState, batch: StepBatch) -> bool:
    """The same bytes, without what has been taken back meanwhile: a worker that has not heard of a delivery would start
    it. False: nothing is left of the batch."""
    current = [step for step in batch.steps if step.batch is batch]
    if len(current) < len(batch.steps):
        session = batch.session
        session.unanswered -= len(batch.steps) - len(current)
        batch.steps = current
        if not current:
            batch.answered = True
            del session.unanswered_batches[batch.id]
            return False
        topic, body = codec.split(batch.frame)
        message = codec.decode_broker(body)
        assert isinstance(message, Steps)
        ids = {step.id for step in current}
        left = [request for request in message.steps if request.step_id in ids]
        batch.frame = codec.frame(topic, msgspec.structs.replace(message, steps=left))
    state.decision.batches.append(batch)
    return True


def released(state: BrokerState, batch: StepBatch, now: Now) -> None:
    """Its commit is done: it leaves now, and from now its answer is waited for."""
    if batch.session.dead or batch.answered:
        return
    batch.released = True
    batch.released_mono = now.mono
    state.decision.batches.append(batch)
    state.timers.set(now.mono + batch.pause_ms, "retransmit", batch)
