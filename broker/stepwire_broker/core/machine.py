"""The core's single entry point: `handle(event, now) → Decision`. Equal events at equal times give equal decisions.

A decision has three parts. Facts change the live state and mark what must be written. Sends wait in the outbox until
everything they depend on is committed; the few that depend on nothing leave at once. Reads, watches and timers are
requested. `dispatch` then hands out ready steps, and `next_group` returns a lane's next transaction. The outcome of the
transaction returns as an event.
"""

from collections.abc import Callable
from typing import Any, Final, assert_never

from stepwire_protocol import messages as wire

from stepwire_broker.core.membership.notifications import Notification
from stepwire_broker.core.model.live import Task

from .answers import erasing
from .answers.answers import CommandRefused, ResultTaken
from .brokers import addresses
from .commit.decision import Decision, LoadById, LoadBySteps, ToRequest, ToWorker
from .commit.loads import CommandLoad, PageLoad, RejectedLoad, ResultsLoad
from .commit.outbox import LaneState, SendAck, SendAnswer, SendBatch, SendHandout, SendMessage
from .definitions.stored_rows import Loaded
from .definitions.workflow import Workflow
from .dispatch import level0_placement, placement, transmission
from .guards import allowance
from .intake import (
    auditing,
    commands,
    drain,
    erasure,
    grants,
    quotas,
    routing_rules,
    submission,
    workflows,
)
from .intake.submission import on_decided
from .intake.workflows import add_workflow, on_applied
from .lanes import beats, darkness, losing, moving, opening, releasing
from .loading import eviction, large_payloads, residency
from .loading.residency import keep_loading, load_for, not_found
from .membership.cluster_rows import Beaten
from .model import events
from .model.commit_group import CommitGroup, Committed, LaneLost, LostCommits, StallCode, Stalled
from .model.events import Event, Now
from .model.principal import PROCESS
from .progress.discard import discard, steps_to_blame
from .progress.readiness import enqueue
from .shadows import copies
from .sharing import catalogue, explaining, orders
from .state import BrokerState, Identity
from .timer_effects import on_tick
from .timer_kinds import FetchDue, GuardSweepDue, LookDue, ReloadDue
from .workers import (
    authority,
    batch_answers,
    executor_control,
    hello,
    holding,
    level0,
    loss,
    refusals,
)
from .workers.step_results import on_report, on_results, on_taken

NOTHING: Final = Decision()
TASK_COMMANDS: Final = {**commands.TASK_COMMANDS, **erasure.TASK_COMMANDS}
# These write what belongs to no task, so the broker must own a lane.
LANE_COMMANDS: Final = {
    **drain.COMMANDS,
    **moving.COMMANDS,
    **auditing.COMMANDS,
    **executor_control.COMMANDS,
    **allowance.COMMANDS,
    **routing_rules.COMMANDS,
}


