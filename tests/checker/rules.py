"""Each promise as a function that yields what breaks it. A new promise is one more function in a table.

What the history alone shows is judged in language.py; here the history meets its rows, and both meet the witnesses.
"""

from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Mapping
from itertools import groupby, pairwise
from typing import Any, Final, NamedTuple, TypeAlias
from zlib import crc32

import msgspec

from . import causes
from .evidence import Case, Database, Run, StepRow, Witnesses
from .language import STEP_FINAL, TASK_FINAL, Outcome, StepStory
from .ledgers import SentResult

LEVEL0: Final = "level0."  # what level-0 handlers are called in the history
TIMEOUT_GRACE_MS: Final = 5_000  # a worker ends its runs by itself; so much later the broker does
EARLIER_MAX: Final = 32  # so many deliveries back a late success is still taken
CLOCK_SLACK_MS: Final = 1_000  # a broker looks at the clock once for all that it does in one turn

# What the broker itself may say of a delivery, without a handler having said it.
BROKERS_CODES: Final = frozenset(
    {
        "timeout",
        "deadline",
        "task_deadline",
        "queue_timeout",
        "worker_lost",
        "too_large",
        "bad_message",
        "unstorable",
        "outcome_unknown",
        "resolved_failed",
    }
)


class Judged(NamedTuple):
    """What is wanted of all tasks together, when each has been judged."""

    tasks: set[int]
    steps: set[int]
    tasks_of: dict[tuple[str, str], list[int]]  # by namespace and key


class Found(NamedTuple):
    """What breaks a rule, and which step of the task it is about."""

    step: int | None
    what: str


Finds: TypeAlias = Iterator[Found]
CaseRule: TypeAlias = Callable[[Database, Witnesses, Case], Finds]
WholeRule: TypeAlias = Callable[[Database, Witnesses, "Judged"], Iterator[str]]


# -- the history and its rows -----------------------------------------------------------------------------------------


def the_rows_are_what_the_history_adds_up_to(database: Database, seen: Witnesses, case: Case) -> Finds:
    task, story = case.task, case.story
    for column, in_row, in_history in (
        ("uid", task.uid, story.uid),
        ("state", task.state, story.state),
        ("attention", task.attention, story.attention),
        ("cancelling", bool(task.cancelling), story.cancelling),
        ("created_ms", task.created_ms, story.created_ms),
        ("finished_ms", task.finished_ms, story.finished_ms),
    ):
        if in_row != in_history:
            yield Found(None, f"the row says {column} {in_row}, the history {in_history}")
    for row, step in case.pairs():
        if row[_COMPARED_FROM:_COMPARED_TO] == (
            step.state,
            step.attempt,
            step.delivery,
            step.accept_from,
            step.batch_id,
            step.worker,
            step.granted,
            step.lost_sessions,
            step.ready_ms,
            step.dispatched_ms,
            step.started_ms,
            step.not_before_ms,
            step.finished_ms,
            step.reason,
            step.key_number,
            step.output_bytes,
        ):
            continue
        for column in StepRow._fields[_COMPARED_FROM:_COMPARED_TO]:
            if getattr(row, column) != getattr(step, column):
                yield Found(
                    step.index, f"the row says {column} {getattr(row, column)}, the history {getattr(step, column)}"
                )


_COMPARED_FROM: Final = StepRow._fields.index("state")
_COMPARED_TO: Final = StepRow._fields.index("output")


def an_output_is_the_one_that_was_applied(database: Database, seen: Witnesses, case: Case) -> Finds:
    for row, step in case.pairs():
        if step.state != "completed":
            continue
        output = b"" if row.output is None else row.output.encode()
        if len(output) != step.output_bytes or crc32(output) != step.output_crc32:
            yield Found(
                step.index,
                f"its output has {len(output)} bytes and CRC-32 {crc32(output)}, applied were {step.output_bytes} "
                f"and {step.output_crc32}",
            )


def a_task_is_stored_whole(database: Database, seen: Witnesses, case: Case) -> Finds:
    if len(case.steps) != len(case.plan.steps):
        yield Found(None, f"it has {len(case.steps)} steps, its workflow {len(case.plan.steps)}")
    for row, step in case.pairs():
        expected = (case.task.id + 1 + row.position, step.plan.name, step.plan.handler_class)
        if (row.id, row.name, row.handler_class) != expected:
            yield Found(row.position, f"its row is {(row.id, row.name, row.handler_class)}, and should be {expected}")


