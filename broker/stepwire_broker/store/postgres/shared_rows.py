"""The queries of rows that brokers share: orders, and what every broker keeps in memory."""

from collections.abc import Collection, Sequence

from stepwire_broker.core.definitions.stored_rows import Catalogue, StoredControl, StoredOrder, StoredWorkflow
from stepwire_broker.store.rows import SettledTask

from .reading import WORKFLOW, PostgresReading


class PostgresSharedRows(PostgresReading):
    def catalogue(self, known: Collection[int]) -> Catalogue:
        return Catalogue(
            self.controls_revision(),
            self.controls(),
            self._workflows_without(known),
            [number for (number,) in self.plain("SELECT id FROM workflows WHERE active ORDER BY id")],
            dict(self.plain("SELECT number, lane FROM blocks")),
        )

    def controls(self) -> list[StoredControl]:
        return self.rows(
            StoredControl,
            "SELECT kind, name, value, position FROM controls WHERE value IS NOT NULL ORDER BY kind, name",
        )

    def _workflows_without(self, known: Collection[int]) -> list[StoredWorkflow]:
        """Return the workflows whose ids are not known. Few are new, so only their documents are read."""
        return self.rows(
            StoredWorkflow,
            f"SELECT {WORKFLOW} FROM workflows WHERE id <> ALL (%(known)s::bigint[]) ORDER BY id",  # noqa: S608
            {"known": list(known)},
        )

    def open_orders(self, lanes: Sequence[int], limit: int) -> list[StoredOrder]:
        return self.rows(
            StoredOrder,
            "SELECT lane, id, (extract(epoch FROM clock_timestamp()) * 1000)::bigint - asked_ms, request FROM orders "
            "WHERE answer IS NULL AND lane = ANY (%(lanes)s::int[]) ORDER BY id LIMIT %(limit)s",
            {"lanes": list(lanes), "limit": limit},
        )

    def controls_revision(self) -> int:
        ((revision,),) = self.plain("SELECT coalesce(max(revision), 0) FROM controls")
        return int(revision)

    def order_answers(self, order_ids: Sequence[int]) -> dict[int, str]:
        # The condition on `lane` lets the primary key find the rows.
        rows = self.plain(
            "SELECT id, answer FROM orders WHERE lane IN (SELECT id FROM lanes) AND id = ANY (%(ids)s::bigint[]) "
            "AND answer IS NOT NULL",
            {"ids": list(order_ids)},
        )
        return dict(rows)

    def settled_tasks(self, task_ids: Sequence[int]) -> list[SettledTask]:
        return self.rows(
            SettledTask,
            "SELECT id, state, attention FROM tasks WHERE id = ANY (%(ids)s::bigint[]) "
            "AND (finished_ms IS NOT NULL OR attention IS NOT NULL) ORDER BY id",
            {"ids": list(task_ids)},
        )