class Machine:
    def __init__(self, state: BrokerState, workflows: list[tuple[Workflow, bool]]) -> None:
        self.state = state
        for workflow, active in workflows:
            add_workflow(state, workflow, active)
        for lane in state.lanes:
            opening.begin(state, lane)
        if state.guards.by_handler:
            state.timers.set(0, GuardSweepDue())
        if state.is_shared:
            state.timers.set(0, LookDue())

    def handle(self, event: Event, now: Now, principal: str = PROCESS) -> Decision:
        """Decide on one event. The Decision holds the actions that must be taken at once.

        `principal` is the identity that the event's connection proved; events that come from no connection are the
        process's own.
        """
        state = self.state
        state.principal = principal
        kind = type(event)
        if kind in MESSAGES:
            _on_message(state, event, now)
        elif not state.lanes and kind in LANE_COMMANDS:
            state.refuse_now(event.request, submission.no_lane())  # type: ignore[union-attr]
        else:
            HANDLERS[kind](state, event, now)
        return self._decided(now)

    def dispatch(self, now: Now) -> None:
        """Hand out ready steps. Their rows are part of the groups that `next_group` returns.

        A batch holds all steps that became ready while their lane's writer was busy. A full batch is handed out while
        the writer is still busy.
        """
        state = self.state
        if darkness.is_dark(state, now):
            return
        lanes = state.outbox.lanes
        idle = [number for number, lane in lanes.items() if lane.is_idle]
        if idle:
            placement.dispatch(state, now, idle if len(idle) < len(lanes) else None)
        if len(idle) < len(lanes):
            placement.dispatch(state, now, whole_batches=True)
        if idle and state.level0.peers:
            level0_placement.dispatch(state, now)
        if idle and state.shadows.wanted:
            copies.send_wanted(state, now)

    def next_group(self, lane: int, now: Now) -> tuple[CommitGroup | None, Decision]:
        """Return the lane's next transaction, if its writer is free and the outbox has one."""
        return self.state.outbox.close(lane, now), self._decided(now)

    @property
    def wake_at(self) -> int | None:
        """When a Tick is due, in `mono` milliseconds."""
        return self.state.timers.wake_at

    def _decided(self, now: Now) -> Decision:
        state = self.state
        if state.undecided_steps:
            large_payloads.fetch_for_rules(state)
        if state.unloaded > 0:
            keep_loading(state, now)
        if state.outbox:
            _release(state, now)
        decision = state.decision
        if decision.is_empty:
            return NOTHING  # not state.decision: the next turn adds to that object
        state.decision = Decision()
        return decision


def _on_message(state: BrokerState, message: Any, now: Now, *more: Any) -> None:
    refusal = authority.of_message(state, state.principal, message)
    if refusal is None:
        MESSAGES[type(message)](state, message, now, *more)
    else:
        refusals.on_unauthorized(state, message, refusal, now)


def _release(state: BrokerState, now: Now) -> None:
    """Send every message that waits for no open commit, unless its session is dead or its task's rows were refused."""
    decision = state.decision
    for send in state.outbox.released():
        if isinstance(send, SendBatch):
            transmission.released(state, send.batch, now)
        elif isinstance(send, SendAck):
            if not any(task.rejected for task in send.about):
                decision.sends.append(ToWorker(send.topic, send.message))
        elif isinstance(send, SendAnswer):
            _answer(state, send)
        elif isinstance(send, SendHandout):
            level0.released(state, send, now)
        elif send.session.is_addressable and not any(task.rejected for task in send.about) and not _is_erased(send):
            decision.sends.append(ToWorker(send.session.topic, send.message))


def _is_erased(send: SendMessage) -> bool:
    """True for a copy of a step that waited for the commit that also erased its task."""
    return isinstance(send.message, wire.Steps) and any(erasing.erased_ms(task.labels) for task in send.about)


def _answer(state: BrokerState, send: SendAnswer) -> None:
    task, answer = send.about, send.answer
    if task is not None and task.rejected:
        if send.awaits:
            commands.wait(state, send.request, task.id)  # the end of the task was not stored
            return
        answer = CommandRefused("refused_by_database", f"the database refused the data of task {task.id}")
    state.decision.answers.append(ToRequest(send.request, answer))


# -- commits ----------------------------------------------------------------------------------------------------------


def _on_committed(state: BrokerState, event: Committed, now: Now) -> None:
    lane = state.outbox.lanes.get(event.lane)
    if lane is None:
        return  # the lane was lost meanwhile
    if lane.stalled is not None:
        _go_on(state, lane)
    wrote = state.outbox.committed(event.lane, event.seq)
    for rejected in event.rejected:
        _on_rejected(state, rejected.task_id, rejected.error, now)
    for submitted in event.submissions:
        on_decided(state, submitted, now)
    for applied in event.workflows:
        on_applied(state, applied, now)
    orders.on_committed(state, event.lane, event.seq)
    if event.ids is not None:
        submission.on_numbers(state, event.lane, event.ids, now)
    eviction.settle(state, wrote, lane.dirty)
    if state.large or state.large_contexts:
        large_payloads.drop_large_payloads(state)