def the_broker_can_replay_its_history(database: Database, seen: Witnesses, case: Case) -> Finds:
    """The product's own replay: that it finds no difference is a promise too."""
    from stepwire_broker.core.commit import history
    from stepwire_broker.core.definitions.stored_rows import StoredWorkflow
    from stepwire_broker.core.definitions.workflow import stored_workflow

    number = case.plan.id
    if number not in _WORKFLOWS or _WORKFLOWS[number][0] is not database:
        row = StoredWorkflow(number, "", "", "", "", database.workflow_documents[number], 0, 1)
        _WORKFLOWS[number] = (database, stored_workflow(row))
    facts = [msgspec.json.encode(row) for _, row in case.rows]
    try:
        replayed = history.replay(case.task.id, _WORKFLOWS[number][1], facts)
        for difference in history.differences(replayed, case.task, case.steps):  # type: ignore[arg-type]
            index = case.plan.by_name.get(difference.step or "")
            yield Found(index, f"the row says {difference.what} {difference.row}, its replay {difference.history}")
    except (history.CannotReplay, msgspec.DecodeError, ValueError) as error:
        yield Found(None, str(error))


_WORKFLOWS: Final[dict[int, tuple[Database, Any]]] = {}


# -- submissions ------------------------------------------------------------------------------------------------------


def nothing_acknowledged_is_lost(database: Database, seen: Witnesses, judged: Judged) -> Iterator[str]:
    """What is there but is not what was asked for is judged with its task."""
    removed = may_be_removed(database, seen)
    for (namespace, key), tasks in seen.acknowledged.items():
        for task_id in tasks.keys() - judged.tasks - removed:
            yield f"task {task_id} (key {namespace}/{key}) was acknowledged and is not there"


def may_be_removed(database: Database, seen: Witnesses) -> set[int]:
    """Tasks of which nothing was heard for as long as a database has to keep them."""
    if database.kept_ms is None:
        return set()
    before = database.seen_at_wall_ns - database.kept_ms * 1_000_000
    return {task_id for task_id, at in seen.last_heard_of().items() if at <= before}


def a_task_is_under_its_key(database: Database, seen: Witnesses, case: Case) -> Finds:
    task = case.task
    if task.key is not None and database.keys.get((task.namespace, task.key)) != task.id:
        owner = database.keys.get((task.namespace, task.key))
        yield Found(None, f"its key {task.key} belongs to task {owner}")
    for namespace, key in seen.keys_of.get(task.id, ()):
        if (namespace, key) != (task.namespace, task.key):
            yield Found(None, f"it was acknowledged for key {namespace}/{key} and has {task.namespace}/{task.key}")


def a_key_makes_one_task(database: Database, seen: Witnesses, judged: Judged) -> Iterator[str]:
    yield from (f"key {key} has tasks {ids}" for key, ids in judged.tasks_of.items() if len(ids) > 1)
    for name, tasks in seen.acknowledged.items():
        if len(tasks) > 1:
            yield f"key {name} was acknowledged as {sorted(tasks)}"


def no_task_is_made_up(database: Database, seen: Witnesses, case: Case) -> Finds:
    task = case.task
    if task.key is not None and seen.asked and (task.namespace, task.key) not in seen.asked:
        yield Found(None, f"its key is {task.key}, which nobody asked for")


def what_was_observed_stays_so(database: Database, seen: Witnesses, case: Case) -> Finds:
    """A client was shown how it ended: that was committed, and only an operator opens it again."""
    shown = [state for state, _ in groupby(line.state for line in seen.observed.get(case.task.id, ()))]
    ends = iter(case.story.ended_states)
    if not all(state in ends for state in shown):  # in this order
        yield Found(None, f"it was shown as {shown}, and its history has it ended as {case.story.ended_states}")


def what_was_acknowledged_has_ended(database: Database, seen: Witnesses, case: Case) -> Finds:
    """Only when everything has had its time."""
    task = case.task
    if task.id in seen.keys_of and task.state not in TASK_FINAL and task.attention is None:
        states = ", ".join(f"{row.name} {row.state} {row.reason or ''}".rstrip() for row in case.steps)
        yield Found(None, f"it is still {task.state}: {states}")


