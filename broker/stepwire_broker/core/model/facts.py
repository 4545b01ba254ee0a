"""Facts: everything that can happen to a task. The live state changes only by applying a fact, and the history stores
the same facts, so replaying the history gives the same state.

The last members of some facts are for people and change nothing: `message`, `by`. They are optional, because rows that
were stored before they existed lack them, and they keep this order: `run_ms`, `message`, `by`. `run_ms` is the duration
of the run as its worker measured it. `message` is one line, `<code>: <text>`, of at most MESSAGE_CHARACTERS_MAX
characters. `by` is the name of the operator's token, or the beginning of its digest.

`at` is UTC milliseconds. A step is named by its position in the task. A fact has no payload: a completed
step's output is in its row, and the fact carries its size and CRC-32. After an erasure the facts before it have no
text of clients and handlers, see core/commit/scrubbing.py.
"""

from typing import Final, TypeAlias

import msgspec
from msgspec import Struct


class StepFact(Struct, frozen=True, array_like=True, gc=False, tag_field="kind"):
    at: int
    step: int


class Readied(StepFact, frozen=True, tag="readied"):
    """All dependencies are final and the step's rule is true, or the step's back-off is over."""


class Dispatched(StepFact, frozen=True, tag="dispatched"):
    delivery: int
    worker: str
    batch_id: str


class Granted(StepFact, frozen=True, tag="granted"):
    """An at_most_once step may start: from now on its outcome can be unknown."""

    delivery: int


class Started(StepFact, frozen=True, tag="started"):
    """The worker reported that the step runs; `at` is when the run began."""

    delivery: int


class Undelivered(StepFact, frozen=True, tag="undelivered"):
    """The delivery ended, and the worker will not start the step. `lost`: its session died."""

    delivery: int
    code: str
    lost: bool


class Completed(StepFact, frozen=True, tag="completed"):
    delivery: int
    output_bytes: int
    output_crc32: int
    run_ms: int | None = None


class BackedOff(StepFact, frozen=True, tag="backed_off"):
    """An attempt failed; the next attempt begins at `until` or later."""

    delivery: int
    code: str
    until: int
    run_ms: int | None = None
    message: str | None = None


class Failed(StepFact, frozen=True, tag="failed"):
    delivery: int
    code: str
    run_ms: int | None = None
    message: str | None = None


class Held(StepFact, frozen=True, tag="held"):
    delivery: int
    code: str
    run_ms: int | None = None
    message: str | None = None


class Restored(StepFact, frozen=True, tag="restored"):
    """The database was restored from a backup, and this at_most_once step may have started since: the step is held."""


class Skipped(StepFact, frozen=True, tag="skipped"):
    pass


class StepCancelled(StepFact, frozen=True, tag="cancelled"):
    code: str


class Reopened(StepFact, frozen=True, tag="reopened"):
    """An operator runs the step again: it starts with a new first attempt, and earlier attempts no longer count."""

    new_key: bool


class TaskFact(Struct, frozen=True, array_like=True, gc=False, tag_field="kind"):
    at: int


class Submitted(TaskFact, frozen=True, tag="submitted"):
    workflow_id: int
    uid: str
    state: str  # running, or pending when the active set is full
    first_step_id: int  # the id of the step at position 0; the other steps of the workflow follow it without a gap


class Activated(TaskFact, frozen=True, tag="activated"):
    """Loaded for the first time."""


class Paused(TaskFact, frozen=True, tag="paused"):
    by: str | None = None


class Resumed(TaskFact, frozen=True, tag="resumed"):
    by: str | None = None


class CancelAsked(TaskFact, frozen=True, tag="cancel_asked"):
    reason: str
    by: str | None = None


class TaskReopened(TaskFact, frozen=True, tag="task_reopened"):
    pass


class Operated(TaskFact, frozen=True, tag="operated"):
    """An operator's command, with its reason."""

    action: str
    step: int | None
    reason: str
    by: str | None = None


class Noticed(TaskFact, frozen=True, tag="noticed"):
    """`attention` changed: `held` when the rest of the task depends on a held step."""

    attention: str | None


class Erased(TaskFact, frozen=True, tag="erased"):
    """An operator erased the payloads of the task, which has ended."""

    reason: str
    by: str | None = None


class TaskEnded(TaskFact, frozen=True, tag="ended"):
    state: str


Fact: TypeAlias = (
    Readied
    | Dispatched
    | Granted
    | Started
    | Undelivered
    | Completed
    | BackedOff
    | Failed
    | Held
    | Restored
    | Skipped
    | StepCancelled
    | Reopened
    | Submitted
    | Activated
    | Paused
    | Resumed
    | CancelAsked
    | TaskReopened
    | Operated
    | Noticed
    | Erased
    | TaskEnded
)

MESSAGE_CHARACTERS_MAX: Final = 200

encode: Final = msgspec.json.Encoder().encode
decode: Final = msgspec.json.Decoder(list[Fact]).decode
