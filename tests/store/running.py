"""A started store over each database or over the tables in memory, waited for with a bound."""

import queue
from pathlib import Path
from types import TracebackType
from typing import Any, NamedTuple, TypeAlias, cast

from stepwire_broker.core.definitions.settings import DatabaseSettings, RetentionSettings
from stepwire_broker.core.definitions.stored_rows import StoredStep
from stepwire_broker.core.model.commit_group import CommitGroup, Committed, Outcome
from stepwire_broker.store import Faults, Opened, Store, open_store
from stepwire_broker.store.postgres.database import open_database as open_postgres
from stepwire_broker.store.queries import Queries
from stepwire_broker.store.rows import EventRow, HistoryCursor, TaskFilter

from tests.memory_store.database import MemoryDatabase, begin_epoch
from tests.memory_store.tables import Tables
from tests.postgres.server import PostgresServer

from .stored_rows import NOW, workflow_new

PATIENCE_S = 20.0


class PostgresPlace(NamedTuple):
    """A schema of a server. The first start makes it."""

    server: PostgresServer
    schema: str
    port: int = 0  # of a proxy or a pooler

    def settings(self) -> DatabaseSettings:
        url = self.server.url(port=self.port) if self.port else self.server.socket_url()
        return DatabaseSettings(url=url, pool_size=2, schema=self.schema, lanes=1)


class MemoryPlace:
    """Where a store in memory keeps its tables from one start to the next."""

    def __init__(self) -> None:
        self.tables = Tables()


Place: TypeAlias = Path | MemoryPlace | PostgresPlace


def open_at(place: Place, broker: str = "b1", *, lease_ms: int = 10_000, entropy: int = 0xABC) -> Store:
    if isinstance(place, MemoryPlace):
        opened = begin_epoch(place.tables, broker, lease_ms, entropy, is_shared=True)
        return Store(MemoryDatabase(place.tables, opened))
    if isinstance(place, PostgresPlace):
        return Store(
            open_postgres(
                place.settings(), broker, lease_ms=lease_ms, broker_lease_ms=10_000, wall_ms=NOW, entropy=entropy
            )
        )
    settings = DatabaseSettings(url=f"sqlite:///{place}", pool_size=2)
    return open_store(settings, broker, lease_ms=lease_ms, wall_ms=NOW, entropy=entropy)


class Running:
    """A started store. Its calls wait for their outcomes."""

    def __init__(
        self,
        place: Place,
        broker: str = "b1",
        faults: Faults | None = None,
        lease_ms: int = 10_000,
        retention: RetentionSettings | None = None,
    ) -> None:
        self.store = open_at(place, broker, lease_ms=lease_ms)
        self.opened: Opened = self.store.opened
        (self.taken,) = self.opened.lanes
        self.lane, self.seq = self.taken.lane, self.taken.end
        self.outcomes: queue.SimpleQueue[Outcome] = queue.SimpleQueue()
        self.store.start(self.outcomes.put, faults, retention)

    def put(self, **lists: Any) -> CommitGroup:
        self.seq += 1
        group = CommitGroup(lane=self.lane, seq=self.seq, **lists)
        self.store.put(group)
        return group

    def outcome(self) -> Outcome:
        return self.outcomes.get(timeout=PATIENCE_S)

    def write(self, **lists: Any) -> Committed:
        self.put(**lists)
        outcome = self.outcome()
        assert isinstance(outcome, Committed), outcome
        return outcome

    def read(self, query: Any, *args: Any) -> Any:
        return self.store.read(query, *args).result(PATIENCE_S)

    def history(self) -> list[EventRow]:
        """All of it."""
        (lane,) = self.queries.lanes()
        return self.queries.events_from(lane.id, HistoryCursor(), 100_000)

    def task_ids(self) -> list[int]:
        return sorted(row.id for row in self.queries.tasks(TaskFilter(limit=100_000)))

    def stored_steps(self, task_id: int) -> list[StoredStep]:
        return self.queries.load_tasks([task_id], 1 << 30).steps

    @property
    def queries(self) -> Queries:
        """The store's questions, each answered in a reader's thread."""
        return cast(Queries, _Asking(self.store))

    def sql(self, text: str, *values: object) -> list[Any]:
        """On SQLite only."""
        return self.read(lambda queries: queries.execute(text, values).fetchall())

    def workflow(self, name: str = "order", version: str = "1", **changes: Any) -> int:
        outcome = self.write(workflows=[workflow_new(name, version, **changes)])
        return outcome.workflows[0].workflow_id

    def close(self) -> bool:
        return self.store.close(PATIENCE_S)

    def __enter__(self) -> "Running":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.store.close(PATIENCE_S if error is None else 0.1)


class _Asking:
    def __init__(self, store: Store) -> None:
        self._store = store

    def __getattr__(self, name: str) -> Any:
        return lambda *args: self._store.read(lambda queries: getattr(queries, name)(*args)).result(PATIENCE_S)