def no_order_is_made_up(database: Database, seen: Witnesses, case: Case) -> Finds:
    """An operator's word opens everything: somebody must have given it."""
    if not seen.has_clients:
        return
    story = case.story
    given = Counter(order.order for order in causes.orders_about(seen, case, None))
    wanted = {action.partition("_")[0] for action, _, _ in story.operated}
    if story.cancel_asked_at is not None:
        wanted.add("cancel")
    for order in wanted - given.keys():
        yield Found(None, f"its history says that an operator ordered {order}, and nobody did")


# -- runs -------------------------------------------------------------------------------------------------------------


def _runs(seen: Witnesses, case: Case) -> list[tuple[StepStory, list[Run]]]:
    if case.runs is None:
        case.runs = _of_steps(seen.runs, case)
    return case.runs


def _of_steps(known: Mapping[int, list[Any]], case: Case) -> list[tuple[StepStory, list[Any]]]:
    first = case.task.id + 1
    found = ((step, known.get(first + step.index)) for step in case.story.steps)
    return [(step, of_step) for step, of_step in found if of_step is not None]


def a_delivery_is_run_once(database: Database, seen: Witnesses, case: Case) -> Finds:
    for step, runs in _runs(seen, case):
        if len(runs) > 1:
            for delivery, count in Counter(run.started.delivery for run in runs).items():
                if count > 1:
                    yield Found(step.index, f"delivery {delivery} was started {count} times: {told(runs)}")


def at_most_once_is_started_once(database: Database, seen: Witnesses, case: Case) -> Finds:
    for step, runs in _runs(seen, case):
        if len(runs) > 1 and (step.plan.is_once or runs[0].started.mode == "at_most_once"):
            allowed = 1 + (len(step.reopenings) if causes.was_ordered(seen, case, step) else 0)
            if step.plan.retry_reported_failures:
                allowed += sum(run.verdict == "failed" for run in runs)
            if len(runs) > allowed:
                yield Found(step.index, f"it was started {len(runs)} times: {told(runs)}")


def no_step_is_run_again_without_cause(database: Database, seen: Witnesses, case: Case) -> Finds:
    for step, runs in _runs(seen, case):
        for earlier, later in pairwise(runs):
            if causes.of_running_again(seen, case, step, earlier, later) is None:
                yield Found(step.index, f"it was run again: {told([earlier, later])}")


def runs_overlap_only_for_cause(database: Database, seen: Witnesses, case: Case) -> Finds:
    for step, runs in _runs(seen, case):
        for earlier, later in pairwise(runs):
            apart = earlier.over <= later.started.at or later.over <= earlier.started.at
            if not apart and causes.of_overlap(seen, case, step, earlier, later) is None:
                yield Found(step.index, f"two runs went on at once: {told([earlier, later])}")


def attempts_never_fall(database: Database, seen: Witnesses, case: Case) -> Finds:
    """And they are what the history says: failures before, since an operator opened it."""
    for step, runs in _runs(seen, case):
        for run in runs:
            delivery = step.delivery_of(run.started.delivery)
            if delivery is not None and delivery.attempt != run.started.attempt:
                yield Found(step.index, f"{told([run])}, which the history has as attempt {delivery.attempt}")
        if not step.reopenings:
            for earlier, later in pairwise(runs):
                if later.started.attempt < earlier.started.attempt:
                    yield Found(step.index, f"its attempts fall: {told([earlier, later])}")


def a_step_is_given_its_attempt(database: Database, seen: Witnesses, case: Case) -> Finds:
    for step, given in _given(seen, case):
        for each in given:
            delivery = step.delivery_of(each.step.delivery)
            if delivery is not None and delivery.attempt != each.step.attempt:
                what = f"delivery {delivery.number} came as attempt {each.step.attempt}"
                yield Found(step.index, f"{what}, the history has {delivery.attempt}")


def a_run_ends_by_its_deadline(database: Database, seen: Witnesses, case: Case) -> Finds:
    """Whatever its worker does; but not while its broker can do nothing."""
    if seen.has_wall_jumped:
        return
    for step in case.story.steps:
        started = {d.number: d.started_at for d in step.deliveries if d.started_at is not None}
        for outcome in step.outcomes if started else ():
            began = started.pop(outcome.delivery, None)
            due = None if began is None else began + step.plan.timeout_ms + TIMEOUT_GRACE_MS + CLOCK_SLACK_MS
            if (
                began is not None
                and due is not None
                and outcome.at > due
                and not seen.broker_was_out(began, outcome.at)
            ):
                yield Found(
                    step.index,
                    f"delivery {outcome.delivery} began at {began} and {outcome.kind} at {outcome.at}, "
                    f"its timeout_ms is {step.plan.timeout_ms}",
                )


