"""Parts of a task's payloads for which the database file is searched after the task was erased.

A needle is a word: at least WORD_BYTES_MIN bytes without quotes, spaces and brackets, as they are stored. Short words
are skipped, because other tasks have the same ones: a number, a state, a currency. Names of members are skipped too.
"""

import re
from collections.abc import Iterable, Iterator
from typing import Final, NamedTuple

from stepwire_broker.core.answers import erasing

from .queries import Queries
from .rows import TaskRecord

WORD_BYTES_MIN: Final = 12
WORD_BYTES_MAX: Final = 256
WORDS_A_VALUE: Final = 4

WORD: Final = re.compile(rb'[^\x00-\x20"\\,:;{}\[\]()<>\x7f]{%d,%d}' % (WORD_BYTES_MIN, WORD_BYTES_MAX))
_STRING: Final = re.compile(rb'"((?:[^"\\]|\\.)*)"(\s*:)?')


class Needles(NamedTuple):
    words: frozenset[bytes]
    keys: frozenset[bytes]  # idempotency keys, which touch other text in a row
    skipped: int  # values without a long word


def of_task(queries: Queries, task_id: int) -> Needles | None:
    """Return the needles of a task, as its committed rows are now. None: there is no such task, or it is erased."""
    record = queries.task(task_id)
    if record is None or erasing.erased_ms(record.task.labels) is not None:
        return None
    words: set[bytes] = set()
    skipped = 0
    for value in _values(queries, record):
        found = _words(value)
        words.update(found)
        skipped += not found
    words -= _names(record)
    key = record.task.key
    keys = set() if key is None or len(key) < WORD_BYTES_MIN else {key.encode()}
    return Needles(frozenset(words), frozenset(keys), skipped + (key is not None and not keys))


def _values(queries: Queries, record: TaskRecord) -> Iterator[bytes]:
    """Yield the payloads that hold anything."""
    texts: Iterable[str | None] = (
        record.context,
        record.task.labels,
        *(step.output for step in record.steps),
        *(step.error for step in record.steps),
        *(row.facts for row in queries.task_events(record.task.id) if ": " in row.facts),  # only messages have one
    )
    for text in texts:
        if text is not None and len(text) > len("{}"):
            yield text.encode()
    for step in record.steps:
        stderr = queries.step_stderr(step.id)
        if stderr is not None:
            # The ends of the text touch other bytes of the row.
            yield b" ".join(b'"%s"' % word for word in stderr.text.encode().split()[1:-1])


def _names(record: TaskRecord) -> set[bytes]:
    """Return the names that other rows hold as well. A sealed payload states the workflow that it was sealed for."""
    steps = {name for step in record.steps for name in (step.name, step.handler_class)}
    return {name.encode() for name in (record.task.namespace, record.task.workflow, *steps)}


def _words(value: bytes) -> list[bytes]:
    words = {word for string, is_name in _STRING.findall(value) if not is_name for word in WORD.findall(string)}
    return sorted(words, key=len, reverse=True)[:WORDS_A_VALUE]