def _on_leave(state: BrokerState, event: events.Leave, now: Now) -> None:
    hello.on_leave(state, event, now)
    submission.return_numbers(state)


def _on_rejected(state: BrokerState, task_id: int, error: str, now: Now) -> None:
    """Reload a task whose rows the database refused in its stored state, and park the input that caused the refusal.

    A step that a command ended is no culprit: the command is refused, and a step that was held stays held. A step that
    ended after the group was closed is none either: its rows were not in the group. Its worker repeats the result.
    """
    task = state.tasks.get(task_id)
    if task is None:
        return
    culprits = steps_to_blame(task)
    discard(state, task, now)
    orders.refuse_for(state, task_id)
    state.count_unloaded(task.lane, 1)
    request = state.next_read()
    state.rejected[task_id] = (culprits, error)
    state.loads[request] = RejectedLoad(task_id)
    state.decision.reads.append(LoadById(request, [task_id]))


def _on_stalled(state: BrokerState, event: Stalled, now: Now) -> None:
    lane = state.outbox.lanes.get(event.lane)
    if lane is not None:
        lane.stalled = event.code


def _go_on(state: BrokerState, lane: LaneState) -> None:
    """Queue the steps that were not dispatched because their lane could not be written."""
    lane.stalled = None
    waiting, lane.waiting = lane.waiting, []
    for step in waiting:
        enqueue(state, step)


# -- reads ------------------------------------------------------------------------------------------------------------


def _on_loaded(state: BrokerState, event: events.LoadedTasks, now: Now) -> None:
    if not all(row.workflow_id in state.workflows for row in event.loaded.tasks) and state.catalogue.look_up(
        event, state
    ):
        return  # another broker applied the workflow a moment ago
    load = state.loads.pop(event.request)
    match load:
        case PageLoad():
            residency.on_page(state, event.loaded, event.request, load, now)
        case ResultsLoad():
            loaded = residency.of_own_lanes(state, event.loaded, load)
            residency.insert(state, loaded, load, now)
            state.principal = load.principal
            _on_message(state, load.message, now, event.absent - _steps_in(loaded, load.gone))
        case CommandLoad():
            _command_again(state, event.loaded, load, now)
        case RejectedLoad():
            residency.insert(state, event.loaded, load, now)
        case _:
            assert_never(load)


def _steps_in(loaded: Loaded, gone: set[int]) -> frozenset[int]:
    return frozenset(step.id for step in loaded.steps if step.task_id in gone)


def _command_again(state: BrokerState, loaded: Loaded, load: CommandLoad, now: Now) -> None:
    """Handle the command again with the loaded task. A finished task stays in memory only if the command reopens it."""
    command = load.command
    if not loaded.tasks:
        state.refuse_now(command.request, not_found(command))
        return
    row = loaded.tasks[0]
    if row.id in load.gone and row.id not in state.tasks:
        load_for(state, row.id, command)
        return
    if not residency.of_own_lanes(state, loaded, load).tasks:
        HANDLERS[type(command)](state, command, now)  # another broker owns the task, or did meanwhile
        return
    if isinstance(command, events.Explain | events.ExplainSteps) and row.id not in state.tasks:
        explaining.explain_stored(state, loaded, command, now)
        return
    if row.id not in state.tasks:
        if row.finished_ms is None:
            residency.insert(state, loaded, load, now)
        else:
            residency.admit_final(state, residency.restored(state.workflows[row.workflow_id], row, loaded.steps))
    HANDLERS[type(command)](state, command, now)


def _on_payloads(state: BrokerState, event: events.LoadedPayloads, now: Now) -> None:
    large_payloads.on_payloads(state, event.payloads, state.fetching.pop(event.request), now)


