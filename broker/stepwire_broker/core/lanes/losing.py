"""A lane that this broker no longer owns: its tasks leave memory, and nothing that depends on them is sent.

The broker goes on with its other lanes. Its workers keep the runs of the lane, which the new owner adopts. A session
with a delivery of the lane ends: acks of its heartbeats would renew the lease of steps that the new owner may take
back.
"""

from stepwire_broker.core.answers.answers import CommandRefused
from stepwire_broker.core.answers.hints import Hint, HintCode
from stepwire_broker.core.commit.decision import LaneEnding, LaneGone, WaitElsewhere
from stepwire_broker.core.commit.outbox import LaneState, Send, SendAnswer, SendHandout
from stepwire_broker.core.commit.own_lane import OwnLane, count
from stepwire_broker.core.intake import submission
from stepwire_broker.core.model.commit_group import LaneLost, LostCommits
from stepwire_broker.core.model.events import Now
from stepwire_broker.core.model.live import Task, WorkerSession
from stepwire_broker.core.progress.deliveries import remove_delivery
from stepwire_broker.core.sharing import orders
from stepwire_broker.core.state import BrokerState
from stepwire_broker.core.workers import level0
from stepwire_broker.core.workers.replies import send_reset

from .opening import note_controls


def on_lost(state: BrokerState, event: LaneLost, now: Now) -> None:
    """Another broker has taken the lane."""
    state.stopped.pop(event.lane, None)
    if event.lane in state.lanes:
        forget(state, event.lane, "lost", f"lane {event.lane} belongs to another broker now", now)


def on_lost_commits(state: BrokerState, event: LostCommits, now: Now) -> None:
    """Stop a lane whose committed groups are partly gone: what was answered about it may be untrue. An operator decides
    how it goes on."""
    if event.lane in state.lanes:
        state.stopped[event.lane] = event.error
        forget(state, event.lane, "commits_lost", event.error, now)


def forget(state: BrokerState, number: int, cause: LaneEnding, text: str, now: Now) -> None:
    """Remove everything of this lane from memory. Requests whose answers depended on it get `commit_unknown`."""
    hint = Hint(HintCode.SEND_AGAIN_WITH_KEY)
    unknown = CommandRefused(
        "commit_unknown", f"{text}: the outcome of this request is unknown", hint, submission.RETRY_SOON_MS
    )
    lane, unsent = state.outbox.remove_lane(number)
    own = state.lanes.pop(number)
    for load in state.loads.values():
        load.gone_lanes.add(number)
    orders.forget_lane(state, number)
    _forget_requests(state, number, lane, unsent, unknown)
    tasks = [task for task in state.tasks.values() if task.lane == number]
    sessions = _forget_tasks(state, tasks)
    _end_handouts(state, unsent, now)
    if cause != "released":
        for session in sessions:
            expire(state, session, now)
    _forget_counts(state, own)
    state.outbox.keep_controls(lane)
    note_controls(state)
    state.counters.count_lane(cause)
    state.decision.lanes_gone.append(LaneGone(number, cause, text, len(tasks), len(sessions)))
    waiting, state.submissions_waiting, state.submissions_waiting_bytes = state.submissions_waiting, [], 0
    for event in waiting:
        submission.on_submit(state, event, now)


def _forget_requests(
    state: BrokerState, number: int, lane: LaneState, unsent: list[Send], unknown: CommandRefused
) -> None:
    for send in unsent:
        if isinstance(send, SendAnswer):
            state.refuse_now(send.request, unknown)
    for undecided in [each for each in state.undecided.values() if each.lane == number]:
        del state.undecided[undecided.request]
        state.reserved_tasks -= len(undecided.tasks)
        state.refuse_now(undecided.request, unknown)
    for building in [each for each in state.building.values() if each.lane == number]:
        del state.building[building.undecided.request]
        state.reserved_tasks -= len(building.undecided.tasks)
        state.refuse_now(building.undecided.request, unknown)
    for workflow in lane.workflows_unknown:
        if state.undecided_workflows.pop(workflow.request, None) is not None:
            state.refuse_now(workflow.request, unknown)
    for task_id in [task_id for task_id in state.waiters if state.lane_of(task_id) == number]:
        for request in state.waiters.pop(task_id):
            del state.asked[request]
            if state.is_shared:
                state.decision.waits.append(WaitElsewhere(request, task_id))
            else:
                state.refuse_now(request, unknown)


def _forget_tasks(state: BrokerState, tasks: list[Task]) -> list[WorkerSession]:
    """Remove these tasks from memory. Returns the sessions that held deliveries of them."""
    sessions: dict[str, WorkerSession] = {}
    for task in tasks:
        for step in task.steps:
            if step.session is not None:
                sessions[step.session.worker] = step.session
            remove_delivery(state, step)
        state.drop(task)
    state.ready.sweep()
    state.evict_from = 0
    return list(sessions.values())


def _end_handouts(state: BrokerState, unsent: list[Send], now: Now) -> None:
    """Make the steps of other lanes ready again, of batches for level 0 that were never sent."""
    for send in unsent:
        if isinstance(send, SendHandout):
            level0.not_sent(state, send.handout, now)


def expire(state: BrokerState, session: WorkerSession, now: Now) -> None:
    """End a session of a live worker: the worker drops what it has not started, keeps its runs, and opens another one.

    Until then the deliveries of other lanes stay with this session, whose lease still ends.
    """
    if not session.dead and not session.expired:
        session.expired = True
        state.offer_cache.clear()
        send_reset(state, session.worker, session.k, "expired", now)


def _forget_counts(state: BrokerState, own: OwnLane) -> None:
    for namespace, steps in own.open_by_namespace.items():
        state.open_steps -= steps
        count(state.open_by_namespace, namespace, -steps)
    state.unloaded -= own.unloaded
    for task_id in [task_id for task_id in state.rejected if state.lane_of(task_id) == own.number]:
        del state.rejected[task_id]
    # The new owner may reopen a task that ended here: its steps must not be taken for superseded ones later.
    for step_id in [step_id for step_id in state.ended if state.lane_of(step_id) == own.number]:
        del state.ended[step_id]
    state.large = [each for each in state.large if each[0].number != own.number]
    state.large_contexts = [each for each in state.large_contexts if each[0].number != own.number]
    state.shadows.wanted = [each for each in state.shadows.wanted if each.step.task.steps]
    state.undecided_steps = [step for step in state.undecided_steps if step.task.steps]
