"""Calls on tasks: submit, read, wait, operate."""

import os
import secrets
import time
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final, NamedTuple

from stepwire_protocol.patterns import split_name

from stepwire import sealing
from stepwire.errors import ConfigurationError, WaitTimeout, WrongState

from . import payloads, sealed_documents
from .transport import Calls, in_path

GENERATED_PREFIX: Final = "auto-"  # of the keys that the client generates
WATCH_EVERY_S: Final = 1.0
TERMINAL: Final = frozenset({"completed", "failed", "cancelled"})


class Submitted(NamedTuple):
    """The task of a submission."""

    task_id: int
    created: bool  # False: the task with this key existed already; a key that the client generated is always new
    key: str


class TaskCalls(Calls):
    """Submit, read, wait for, and operate tasks."""

    _seal_keys: sealing.SealKeys | None = None
    _seal_keys_file: str | os.PathLike[str] | None = None

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
        seal: bool = False,
    ) -> Submitted:
        """Start a task of `workflow`, a name or NAMESPACE::NAME. Without a `key` the client creates one, so that a lost
        answer never leads to a second task. `seal`: seal the context with the first key of `seal_keys_file`."""
        is_new = key is None
        key = key or generated_key()
        task = self._task(workflow, context, key, namespace, version, priority, labels, seal)
        answer = self._transport.post("/v1/tasks", task, is_safe=True)
        return Submitted(answer["task_id"], is_new or answer["created"], key)

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
        seal: bool = False,
    ) -> dict[str, Any]:
        """Submit a task and wait for it, in one request if the task ends soon. With `seal`, the context is sealed and
        the returned task is unsealed."""
        until_s = None if timeout is None else time.monotonic() + timeout
        task = self._task(workflow, context, key or generated_key(), namespace, version, priority, labels, seal)
        answer = self._transport.poll("POST", "/v1/tasks", until_s, task)
        ended = self._until_settled(answer["task_id"], answer["task"], until_s)
        return self.unsealed(ended) if seal else ended

    def submit_many(self, tasks: Sequence[Mapping[str, Any]]) -> list[int]:
        """Start all of these tasks, or none. Each is a mapping of `submit`'s arguments: workflow, context, key, …"""
        documents = [self._task_of(task) for task in tasks]
        answer = self._transport.post("/v1/tasks/batch", {"tasks": documents}, is_safe=True)
        return list(answer["task_ids"])

    def task(self, task_id: int) -> dict[str, Any]:
        """One task. Its payloads need the scope `inspect`: without it, `task["result"]` raises MissingPayload."""
        return payloads.of_task(self._transport.get(_path(task_id)))

    def unsealed(self, task: Mapping[str, Any]) -> dict[str, Any]:
        """A task with plaintext in the place of its sealed context, result, outputs and errors. An error is unsealed if
        the document of its step has the `backtrace`, as that of `step` has. Raises NotUnsealed, or ConfigurationError
        without keys."""
        return sealed_documents.unsealed(self._keys(), task)

    def tasks(self, **filters: Any) -> dict[str, Any]:
        """A page of tasks. Filters: state, namespace, workflow, label, idempotency_key, since, limit, cursor.

        `next_cursor` continues the list. A page with `scanned_to` may have fewer tasks than `limit`, or none, although
        there are more: the broker has searched back to this time."""
        return self._transport.get("/v1/tasks", filters)

    def task_events(self, task_id: int, **page: Any) -> dict[str, Any]:
        """A page of a task's history, from its beginning: `events` and `next_cursor`. Page: limit, cursor."""
        return self._transport.get(f"{_path(task_id)}/events", page)

    def wait(self, task_id: int, timeout: float | None = None) -> dict[str, Any]:
        """Wait until the task has ended, or depends on a held step (`attention`). Returns the task.

        Raises WaitTimeout after `timeout` seconds, or Unreachable if no broker answers then.
        """
        until_s = None if timeout is None else time.monotonic() + timeout
        return self._until_settled(task_id, self._long_poll(task_id, until_s), until_s)

    def watch(
        self, task_id: int, timeout: float | None = None, *, every_s: float = WATCH_EVERY_S
    ) -> Iterator[dict[str, Any]]:
        """The task as it is now, and then every `every_s` seconds until it has ended or depends on a held step, or
        until `timeout` seconds are over."""
        until_s = None if timeout is None else time.monotonic() + timeout
        task = self._transport.poll("GET", _path(task_id), until_s, wait_s=0.0)
        yield payloads.of_task(task)
        while not _is_settled(task) and (until_s is None or time.monotonic() < until_s):
            task = self._transport.poll("GET", _path(task_id), until_s, wait_s=every_s)
            yield payloads.of_task(task)

    def why(self, task_id: int, step: str | None = None) -> dict[str, Any]:
        """Why the task, or its step with this name, is in its state: `message` is a sentence, `code` the kind."""
        of_step = "" if step is None else f"/steps/{in_path(step)}"
        return self._transport.get(f"{_path(task_id)}{of_step}/why")

    def cancel(self, task_id: int, reason: str = "") -> dict[str, Any]:
        """Cancel the task: no further step starts, and running steps are cancelled."""
        try:
            return self._command(task_id, "cancel", {"reason": reason}, is_safe=True)
        except WrongState as error:
            return self._done_before(task_id, error, "cancelled")

    def pause(self, task_id: int) -> dict[str, Any]:
        """Start no further steps of the task; running steps finish."""
        return self._command(task_id, "pause", {}, is_safe=True)

    def resume(self, task_id: int) -> dict[str, Any]:
        """End a pause."""
        try:
            return self._command(task_id, "resume", {}, is_safe=True)
        except WrongState as error:
            return self._done_before(task_id, error, "completed", "failed")

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

    def erase(self, task_id: int, reason: str) -> dict[str, Any]:
        """Erase the payloads of a task that has ended. After the last task, call `finish_erasures`.

        Returns `{"task_id", "state", "attention", "erased_at"}`. An erased task stays as it is."""
        return self._command(task_id, "erase", {"reason": reason}, is_safe=True)

    def _task_of(self, task: Mapping[str, Any]) -> dict[str, Any]:
        try:
            return self._task(**{**task, "key": task.get("key") or generated_key()})
        except TypeError as error:
            raise ConfigurationError(f"submit_many: {error}") from None

    def _task(
        self,
        workflow: str,
        context: Any = None,
        key: str | None = None,
        namespace: str | None = None,
        version: str | None = None,
        priority: int | None = None,
        labels: Mapping[str, str] | None = None,
        seal: bool = False,
    ) -> dict[str, Any]:
        task = _task(workflow, context, key, namespace, version, priority, labels)
        if seal:
            of = sealed_documents.task_of(task)
            task["context"] = sealing.context(self._keys(), of, task["context"])
        return task

    def _keys(self) -> sealing.SealKeys:
        if self._seal_keys is None:
            path = self._seal_keys_file or os.environ.get(sealing.FILE)
            if not path:
                raise ConfigurationError(f"sealed payloads need keys: set {sealing.FILE}, or pass seal_keys_file")
            self._seal_keys = sealing.SealKeys.of_file(os.fspath(path))
        return self._seal_keys

    def _command(self, task_id: int, name: str, body: Mapping[str, Any], *, is_safe: bool) -> dict[str, Any]:
        return self._transport.post(f"{_path(task_id)}/{name}", body, is_safe=is_safe)

    def _done_before(self, task_id: int, error: WrongState, *states: str) -> dict[str, Any]:
        """The task after a command that was carried out, but whose answer was lost, so that it was sent again."""
        if error.may_be_done:
            task = self.task(task_id)
            if task["state"] in states:
                return {name: task[name] for name in ("task_id", "state", "attention")}
        raise error

    def _until_settled(self, task_id: int, task: dict[str, Any], until_s: float | None) -> dict[str, Any]:
        while not _is_settled(task):
            if until_s is not None and time.monotonic() >= until_s:
                raise WaitTimeout(task_id, task["state"])
            task = self._long_poll(task_id, until_s)
        return payloads.of_task(task)

    def _long_poll(self, task_id: int, until_s: float | None) -> dict[str, Any]:
        return self._transport.poll("GET", _path(task_id), until_s)


def generated_key() -> str:
    """A new idempotency key. It begins with the time, so that the keys of one period are neighbours in the database."""
    return f"{GENERATED_PREFIX}{time.time_ns() // 1_000_000:012x}{secrets.token_hex(10)}"


def _is_settled(task: Mapping[str, Any]) -> bool:
    return task["state"] in TERMINAL or bool(task.get("attention"))


def _path(task_id: int) -> str:
    return f"/v1/tasks/{in_path(int(task_id))}"


def _task(
    workflow: str,
    context: Any = None,
    key: str | None = None,
    namespace: str | None = None,
    version: str | None = None,
    priority: int | None = None,
    labels: Mapping[str, str] | None = None,
) -> dict[str, Any]:
    namespace, workflow = split_name(workflow, namespace)
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
