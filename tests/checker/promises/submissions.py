"""P1: an acknowledged submission is stored, whole, once for each key, and its end is kept."""

from collections.abc import Iterator
from itertools import groupby

from tests.checker.database import Case, Database
from tests.checker.witnesses import Witnesses

from .common import Finding, Finds, Judged, may_be_removed


def nothing_acknowledged_is_lost(database: Database, seen: Witnesses, judged: Judged) -> Iterator[str]:
    """A stored task that differs from its submission is judged with the task."""
    removed = may_be_removed(database, seen)
    for (namespace, key), tasks in seen.acknowledged.items():
        for task_id in tasks.keys() - judged.tasks - removed:
            yield f"task {task_id} (key {namespace}/{key}) was acknowledged and does not exist"


def a_task_is_stored_whole(database: Database, seen: Witnesses, case: Case) -> Finds:
    if len(case.steps) != len(case.plan.steps):
        yield Finding(None, f"it has {len(case.steps)} steps, its workflow {len(case.plan.steps)}")
    for row, step in case.pairs():
        expected = (case.task.id + 1 + row.position, step.plan.name, step.plan.handler_class)
        if (row.id, row.name, row.handler_class) != expected:
            yield Finding(row.position, f"its row is {(row.id, row.name, row.handler_class)}, and should be {expected}")


def a_task_has_its_key(database: Database, seen: Witnesses, case: Case) -> Finds:
    task = case.task
    if task.key is not None and database.keys.get((task.namespace, task.key)) != task.id:
        owner = database.keys.get((task.namespace, task.key))
        yield Finding(None, f"its key {task.key} belongs to task {owner}")
    for namespace, key in seen.keys_of.get(task.id, ()):
        if (namespace, key) != (task.namespace, task.key):
            yield Finding(None, f"it was acknowledged for key {namespace}/{key} and has {task.namespace}/{task.key}")


def a_key_makes_one_task(database: Database, seen: Witnesses, judged: Judged) -> Iterator[str]:
    yield from (f"key {key} has tasks {ids}" for key, ids in judged.tasks_of.items() if len(ids) > 1)
    for name, tasks in seen.acknowledged.items():
        if len(tasks) > 1:
            yield f"key {name} was acknowledged as {sorted(tasks)}"


def every_task_was_submitted(database: Database, seen: Witnesses, case: Case) -> Finds:
    task = case.task
    if task.key is not None and seen.asked and (task.namespace, task.key) not in seen.asked:
        yield Finding(None, f"its key is {task.key}, which no client submitted")


def an_observed_end_is_kept(database: Database, seen: Witnesses, case: Case) -> Finds:
    """An end that a client was shown is committed, and only an operator reopens the task."""
    shown = [state for state, _ in groupby(line.state for line in seen.observed.get(case.task.id, ()))]
    ends = iter(case.story.ended_states)
    if not all(state in ends for state in shown):  # in the same order
        yield Finding(None, f"it was shown as {shown}, and its history has it ended as {case.story.ended_states}")