def attention_is_for_a_held_step(database: Database, seen: Witnesses, case: Case) -> Finds:
    task, states = case.task, [row.state for row in case.steps]
    if task.attention is not None and (task.attention != "held" or "held" not in states):
        yield Found(None, f"its attention is {task.attention}, and its steps are {states}")


def only_what_was_dispatched_is_run(database: Database, seen: Witnesses, case: Case) -> Finds:
    for step, runs in _runs(seen, case):
        for run in runs:
            delivery = step.delivery_of(run.started.delivery)
            if delivery is None:
                yield Found(step.index, f"{told([run])}, and that delivery is not in the history")
            elif step.plan.is_once and delivery.granted_seq is None:
                yield Found(step.index, f"{told([run])}, and that delivery was not granted")
            elif run.is_level0 is not delivery.worker.startswith(LEVEL0):
                yield Found(step.index, f"{told([run])}, and that delivery went to {delivery.worker}")
            elif any(o.code == "unsent" and o.delivery == delivery.number for o in step.outcomes):
                yield Found(step.index, f"{told([run])}, and the history says that it never left")
    for step, given in _given(seen, case):
        for each in given:
            delivery = step.delivery_of(each.step.delivery)
            if delivery is None:
                yield Found(step.index, f"delivery {each.step.delivery} went to a worker and is not in the history")
            elif (delivery.worker, delivery.batch_id) != (each.line.worker, each.line.batch_id):
                yield Found(
                    step.index,
                    f"delivery {delivery.number} came to {each.line.worker} in {each.line.batch_id}, and the history "
                    f"has {delivery.worker} in {delivery.batch_id}",
                )


def _given(seen: Witnesses, case: Case) -> list[tuple[StepStory, list[Any]]]:
    if case.given is None:
        case.given = _of_steps(seen.given, case)
    return case.given


def at_most_once_starts_on_a_go(database: Database, seen: Witnesses, case: Case) -> Finds:
    for step, runs in _runs(seen, case):
        if not step.plan.is_once:
            continue
        for run in runs:
            start = run.started
            if start.pid in seen.recorded_pids:
                gone_at = seen.gone.get((start.step_id, start.delivery, start.pid))
                if gone_at is None or gone_at > start.at:
                    yield Found(step.index, f"{told([run])} before it was told to go")


def no_step_starts_before_what_it_depends_on(database: Database, seen: Witnesses, case: Case) -> Finds:
    """By the witnesses alone: the very run whose output it was given had finished by then."""
    for step, runs in _runs(seen, case):
        for i in step.plan.depends_on:
            before = case.story.steps[i]
            if before.reopenings or _is_operated(case, before):
                continue
            for run in runs:
                token = run.started.seen.get(before.plan.name)
                end = _run_of(seen, token)
                if token is None and before.state in STEP_FINAL and _token(case.output_of(i)) is None:
                    continue  # it has no output, and a trigger rule let this one run; or its handler writes no token
                if token is None or end is None or end.step_id != case.task.id + 1 + i:
                    yield Found(step.index, f"{told([run])} with {token} as the output of {before.plan.name}")
                elif end.at > run.started.at:
                    yield Found(step.index, f"{told([run])} before {before.plan.name} had finished")
                elif token != _token(case.output_of(i)):
                    yield Found(
                        step.index,
                        f"{told([run])} with {token} as the output of {before.plan.name}, which is "
                        f"{before.state} with {_token(case.output_of(i))}",
                    )


def a_step_is_given_what_was_committed(database: Database, seen: Witnesses, case: Case) -> Finds:
    for step, given in _given(seen, case):
        names = [case.story.steps[i].plan.name for i in step.plan.depends_on]
        for each in given:
            delivery = step.delivery_of(each.step.delivery)
            if delivery is not None:
                expected = {n: crc for n, crc in zip(names, delivery.inputs, strict=True) if crc is not None}
                if each.step.inputs != expected:
                    yield Found(
                        step.index,
                        f"delivery {delivery.number} was given inputs with CRC-32 {each.step.inputs}, committed were "
                        f"{expected}",
                    )