def _on_load_failed(state: BrokerState, event: events.LoadFailed, now: Now) -> None:
    """Read again, or refuse the command that the read was for."""
    if event.request == state.orders.look:
        state.orders.look = None
        return
    if event.request == state.catalogue.read:
        catalogue.on_failed(state, event.error)
        return
    steps = state.fetching.pop(event.request, None)
    if steps is not None:
        state.timers.set(now.mono + residency.PAGE_PAUSE_MS, FetchDue(steps))
        return
    load = state.loads.pop(event.request)
    match load:
        case PageLoad():
            residency.on_page_failed(state, event.request, load, now)
        case ResultsLoad():
            return  # a worker resends its results; a level-0 handler does not, so its step runs again
        case CommandLoad():
            text = f"the task could not be read: {event.error}"
            state.refuse_now(load.command.request, CommandRefused("database_unavailable", text))
        case RejectedLoad():
            state.timers.set(now.mono + residency.PAGE_PAUSE_MS, ReloadDue(load.task_id))
        case _:
            assert_never(load)


# -- commands on tasks ------------------------------------------------------------------------------------------------


def _on_looked(state: BrokerState, event: events.LookedAround, now: Now) -> None:
    orders.on_looked(state, event, now, lambda state, command, now: HANDLERS[type(command)](state, command, now))


def _on_catalogue(state: BrokerState, event: events.CatalogueRead, now: Now) -> None:
    catalogue.on_catalogue(state, event, now, lambda waiting: HANDLERS[type(waiting)](state, waiting, now))


def _on_await(state: BrokerState, event: events.AwaitTask, now: Now) -> None:
    if not orders.is_elsewhere(state, event, event.task_id):
        commands.on_await(state, event, now)


def _on_explain(state: BrokerState, event: events.Explain | events.ExplainSteps, now: Now) -> None:
    if orders.is_elsewhere(state, event, event.task_id):
        return
    task = state.tasks.get(event.task_id)
    if task is None:
        load_for(state, event.task_id, event)
    else:
        explaining.explain_live(state, task, event, now)


def _on_command(state: BrokerState, event: Any, now: Now) -> None:
    if orders.is_elsewhere(state, event, event.task_id):
        return
    task = state.tasks.get(event.task_id)
    code = _stall_of(state, event.task_id)
    if code is not None:
        _refuse_stalled(state, event.request, task, code)
    elif task is None:
        load_for(state, event.task_id, event)
    else:
        TASK_COMMANDS[type(event)](state, task, event, now)
        residency.leave_if_final(state, task)


def _on_resolve(state: BrokerState, event: commands.ResolveStep, now: Now) -> None:
    if orders.is_elsewhere(state, event, event.step_id):
        return
    step = state.steps.get(event.step_id)
    task = None if step is None else step.task
    code = _stall_of(state, event.step_id)
    if code is not None:
        _refuse_stalled(state, event.request, task, code)
    elif step is None or task is None:
        request = state.next_read()
        state.loads[request] = CommandLoad(event)
        state.decision.reads.append(LoadBySteps(request, [event.step_id], any_state=True))
    else:
        commands.on_resolve(state, step, event, now)
        residency.leave_if_final(state, task)


def _on_report(state: BrokerState, event: events.ReportResult, now: Now) -> None:
    if orders.is_elsewhere(state, event, event.step_id):
        return
    step = state.steps.get(event.step_id)
    code = _stall_of(state, event.step_id)
    if code is not None:
        _refuse_stalled(state, event.request, None if step is None else step.task, code)
    elif step is not None:
        task = step.task
        on_report(state, step, event, now)
        residency.leave_if_final(state, task)
    elif event.step_id in state.ended:
        state.answer(event.request, ResultTaken(), lane=state.lane_of(event.step_id))
    else:
        request = state.next_read()
        state.loads[request] = CommandLoad(event)
        state.decision.reads.append(LoadBySteps(request, [event.step_id], any_state=True))


