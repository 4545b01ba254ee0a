"""What happened to a task, fact by fact. The live state changes only by applying one of these, and the history stores
the same ones, so replaying the history gives the state by construction.

`at` is UTC milliseconds. A step is named by its position in the task. Payloads stay out: a completed step's output
lies in its row, and the fact carries its size and CRC-32.
"""

from typing import Final, TypeAlias

import msgspec
from msgspec import Struct


class StepFact(Struct, frozen=True, array_like=True, gc=False, tag_field="kind"):
    at: int
    step: int


class Readied(StepFact, frozen=True, tag="readied"):
    """Everything it depends on is final and its rule is true; or its back-off is over."""


class Dispatched(StepFact, frozen=True, tag="dispatched"):
    delivery: int
    worker: str
    batch_id: str


class Granted(StepFact, frozen=True, tag="granted"):
    """An at_most_once step may start: from here on its outcome can be unknown."""

    delivery: int


class Started(StepFact, frozen=True, tag="started"):
    """The worker said that it runs; `at` is when it began."""

    delivery: int


class Undelivered(StepFact, frozen=True, tag="undelivered"):
    """The delivery came to nothing, and nothing of it will start. `lost`: it counts as lost with its session."""

    delivery: int
    code: str
    lost: bool


class Completed(StepFact, frozen=True, tag="completed"):
    delivery: int
    output_bytes: int
    output_crc32: int


class BackedOff(StepFact, frozen=True, tag="backed_off"):
    """An attempt failed and there is another one, not before `until`."""

    delivery: int
    code: str
    until: int


class Failed(StepFact, frozen=True, tag="failed"):
    delivery: int
    code: str


class Held(StepFact, frozen=True, tag="held"):
    delivery: int
    code: str


class Restored(StepFact, frozen=True, tag="restored"):
    """A backup took the database's place: nobody knows what became of this at_most_once step since, and it is held."""


class Skipped(StepFact, frozen=True, tag="skipped"):
    pass


class StepCancelled(StepFact, frozen=True, tag="cancelled"):
    code: str


class Reopened(StepFact, frozen=True, tag="reopened"):
    """An operator wants it run again: a new first attempt, and nothing of before counts any more."""

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
    pass


class Resumed(TaskFact, frozen=True, tag="resumed"):
    pass


class CancelAsked(TaskFact, frozen=True, tag="cancel_asked"):
    reason: str


class TaskReopened(TaskFact, frozen=True, tag="task_reopened"):
    pass


class Operated(TaskFact, frozen=True, tag="operated"):
    """An operator did something, and said why."""

    action: str
    step: int | None
    reason: str


class Noticed(TaskFact, frozen=True, tag="noticed"):
    """`attention` changed: `held` when the rest of the task hangs on a held step."""

    attention: str | None


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
    | TaskEnded
)

encode: Final = msgspec.json.Encoder().encode
decode: Final = msgspec.json.Decoder(list[Fact]).decode