def an_idempotency_key_is_a_steps_own(database: Database, seen: Witnesses, case: Case) -> Finds:
    """The same for every run, until an operator wants a new one."""
    for step, runs in _runs(seen, case):
        for run in runs:
            delivery = step.delivery_of(run.started.delivery)
            number = 0 if delivery is None else delivery.key_number
            expected = f"{case.task.uid}/{step.plan.name}{f'/{number}' if number else ''}"
            if run.started.key != expected:
                yield Found(step.index, f"it was run under the key {run.started.key}, not {expected}: {told([run])}")


# -- results ----------------------------------------------------------------------------------------------------------


def an_outcome_is_what_its_handler_said(database: Database, seen: Witnesses, case: Case) -> Finds:
    """Nothing is made up, nothing changed on the way: by the handler's word, and by the bytes that left its worker."""
    for row, step in case.pairs():
        said = seen.said.get(row.id, ())
        for outcome in step.outcomes:
            if outcome.by_operator or outcome.kind not in ("completed", "backed_off", "failed"):
                continue
            wrong = _contradiction(seen, row, step, outcome, said)
            if wrong is not None:
                yield Found(step.index, f"delivery {outcome.delivery} {outcome.kind} {outcome.code}: {wrong}")


def _contradiction(seen: Witnesses, row: StepRow, step: StepStory, outcome: Outcome, said: Any) -> str | None:
    results = [each.result for each in said if each.result.delivery == outcome.delivery]
    if outcome.kind == "completed":
        mine = [r for r in results if r.status == "completed"]
        if mine and all((r.bytes, r.crc32) != (outcome.bytes, outcome.crc32) for r in mine):
            return f"its worker sent {mine[0].bytes} bytes with CRC-32 {mine[0].crc32}, not {outcome.crc32}"
        if not mine and seen.recorded_pids and _worker_was_recorded(seen, step, outcome):
            return "its worker sent no such result"
        return _handler_denies(seen, row, step, outcome)
    if outcome.code in BROKERS_CODES:
        return None
    codes = {r.code or r.status for r in results if r.status != "completed"}
    if codes and outcome.code not in codes:
        return f"its worker said {sorted(codes)}"
    if not codes and _worker_was_recorded(seen, step, outcome):
        return "its worker sent no such result"
    runs = [run for run in seen.runs.get(row.id, ()) if run.started.delivery == outcome.delivery]
    if runs and all(run.verdict == "finished" for run in runs) and not codes:
        return "its handler had finished"
    return None


def _handler_denies(seen: Witnesses, row: StepRow, step: StepStory, outcome: Outcome) -> str | None:
    token = _token(row.output) if step.state == "completed" and outcome is step.outcomes[-1] else None
    if token is not None and seen.has_handlers:
        end = _run_of(seen, token)
        is_its = end is not None and end.step_id == row.id and end.delivery == outcome.delivery
        if not is_its or type(end).__name__ != "Finished":
            return f"its output is of run {token}, which nobody finished"
    return None


def _worker_was_recorded(seen: Witnesses, step: StepStory, outcome: Outcome) -> bool:
    delivery = step.delivery_of(outcome.delivery)
    return delivery is not None and delivery.worker in seen.pids_of


def an_acknowledged_result_is_applied(database: Database, seen: Witnesses, case: Case) -> Finds:
    """Or something had already settled what it is about."""
    for row, step in case.pairs():
        for said in seen.said.get(row.id, ()):
            result = said.result
            if said.acked_at is None or result.delivery < max(step.accept_from, step.delivery - EARLIER_MAX):
                continue
            if result.status == "completed":
                is_kept = step.state in STEP_FINAL
            else:
                is_kept = step.delivery > result.delivery or step.state != "dispatched"
            if not is_kept:
                yield Found(
                    step.index,
                    f"delivery {result.delivery} {result.status}: its result {said.line.rid} was acknowledged, and the "
                    f"step is {step.state}",
                )


def a_held_step_has_its_fault(database: Database, seen: Witnesses, case: Case) -> Finds:
    for step in case.story.steps:
        for outcome in step.outcomes:
            if is_unknown(outcome) and causes.of_holding(seen, case, step, outcome) is None:
                yield Found(step.index, f"delivery {outcome.delivery} is {outcome.kind}, and nothing had happened")


