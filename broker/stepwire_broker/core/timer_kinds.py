"""The kinds of timers: a class for each, with the condition under which it is stale.

`machine.py` handles a timer that is due.
"""

from typing import TypeAlias

from msgspec import Struct

from .guards.guard import Guard
from .model.level0_peer import Handout
from .model.live import Step, StepBatch, Task, WorkerSession
from .shadows.shadow import Shadow

# -- messages and sessions --------------------------------------------------------------------------------------------


class RetransmitDue(Struct, frozen=True, gc=False):
    """A batch was released and its worker has not answered it."""

    batch: StepBatch

    def is_stale(self) -> bool:
        return self.batch.answered or self.batch.session.dead


class SessionTimer(Struct, frozen=True, gc=False):
    session: WorkerSession

    def is_stale(self) -> bool:
        return self.session.dead


class LeaseEnds(SessionTimer, frozen=True, gc=False):
    """The lease of a session may be over."""


class AdoptionDue(SessionTimer, frozen=True, gc=False):
    """A worker has not yet reported whether it holds the steps it was asked about."""


class HandoutEnds(Struct, frozen=True, gc=False):
    """The lease of a level-0 batch may be over."""

    handout: Handout

    def is_stale(self) -> bool:
        return self.handout.over


class ShadowEnds(Struct, frozen=True, gc=False):
    """The time for comparing a shadow with its step is over."""

    shadow: Shadow

    def is_stale(self) -> bool:
        return self.shadow.over


# -- steps and tasks --------------------------------------------------------------------------------------------------


class StepTimer(Struct, frozen=True, gc=False):
    step: Step

    def is_stale(self) -> bool:
        return self.step.is_final or not self.step.task.steps


class RunLimit(StepTimer, frozen=True, gc=False):
    """A started run should have ended by itself before this time."""

    delivery: int
    due_mono: int


class StartLimit(StepTimer, frozen=True, gc=False):
    """A worker without a lease should have asked to start this delivery."""

    delivery: int


class RetryDue(StepTimer, frozen=True, gc=False):
    """The back-off of a failed attempt is over."""

    not_before_ms: int | None


class QueueLimit(StepTimer, frozen=True, gc=False):
    """The step should have started within its `queue_timeout_ms`."""

    ready_ms: int | None


class StepDeadline(StepTimer, frozen=True, gc=False):
    """All attempts of the step together should have ended."""

    deadline_ms: int


class TaskDeadline(Struct, frozen=True, gc=False):
    """The task should have ended."""

    task: Task
    deadline_ms: int

    def is_stale(self) -> bool:
        return not self.task.steps


# -- guards -----------------------------------------------------------------------------------------------------------


class BreakerDue(Struct, frozen=True, gc=False):
    """The open or half-open time of a breaker is over."""

    guard: Guard
    turn: int

    def is_stale(self) -> bool:
        return self.guard.breaker.turn != self.turn


class NeverStale(Struct, frozen=True, gc=False):
    """For timers that stay needed regardless of later events."""

    def is_stale(self) -> bool:
        return False


class BudgetDue(NeverStale, frozen=True, gc=False):
    """A retry budget may allow retries again."""

    guard: Guard


class GuardSweepDue(NeverStale, frozen=True, gc=False):
    """Guards without recent failures or settings are removed."""


# -- loading ----------------------------------------------------------------------------------------------------------


class PeerSettled(NeverStale, frozen=True, gc=False):
    """A new level-0 peer can receive steps. The dispatch that follows every event sends them."""


class SliceDue(NeverStale, frozen=True, gc=False):
    """The next tasks of a large submission are built."""

    request: int


class PageDue(NeverStale, frozen=True, gc=False):
    """Tasks may be loaded again. The loading that follows every event reads them."""


class RecoverySafe(NeverStale, frozen=True, gc=False):
    """No worker still holds a lease from an earlier run of this broker."""


class ReleaseDue(NeverStale, frozen=True, gc=False):
    """A lane that is being given up may be able to go."""

    lane: int
    epoch: int  # of the lane


class FetchDue(NeverStale, frozen=True, gc=False):
    """Payloads of these steps could not be read, and are read again."""

    steps: list[Step]


class ReloadDue(NeverStale, frozen=True, gc=False):
    """A task whose rows the database refused could not be read, and is read again."""

    task_id: int


class LookDue(NeverStale, frozen=True, gc=False):
    """Other brokers may have stored orders for this one."""


AnyTimer: TypeAlias = (
    RetransmitDue
    | LeaseEnds
    | AdoptionDue
    | HandoutEnds
    | ShadowEnds
    | RunLimit
    | StartLimit
    | RetryDue
    | QueueLimit
    | StepDeadline
    | TaskDeadline
    | BreakerDue
    | BudgetDue
    | GuardSweepDue
    | PeerSettled
    | SliceDue
    | PageDue
    | RecoverySafe
    | ReleaseDue
    | FetchDue
    | ReloadDue
    | LookDue
)
