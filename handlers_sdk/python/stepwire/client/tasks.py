"""Calls on tasks: submit, read, wait, operate."""

import secrets
import time
from collections.abc import Mapping, Sequence
from typing import Any, Final, NamedTuple

from stepwire.errors import ConfigurationError, WaitTimeout

from .transport import Calls, in_path, with_query

TERMINAL: Final = frozenset({"completed", "failed", "cancelled"})


class Submitted(NamedTuple):
    """The task of a submission."""

    task_id: int
    created: bool  # False: the task with this key existed already
    key: str


class TaskCalls(Calls):
    """Submit, read, wait for, and operate tasks."""

    def submit(
        self,
        workflow: str,
        context: Any = None,
        *,
        key: str | None = None,
        namespace: str | None = None,
        version: str | None = None,
        priority: int | None = None,
        labels: Mapping[str, str] | None = None,
    ) -> Submitted:
        """Start a task. Without a `key` the client creates one, so that a lost answer never leads to a second task."""
        key = key or secrets.token_hex(16)
        task = _task(workflow, context, key, namespace, version, priority, labels)
        answer = self._transport.post("/v1/tasks", task, is_safe=True)
        return Submitted(answer["task_id"], answer.get("created", True), key)

    def run(
        self,
        workflow: str,
        context: Any = None,
        *,
        timeout: float | None = None,
        key: str | None = None,
        namespace: str | None = None,
        version: str | None = None,
        priority: int | None = None,
        labels: Mapping[str, str] | None = None,
    ) -> dict[str, Any]:
        """Submit a task and wait for it, in one request if the task ends soon."""
        until_s = None if timeout is None else time.monotonic() + timeout
        task = _task(workflow, context, key or secrets.token_hex(16), namespace, version, priority, labels)
        path = with_query("/v1/tasks", {"wait_ms": self._transport.long_poll_ms(until_s)})
        answer = self._transport.post(path, task, is_safe=True)
        return self._until_settled(answer["task_id"], answer["task"], until_s)

    def submit_many(self, tasks: Sequence[Mapping[str, Any]]) -> list[int]:
        """Start all of these tasks, or none. Each is a mapping of `submit`'s arguments: workflow, context, key, …"""
        documents = [_task_of(task) for task in tasks]
        answer = self._transport.post("/v1/tasks/batch", {"tasks": documents}, is_safe=True)
        return list(answer["task_ids"])

    def task(self, task_id: int) -> dict[str, Any]:
        """One task."""
        return self._transport.get(_path(task_id))

    def tasks(self, **filters: Any) -> dict[str, Any]:
        """A page of tasks. Filters: state, namespace, workflow, label, idempotency_key, since, limit, cursor."""
        return self._transport.get("/v1/tasks", filters)

    def task_events(self, task_id: int, **page: Any) -> dict[str, Any]:
        """A page of a task's history, from its beginning: `events` and `next_cursor`. Page: limit, cursor."""
        return self._transport.get(f"{_path(task_id)}/events", page)

    def wait(self, task_id: int, timeout: float | None = None) -> dict[str, Any]:
        """Wait until the task has ended, or depends on a held step (`attention`). Returns the task.

        Raises WaitTimeout after `timeout` seconds.
        """
        until_s = None if timeout is None else time.monotonic() + timeout
        return self._until_settled(task_id, self._long_poll(task_id, until_s), until_s)

    def why(self, task_id: int, step: str | None = None) -> dict[str, Any]:
        """Why the task, or its step with this name, is in its state: `message` is a sentence, `code` the kind."""
        of_step = "" if step is None else f"/steps/{in_path(step)}"
        return self._transport.get(f"{_path(task_id)}{of_step}/why")

    def cancel(self, task_id: int, reason: str = "") -> dict[str, Any]:
        """Cancel the task: no further step starts, and running steps are cancelled."""
        return self._command(task_id, "cancel", {"reason": reason}, is_safe=True)

    def pause(self, task_id: int) -> dict[str, Any]:
        """Start no further steps of the task; running steps finish."""
        return self._command(task_id, "pause", {}, is_safe=True)

    def resume(self, task_id: int) -> dict[str, Any]:
        """End a pause."""
        return self._command(task_id, "resume", {}, is_safe=True)

    def retry(
        self,
        task_id: int,
        *,
        from_step: str | None = None,
        again: bool = False,
        new_key: bool = False,
        reason: str = "",
    ) -> dict[str, Any]:
        """Run failed, cancelled and skipped steps again. With `from_step`, run that step and all later ones again."""
        body = {"from_step": from_step, "again": again, "new_key": new_key, "reason": reason}
        return self._command(task_id, "retry", {name: value for name, value in body.items() if value}, is_safe=False)

    def _command(self, task_id: int, name: str, body: Mapping[str, Any], *, is_safe: bool) -> dict[str, Any]:
        return self._transport.post(f"{_path(task_id)}/{name}", body, is_safe=is_safe)

    def _until_settled(self, task_id: int, task: dict[str, Any], until_s: float | None) -> dict[str, Any]:
        while not (task["state"] in TERMINAL or task.get("attention")):
            if until_s is not None and time.monotonic() >= until_s:
                raise WaitTimeout(task_id, task["state"])
            task = self._long_poll(task_id, until_s)
        return task

    def _long_poll(self, task_id: int, until_s: float | None) -> dict[str, Any]:
        return self._transport.get(_path(task_id), {"wait_ms": self._transport.long_poll_ms(until_s)})


def _path(task_id: int) -> str:
    return f"/v1/tasks/{in_path(int(task_id))}"


def _task_of(task: Mapping[str, Any]) -> dict[str, Any]:
    try:
        return _task(**{**task, "key": task.get("key") or secrets.token_hex(16)})
    except TypeError as error:
        raise ConfigurationError(f"submit_many: {error}") from None


def _task(
    workflow: str,
    context: Any = None,
    key: str | None = None,
    namespace: str | None = None,
    version: str | None = None,
    priority: int | None = None,
    labels: Mapping[str, str] | None = None,
) -> dict[str, Any]:
    document = {
        "workflow": workflow,
        "namespace": namespace,
        "version": version,
        "context": {} if context is None else context,
        "idempotency_key": key,
        "priority": priority,
        "labels": labels,
    }
    return {name: value for name, value in document.items() if value is not None}