def is_unknown(outcome: Outcome) -> bool:
    return outcome.kind == "held" or (outcome.kind == "failed" and outcome.code == "outcome_unknown")


# -- before and after -------------------------------------------------------------------------------------------------


def nothing_is_said_before_its_commit(database: Database, seen: Witnesses, case: Case) -> Finds:
    """Where the writer's own ledger says when a COMMIT had returned."""
    lane = database.lanes.get(case.lane_id)
    if lane is None or not seen.commits:
        return
    story, commits = case.story, seen.commits

    def is_early(at: int, seq: int | None) -> bool:
        return seq is not None and at < commits.get((lane.lane, seq), 0)

    for name in seen.keys_of.get(case.task.id, ()):
        if is_early(seen.acknowledged[name][case.task.id], story.submitted_seq):
            yield Found(None, f"it was acknowledged before group {story.submitted_seq} was committed")
    for step, given in _given(seen, case):
        for each in given:
            delivery = step.delivery_of(each.step.delivery)
            if delivery is not None and is_early(each.line.at, delivery.seq):
                yield Found(step.index, f"delivery {delivery.number} came before group {delivery.seq} was committed")
    for step, runs in _runs(seen, case):
        for run in runs if runs[0].is_level0 else ():  # who writes down no wire
            delivery = step.delivery_of(run.started.delivery)
            if delivery is not None and is_early(run.started.at, delivery.seq):
                yield Found(step.index, f"{told([run])} before group {delivery.seq} was committed")
    for row, step in case.pairs():
        for delivery in step.deliveries if step.plan.is_once else ():
            pid = seen.pids_of.get(delivery.worker)
            gone_at = None if pid is None else seen.gone.get((row.id, delivery.number, pid))
            if gone_at is not None and is_early(gone_at, delivery.granted_seq):
                yield Found(step.index, f"delivery {delivery.number} was told to go before its grant was committed")
        for said in seen.said.get(row.id, ()):
            settled = _settled_in(step, said.result)
            if said.acked_at is not None and is_early(said.acked_at, settled):
                yield Found(step.index, f"result {said.line.rid} was acknowledged before group {settled} was committed")


def _settled_in(step: StepStory, result: SentResult) -> int | None:
    """Return the group that must be committed before the broker may acknowledge this result.

    The group is the one that applied the result or, for a late result, the first after which the result could no
    longer be applied. A failure counts only while its own delivery is current, so any outcome of that delivery makes
    a failure late, `undelivered` too. A success still counts after `undelivered`, until an operator's retry.
    """
    if result.status == "completed":
        applied = [o.seq for o in step.outcomes if o.delivery == result.delivery and o.kind == "completed"]
        late = [o.seq for o in step.outcomes if o.delivery >= result.delivery and o.kind != "undelivered"]
        late += [r.seq for r in step.reopenings if r.accept_from > result.delivery]
    else:
        own = [o for o in step.outcomes if o.delivery == result.delivery]
        applied = [
            o.seq for o in own if o.kind in ("backed_off", "failed") and o.code == (result.code or result.status)
        ]
        late = [o.seq for o in own]
    return min(applied or late, default=None)


def causes_come_before_effects(database: Database, seen: Witnesses, case: Case) -> Finds:
    """Where the wall clock kept pace: asked, then stored; dispatched, then run; run, then applied."""
    if not seen.is_wall_steady:
        return
    task, shift = case.task, seen.wall_minus_at
    asked_at = seen.asked.get((task.namespace, task.key or ""))
    if asked_at is not None and _ms(asked_at + shift) > case.story.created_ms + CLOCK_SLACK_MS:
        yield Found(None, "it was stored before anybody had asked for it")
    for step, runs in _runs(seen, case):
        for run in runs:
            delivery = step.delivery_of(run.started.delivery)
            if delivery is not None and delivery.at > _ms(run.started.at + shift) + CLOCK_SLACK_MS:
                yield Found(step.index, f"{told([run])} before it was dispatched")
        for outcome in step.outcomes:
            if outcome.kind == "completed" and not outcome.by_operator:
                ends = [r.over for r in runs if r.started.delivery == outcome.delivery and r.verdict == "finished"]
                if ends and outcome.at + CLOCK_SLACK_MS < _ms(min(ends) + shift):
                    yield Found(step.index, f"delivery {outcome.delivery} completed before its handler had finished")


def _ms(ns: int) -> int:
    return ns // 1_000_000


