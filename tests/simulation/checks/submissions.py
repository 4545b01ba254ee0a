"""P1: an acknowledged submission is stored, whole, once for each key. A command is answered after its commit."""

from collections import Counter
from typing import TYPE_CHECKING, Any, Final

from stepwire_broker.core.answers.answers import Applied, CommandRefused, Done, TasksSubmitted
from stepwire_broker.core.commit.id_blocks import IDS_PER_BLOCK, block_of
from stepwire_broker.core.intake.erasure import ErasedTask
from stepwire_broker.core.model import events
from stepwire_broker.core.model.commit_group import TaskNew

from .books import Books

if TYPE_CHECKING:
    from tests.simulation.people import Submission


UNKNOWN: Final = frozenset({"broker_dark", "commit_unknown"})  # the request may have been carried out


def check_answer(books: Books, command: Any, answer: Any) -> None:
    """An answer leaves the broker: what it reports must be durable."""
    match answer:
        case TasksSubmitted():
            _check_stored(books, command, answer)
        case Applied():
            if answer.workflow_id not in books.world.tables.workflows:
                books.fail("P1 an applied workflow is stored", str(answer))
        case ErasedTask():
            if answer.task_id not in books.erased:
                books.fail("P1 no answer is sent before its commit", f"{command}: {answer}")
        case Done():
            _check_done(books, command, answer)
        case CommandRefused():
            if isinstance(command, events.SubmitTasks) and answer.code not in UNKNOWN:
                _check_not_stored(books, command, answer)


def _check_stored(books: Books, command: events.SubmitTasks, answer: TasksSubmitted) -> None:
    tables = books.world.tables
    for new, task_id, created in zip(command.tasks, answer.task_ids, answer.created, strict=True):
        row = tables.tasks.get(task_id)
        if row is None:
            books.fail("P1 an acknowledged submission is stored", f"task {task_id} of {command.request}")
        workflow = books.workflow_of(task_id)
        if workflow.name != new.workflow or (row.context != new.context and task_id not in books.erased):
            books.fail("P1 a task is stored whole", f"task {task_id} is not what was submitted: {row}")
        if len(tables.steps_of[task_id]) != len(workflow.steps):
            books.fail("P1 a task is stored whole", f"task {task_id} has {len(tables.steps_of[task_id])} steps")
        if created and task_id in books.created_tasks:
            books.fail("P1 a submission makes one task", f"task {task_id} was created twice")
        if created:
            books.created_tasks.add(task_id)


def check_ids(books: Books, new: TaskNew, step_ids: list[int]) -> None:
    """A task was stored: its lane is known from each of its ids, which no other start may use."""
    blocks = books.world.tables.blocks
    for number in (new.id, *step_ids):
        block = blocks.get(block_of(number))
        if block is None or block.lane != new.lane:
            books.fail(
                "P1 ids belong to the lane of their task", f"{number} of task {new.id} in lane {new.lane}: {block}"
            )
        if number > block_of(number) * IDS_PER_BLOCK + block.reserved:
            books.fail("P1 ids are reserved before they are used", f"{number} of task {new.id}: {block}")


def _check_not_stored(books: Books, command: events.SubmitTasks, answer: CommandRefused) -> None:
    uids = {f"{(command.entropy + i) % 2**128:032x}" for i in range(len(command.tasks))}
    stored = [row.id for row in books.world.tables.tasks.values() if row.uid in uids]
    if stored:
        books.fail("P1 nothing refused is stored", f"{answer}, but tasks {stored} exist")


def _check_done(books: Books, command: Any, answer: Done) -> None:
    book = books.tasks.get(answer.task_id)
    if book is None:
        books.fail("P1 a command names a stored task", str(answer))
    kind = type(command).__name__
    books.acked_commands[answer.task_id, kind] += 1
    acked = books.acked_commands[answer.task_id, kind]
    is_committed = {
        "CancelTask": book.facts["cancel_asked"] > 0,
        "PauseTask": book.facts["paused"] > 0,
        "ResumeTask": True,  # the task may not have been paused when the command was decided
        "RetryTask": book.operated["retry"] >= acked,
        "ResolveStep": sum(n for k, n in book.operated.items() if k != "retry") >= acked,
        "AwaitTask": book.facts["ended"] > 0 or book.facts["noticed"] > 0,
    }[kind]
    if not is_committed:
        books.fail("P1 no answer is sent before its commit", f"{command}: {answer}")


def check_acknowledged(books: Books, submission: "Submission", answer: TasksSubmitted) -> None:
    """A client received the answer."""
    for new, task_id in zip(submission.tasks, answer.task_ids, strict=True):
        books.acked_tasks[task_id] = new
        if new.key is not None:
            name = (new.namespace, new.key)
            known = books.acked_keys.setdefault(name, (new.digest, task_id))
            if known[1] in books.erased:
                books.acked_keys[name] = (new.digest, task_id)  # an erasure frees the key
            elif known != (new.digest, task_id):
                books.fail("P1 a key makes one task", f"{name} was acked as {known} and as {(new.digest, task_id)}")


def check_conflict(books: Books, submission: "Submission") -> None:
    if not submission.is_conflict:
        books.fail("P1 a repeated submission is no conflict", f"submission {submission.number}")


def check_kept(books: Books) -> None:
    """At the end."""
    tables = books.world.tables
    for task_id, new in books.acked_tasks.items():
        row = tables.tasks.get(task_id)
        if row is None or (row.context != new.context and task_id not in books.erased):
            books.fail("P1 nothing acknowledged is lost", f"task {task_id}")
    by_key = Counter((row.namespace, row.key) for row in tables.tasks.values() if row.key is not None)
    for name, count in by_key.items():
        if count > 1:
            books.fail("P1 a key makes one task", f"{name} has {count}")
