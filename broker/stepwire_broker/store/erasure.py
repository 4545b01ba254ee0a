"""Which columns hold payloads, and how an erasure replaces them.

Every column of tables.py is declared here, as a payload or not. A test fails for a column that is not: a change that
adds one decides here whether an erasure must replace it.

An adapter erases a task in one transaction, after all other rows of the group: then rows that the same group wrote are
replaced too.
"""

import enum
import re
from collections.abc import Collection
from typing import Final

from stepwire_broker.core.answers import erasing


class Replaced(enum.Enum):
    """The ways in which an erasure replaces a column."""

    MARKER = "marker"  # {"erased": at}, if the column had a value
    SIZE = "size"  # the size of the marker, if the column beside it had a value
    REMOVED = "removed"  # NULL, or the whole row
    CODE = "code"  # `erased`, unless the code is one of the broker's own
    FACTS = "facts"  # facts without texts


PAYLOAD: Final[dict[str, dict[str, Replaced]]] = {
    "tasks": {
        # A client chooses the key. It is removed, not hashed: a task with the same key is a new task.
        "key": Replaced.REMOVED,
        "labels": Replaced.MARKER,  # set even without labels: it marks the task as erased
        "context_bytes": Replaced.SIZE,
        "context": Replaced.MARKER,
    },
    "steps": {
        "error": Replaced.MARKER,
        "reason": Replaced.CODE,
        "output_bytes": Replaced.SIZE,
        "output": Replaced.MARKER,
    },
    "step_stderr": {"text": Replaced.MARKER},
    "keys": {"key": Replaced.REMOVED, "digest": Replaced.REMOVED},
    "history": {"facts": Replaced.FACTS},
    "parked": {"body": Replaced.MARKER},
}

NOT_PAYLOAD: Final[dict[str, frozenset[str]]] = {
    "meta": frozenset({"name", "value"}),
    "controls": frozenset({"kind", "name", "value", "position", "revision"}),
    "brokers": frozenset({"id", "epoch", "lease_until_ms", "lease_ms"}),
    "lanes": frozenset({"id", "owner", "owner_epoch", "epoch", "seq"}),
    "attention": frozenset({"id", "task_id", "lane", "kind", "at_ms", "handler_class"}),
    "blocks": frozenset({"number", "lane", "reserved"}),
    "workflows": frozenset({"id", "namespace", "name", "version", "digest", "document", "created_ms", "active"}),
    "tasks": frozenset(
        {
            *("id", "uid", "workflow_id", "lane", "namespace", "state", "attention", "cancelling", "priority"),
            *("created_ms", "finished_ms", "deadline_ms", "rank_ms", "stored", "wake_ms", "wants"),
        }
    ),
    "steps": frozenset(
        {
            *("id", "task_id", "position", "name", "handler_class", "state", "attempt", "delivery", "accept_from"),
            *("batch_id", "worker", "granted", "lost_sessions", "ready_ms", "dispatched_ms", "started_ms"),
            *("not_before_ms", "finished_ms", "deadline_ms", "run_ms", "key_number", "earlier", "handle"),
        }
    ),
    "step_stderr": frozenset({"id", "delivery"}),
    "keys": frozenset({"namespace", "task_id"}),
    "history": frozenset({"lane_id", "seq", "position", "task_id", "at_ms"}),
    # The record of what operators did stays: it holds ids, counts and digests, and reasons that name no person.
    "audit": frozenset(
        {
            "lane",
            "n",
            "at_ms",
            "principal",
            "via",
            "action",
            "target",
            "reason",
            "detail",
            "outcome",
            "request_id",
            "hash",
        }
    ),
    "audit_chains": frozenset({"lane", "n", "hash", "cut_n", "cut_hash"}),
    "parked": frozenset({"id", "at_ms", "task_id", "step_id", "code", "source"}),
}

# A frame that a worker could not read is parked once, for one of its steps. It may hold steps of other tasks.
FRAME_CODES: Final = ("bad_message", "too_large")
_STEP_ID: Final = re.compile(rb'"step_id":\s*(\d{1,16})')


def names_a_step(frame: bytes, step_ids: Collection[int]) -> bool:
    """Return whether a parked frame holds one of these steps."""
    return any(int(found) in step_ids for found in _STEP_ID.findall(frame))


def text_of(marker_at_ms: int) -> str:
    return erasing.marker(marker_at_ms).decode()
