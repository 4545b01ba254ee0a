"""A task of an embedded broker."""

import asyncio
from typing import Any, Final

from stepwire_broker import operator_commands
from stepwire_broker.core.answers.answers import Done
from stepwire_broker.core.model.events import AwaitTask
from stepwire_broker.core.model.states import TASK_FINAL, TaskState

from .calls import EngineCalls
from .errors import CommandError, TaskCancelled, TaskFailed, TaskHeld
from .views import TaskView, read_view

LOOK_AGAIN_S: Final = 5.0


class Task:
    """A stored task: read it, wait for it, or command it."""

    def __init__(self, calls: EngineCalls, task_id: int, created: bool) -> None:
        self.id = task_id
        self.created = created  # False: the key was submitted before, or the object came from `Broker.task`
        self._calls = calls

    def __repr__(self) -> str:
        return f"Task({self.id})"

    async def result(self, timeout_s: float | None = None) -> Any:
        """Wait for the task's result: its workflow's `output`, or the outputs of its last steps by name.

        Raises TaskFailed, TaskCancelled or TaskHeld, and TimeoutError when the task is still in progress after
        `timeout_s`. The wait can be repeated, even after a restart: `broker.task(id).result()`.
        """
        task = await self.wait(timeout_s)
        if task.attention is not None and task.state not in TASK_FINAL:
            raise TaskHeld(task)
        if task.state == TaskState.FAILED:
            raise TaskFailed(task)
        if task.state == TaskState.CANCELLED:
            raise TaskCancelled(task)
        return task.result

    async def wait(self, timeout_s: float | None = None) -> TaskView:
        """Wait until the task has ended, or waits for a held step. Raises TimeoutError."""
        async with asyncio.timeout(timeout_s):
            while True:
                settled = asyncio.ensure_future(self._calls.ask(lambda request: AwaitTask(request, self.id), Done))
                try:
                    await self._calls.engine().handled()  # later reads are not older than the command
                    task = await self.show()
                    if task.is_settled:
                        return task
                    await asyncio.wait((settled,), timeout=LOOK_AGAIN_S)
                    if settled.done():
                        settled.result()
                finally:
                    settled.cancel()
                    await asyncio.gather(settled, return_exceptions=True)

    async def show(self) -> TaskView:
        """Read the task. Raises CommandError, code `not_found`, when it does not exist or was removed."""
        engine = self._calls.engine()
        task = await engine.read(read_view, self.id, engine.workflows)
        if task is None:
            raise CommandError(
                "not_found", f"there is no task {self.id}", "ended tasks are removed after their retention time"
            )
        return task

    async def cancel(self, reason: str = "") -> None:
        """Start no further step of the task, and ask running steps to stop."""
        await self._calls.order(operator_commands.CANCEL_TASK, self.id, {"reason": reason})

    async def pause(self) -> None:
        """Start no further step of the task until it is resumed."""
        await self._calls.order(operator_commands.PAUSE_TASK, self.id, {})

    async def resume(self) -> None:
        await self._calls.order(operator_commands.RESUME_TASK, self.id, {})

    async def retry(
        self, *, from_step: str | None = None, again: bool = False, new_key: bool = False, reason: str = ""
    ) -> None:
        """Run failed, cancelled and skipped steps again; with `from_step`, that step and all steps after it. A
        completed step that must not start twice runs again only with `again`."""
        members = {"from_step": from_step, "again": again, "new_key": new_key, "reason": reason}
        await self._calls.order(operator_commands.RETRY_TASK, self.id, members)
