"""C: an operator's pause and cancel hold for every dispatch after them."""

from .books import Books, TaskBook


def check_dispatch(books: Books, task: TaskBook, step_id: int) -> None:
    if task.paused:
        books.fail("C nothing is dispatched while paused", f"step {step_id}")
    if task.cancel_asked:
        books.fail("C nothing is dispatched after a cancel", f"step {step_id}")
