"""P2: a step is dispatched after its dependencies, is sent after that commit, and receives the committed outputs."""

import msgspec
from stepwire_protocol import messages as wire

from tests.simulation.peer_node import PeerNode, RunningAtLevel0
from tests.simulation.worker_node import Running, WorkerNode

from .books import FINAL, Books, Dispatched, StepBook


def check_dispatch(books: Books, dispatched: Dispatched) -> None:
    """The dependencies are durable with this commit or before it.

    The same commit may hold later facts, and a dependency may be open again after those.
    """
    task_id, fact, step_id, states = dispatched
    definition = books.definition(task_id, fact[2])
    expected: dict[str, str | None] = {}
    workflow = books.workflow_of(task_id)
    for index, state in states.items():
        before = books.world.tables.steps[task_id + 1 + index].stored
        if state == "completed" and before.state == state:
            expected[workflow.steps[index].name] = before.output
        elif state == "completed":
            return  # the output at that time is no longer in the database
        elif definition.trigger_rule is None or state not in FINAL:
            books.fail(
                "P2 no step is dispatched before its dependencies", f"step {step_id} is dispatched, {before.id} {state}"
            )
    books.steps[step_id].expected[fact[3]] = expected


def check_ended(books: Books, task_id: int) -> None:
    open_steps = [i for i in books.world.tables.steps_of[task_id] if books.steps[i].state not in FINAL]
    if open_steps:
        books.fail("P2 a task ends with its steps", f"task {task_id} ended while {open_steps} were open")


def check_sent(books: Books, worker: str, batch_id: str, step: wire.StepRequest) -> StepBook:
    """The dispatch of a step that leaves the broker is durable."""
    book = books.steps.get(step.step_id)
    dispatch = None if book is None else book.dispatched.get(step.delivery)
    if book is None or dispatch is None or dispatch[:2] != (worker, batch_id):
        books.fail(
            "P2 no step is sent before its commit",
            f"step {step.step_id}, delivery {step.delivery} to {worker}: {dispatch}",
        )
    return book


def check_shadow(books: Books, step: wire.StepRequest) -> None:
    """A shadow is marked as one, has a key of its own, starts without a grant, and copies a durably dispatched step."""
    books.numbers["shadows"] += 1
    book = books.steps.get(step.task_id + 1 + books.workflow_of(step.task_id).by_name[step.step_name])
    is_copy = step.metadata.shadow and step.metadata.idempotency_key.endswith("/shadow")
    if not is_copy or step.delivery_mode != "at_least_once" or book is None or not book.delivery:
        books.fail("P2 a shadow copies a dispatched step", f"{step.step_id} of task {step.task_id}")


def check_entered(books: Books, running: Running | RunningAtLevel0, worker: WorkerNode | PeerNode) -> StepBook:
    """A handler runs only what was dispatched to its worker."""
    step_id, delivery = running.run.item
    book = books.steps.get(step_id)
    dispatch = None if book is None else book.dispatched.get(delivery)
    if book is None or dispatch is None or dispatch.worker != running.worker:
        books.fail("P2 only a dispatched delivery runs", f"{running.run.item} at {worker.id}: {dispatch}")
    return book


def check_inputs(books: Books, book: StepBook, step: wire.StepRequest | wire.StepRequestLevel0, delivery: int) -> None:
    """Each input equals, byte for byte, the output that was stored when the step was dispatched."""
    expected = book.expected.get(delivery)
    if expected is None:
        return
    given = msgspec.json.decode(step.previous_results, type=dict[str, msgspec.Raw])
    if {name: bytes(value).decode() for name, value in given.items()} != expected:
        books.fail("P2 a step receives the committed outputs", f"step {step.step_id} received {given}, not {expected}")
