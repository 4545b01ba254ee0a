"""The autoscaler's requests to the broker: the backlog, its own workers, and the drain of a worker."""

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from stepwire.client import Client, ClientError, NotFound


class ConnectedWorker(NamedTuple):
    id: str
    pid: int
    slots: int
    holding: int
    is_leaving: bool  # it takes no new steps


class SeenBacklog(NamedTuple):
    waiting: int
    running: int
    slots: int
    wanted_workers: int
    slots_per_worker: int
    unfit: int
    because: tuple[str, ...]


class Look(NamedTuple):
    """The answers to one round of questions. The workers are read first: one that connects in between counts as the
    worker of another autoscaler, which starts too few copies rather than too many."""

    workers: list[ConnectedWorker]
    backlog: SeenBacklog


class NoAnswer(NamedTuple):
    """The broker did not answer, or refused for a reason that may pass."""

    error: ClientError

    @property
    def is_refusal(self) -> bool:
        """True if no repetition gets another answer: the token or the question is wrong."""
        return self.error.status in (400, 401, 403, 404)


class BrokerQuestions:
    """Used by one thread at a time. `host`: only workers of this machine are listed."""

    def __init__(self, client: Client, host: str, handlers: Sequence[str], labels: Mapping[str, str]) -> None:
        self._client = client
        self._host = host
        self._handlers = tuple(handlers)
        self._labels = dict(labels)

    def look(self, slots: int | None) -> Look | NoAnswer:
        try:
            workers = [_worker(one) for one in self._client.workers()["workers"] if one["host"] == self._host]
            return Look(workers, _backlog(self._client.backlog(self._handlers, labels=self._labels, slots=slots)))
        except ClientError as error:
            return NoAnswer(error)

    def end_worker(self, worker: str) -> ClientError | None:
        """Let a worker finish the steps that it holds, and then end."""
        try:
            self._client.drain_worker(worker, quit=True)
        except NotFound:
            return None  # it has ended
        except ClientError as error:
            return error
        return None


def _worker(one: dict[str, Any]) -> ConnectedWorker:
    is_leaving = one["draining"] or one["stuck"]
    return ConnectedWorker(one["worker"], one["pid"], one["slots"], one["holding"], is_leaving)


def _backlog(document: dict[str, Any]) -> SeenBacklog:
    values = {name: document[name] for name in SeenBacklog._fields}
    return SeenBacklog(**{**values, "because": tuple(document["because"])})