# -- all together -----------------------------------------------------------------------------------------------------


def no_commit_is_taken_back(database: Database, seen: Witnesses, judged: Judged) -> Iterator[str]:
    stands = {lane.lane: lane.seq for lane in database.lanes.values()}
    for lane, seq in seen.commits:
        if seq > stands.get(lane, 0):
            yield f"group {seq} of lane {lane} was committed, and the lane stands at {stands.get(lane)}"


def the_database_is_sound(database: Database, seen: Witnesses, judged: Judged) -> Iterator[str]:
    yield from database.damage()
    yield from database.strangers()


def the_history_has_no_gap(database: Database, seen: Witnesses, judged: Judged) -> Iterator[str]:
    yield from database.history_gaps()


def nothing_is_parked(database: Database, seen: Witnesses, judged: Judged) -> Iterator[str]:
    for task_id, code, source, body in database.parked:
        yield f"something of task {task_id} was parked by {source}: {code} {body[:500]!r}"


def no_run_is_of_nothing(database: Database, seen: Witnesses, judged: Judged) -> Iterator[str]:
    removed = may_be_removed(database, seen)
    for step_id in seen.runs.keys() - judged.steps:
        if seen.runs[step_id][0].started.task_id in removed - judged.tasks:
            continue
        yield f"step {step_id} was run and is not there: {told(seen.runs[step_id])}"
    used: dict[str, set[int]] = defaultdict(set)
    for step_id, runs in seen.runs.items():
        for run in runs:
            used[run.started.key].add(step_id)
    yield from (f"key {key} was given to steps {sorted(ids)}" for key, ids in used.items() if len(ids) > 1)


CASE_RULES: Final[tuple[CaseRule, ...]] = (
    the_rows_are_what_the_history_adds_up_to,
    an_output_is_the_one_that_was_applied,
    a_task_is_stored_whole,
    the_broker_can_replay_its_history,
    a_task_is_under_its_key,
    no_task_is_made_up,
    what_was_observed_stays_so,
    no_order_is_made_up,
    a_delivery_is_run_once,
    at_most_once_is_started_once,
    no_step_is_run_again_without_cause,
    runs_overlap_only_for_cause,
    attempts_never_fall,
    a_step_is_given_its_attempt,
    a_run_ends_by_its_deadline,
    attention_is_for_a_held_step,
    only_what_was_dispatched_is_run,
    at_most_once_starts_on_a_go,
    no_step_starts_before_what_it_depends_on,
    a_step_is_given_what_was_committed,
    an_idempotency_key_is_a_steps_own,
    an_outcome_is_what_its_handler_said,
    an_acknowledged_result_is_applied,
    a_held_step_has_its_fault,
    nothing_is_said_before_its_commit,
    causes_come_before_effects,
)
WHOLE_RULES: Final[tuple[WholeRule, ...]] = (
    nothing_acknowledged_is_lost,
    a_key_makes_one_task,
    no_run_is_of_nothing,
    no_commit_is_taken_back,
    the_history_has_no_gap,
    the_database_is_sound,
    nothing_is_parked,
)


# -- tokens -----------------------------------------------------------------------------------------------------------


def _token(output: str | None) -> str | None:
    """Which run made an output, where its handler says: step/delivery/process."""
    if output is None or '"token"' not in output:
        return None
    value = msgspec.json.decode(output)
    token = value.get("token") if isinstance(value, dict) else None
    return token if isinstance(token, str) else None


def _run_of(seen: Witnesses, token: str | None) -> Any:
    parts = (token or "").split("/")
    if len(parts) != 3 or not (parts[0].isdigit() and parts[2].isdigit()):
        return None
    step_id, pid = int(parts[0]), int(parts[2])
    delivery = int(parts[1]) if parts[1].isdigit() else seen.delivery_in(step_id, parts[1])
    return seen.ends.get((step_id, delivery, pid))


def _is_operated(case: Case, step: StepStory) -> bool:
    return any(outcome.by_operator for outcome in step.outcomes)


def told(runs: list[Run]) -> str:
    return "; ".join(
        f"delivery {s.delivery} attempt {s.attempt} process {s.pid} started at {s.at / 1e9:.3f} "
        f"{run.verdict or 'and did not end'}{f' at {run.end.at / 1e9:.3f}' if run.end is not None else ''}"
        for run in runs
        for s in (run.started,)
    )