def _stall_of(state: BrokerState, number: int) -> StallCode | None:
    """Return why no command on the task or the step with this id can be stored now."""
    lane = state.lane_of(number)
    return state.outbox.stalled if lane is None else state.outbox.lanes[lane].stalled


def _refuse_stalled(state: BrokerState, request: int, task: Task | None, code: StallCode) -> None:
    state.refuse_now(request, submission.intake_refused(state) or submission.stalled(code))
    if task is not None:
        residency.leave_if_final(state, task)


# -- the end of a broker --------------------------------------------------------------------------------------------


def _on_drain(state: BrokerState, event: events.Drain, now: Now) -> None:
    state.draining = True


# Messages of the bus. `authority` decides first whether their sender may send them.
MESSAGES: Final[dict[type, Callable[..., None]]] = {
    wire.Results: on_results,
    wire.ResultsLevel0: level0.on_results,
    wire.Accept: batch_answers.on_accept,
    wire.Heartbeat: hello.on_heartbeat,
    wire.Hello: hello.on_hello,
    wire.Start: batch_answers.on_start,
    wire.Refuse: batch_answers.on_refuse,
    wire.Adopted: holding.on_adopted,
    wire.Progress: batch_answers.on_progress,
    wire.Bye: hello.on_bye,
    wire.Gone: loss.on_gone,
}

HANDLERS: Final[dict[type, Callable[..., None]]] = {
    # frames that are no messages
    events.MessageRefused: refusals.on_message_refused,
    events.MessageIgnored: refusals.on_message_ignored,
    events.FrameRefused: refusals.on_frame_refused,
    # the database
    Committed: _on_committed,
    Stalled: _on_stalled,
    events.LoadedTasks: _on_loaded,
    events.LoadedPayloads: _on_payloads,
    events.LookedAround: _on_looked,
    events.CatalogueRead: _on_catalogue,
    events.LoadFailed: _on_load_failed,
    # commands
    events.SubmitTasks: submission.on_submit,
    events.ApplyWorkflow: workflows.on_apply,
    events.ActivateWorkflow: workflows.on_activate,
    events.AwaitTask: _on_await,
    events.Explain: _on_explain,
    events.ExplainSteps: _on_explain,
    events.LearnCatalogue: catalogue.on_learn,
    events.Forget: commands.on_forget,
    **dict.fromkeys(TASK_COMMANDS, _on_command),
    commands.ResolveStep: _on_resolve,
    **LANE_COMMANDS,
    events.ReportResult: _on_report,
    events.ActionNoticed: auditing.on_noticed,
    events.Reconfigure: routing_rules.on_reconfigure,
    events.QuotasChanged: quotas.on_quotas_changed,
    # lanes
    Beaten: beats.on_beaten,
    Notification: orders.on_notified,
    events.LanesTaken: beats.on_taken,
    LaneLost: losing.on_lost,
    LostCommits: losing.on_lost_commits,
    events.ReleaseLane: releasing.on_release,
    events.LaneReleased: beats.on_released,
    # the outside
    events.Tick: on_tick,
    events.Attached: hello.on_attached,
    events.Detached: loss.on_detached,
    events.Subscribed: hello.on_subscribed,
    events.SubscriptionVanished: loss.on_subscription_vanished,
    events.PeerSubscribed: level0.on_subscribed,
    events.PeerVanished: level0.on_vanished,
    events.PeersUncertain: level0.on_uncertain,
    events.ProcessDied: loss.on_process_died,
    events.ClaimRefuted: loss.on_claim_refuted,
    events.LoopWasLate: loss.on_loop_was_late,
    events.EndpointsBound: addresses.on_endpoints_bound,
    events.HttpServed: addresses.on_http_served,
    events.ResultsTaken: on_taken,
    events.GrantsChanged: grants.on_grants_changed,
    events.Drain: _on_drain,
    events.Leave: _on_leave,
}

__all__ = ["Identity", "Machine"]
