"""L8: a client that follows the events receives each fact once, those of a task in order, whichever brokers it asks."""

import msgspec

from .books import Books

Place = tuple[int, ...]  # lane, transaction, row, fact


class FollowerBook:
    """The events that one client has received."""

    def __init__(self) -> None:
        self.places: set[Place] = set()
        self.last_of_task: dict[int, Place] = {}


def note_event(books: Books, book: FollowerBook, task_id: int, event_id: str) -> None:
    place = tuple(int(number) for number in event_id.split("."))
    if place in book.places:
        books.fail("L8 a follower receives a fact once", f"{event_id} of task {task_id}")
    if place <= book.last_of_task.get(task_id, ()):
        books.fail("L8 the facts of a task come in order", f"{event_id} of task {task_id}")
    book.places.add(place)
    book.last_of_task[task_id] = place


def check_complete(books: Books, book: FollowerBook) -> None:
    """The client has read to the end: it has received as many facts as the history has."""
    stored = sum(len(msgspec.json.decode(row.facts)) for row in books.world.tables.log)
    if len(book.places) != stored:
        books.fail("L8 a follower receives every fact", f"{len(book.places)} of {stored}")
