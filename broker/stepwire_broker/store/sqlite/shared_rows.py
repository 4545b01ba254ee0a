"""The queries of rows that several brokers share elsewhere. A file has one broker, and no orders."""

from collections.abc import Collection, Sequence

from stepwire_broker.core.definitions.stored_rows import Catalogue, StoredControl, StoredOrder, StoredWorkflow
from stepwire_broker.store.rows import SettledTask

from .reading import WORKFLOW, Reading, json_list


class SharedRows(Reading):
    def catalogue(self, known: Collection[int]) -> Catalogue:
        with self.snapshot():
            return Catalogue(
                self.controls_revision(),
                self.controls(),
                self.rows(
                    StoredWorkflow,
                    f"SELECT {WORKFLOW} FROM workflows WHERE id NOT IN (SELECT value FROM json_each(:known)) "  # noqa: S608
                    "ORDER BY id LIMIT -1",
                    {"known": json_list(list(known))},
                ),
                [number for (number,) in self.execute("SELECT id FROM workflows WHERE active = 1 ORDER BY id")],
                dict(self.execute("SELECT number, lane FROM blocks").fetchall()),
            )

    def controls(self) -> list[StoredControl]:
        return self.rows(
            StoredControl,
            "SELECT kind, name, value, position FROM controls WHERE value IS NOT NULL ORDER BY kind, name LIMIT -1",
            {},
        )

    def open_orders(self, lanes: Sequence[int], limit: int) -> list[StoredOrder]:
        """Return none: no other broker can use the file."""
        return []

    def controls_revision(self) -> int:
        ((revision,),) = self.execute("SELECT coalesce(max(revision), 0) FROM controls").fetchall()
        return int(revision)

    def order_answers(self, order_ids: Sequence[int]) -> dict[int, str]:
        """Return none: a file has no orders."""
        return {}

    def settled_tasks(self, task_ids: Sequence[int]) -> list[SettledTask]:
        return self.rows(
            SettledTask,
            "SELECT id, state, attention FROM tasks WHERE id IN (SELECT value FROM json_each(:ids)) "
            "AND (finished_ms IS NOT NULL OR attention IS NOT NULL) ORDER BY id LIMIT -1",
            {"ids": json_list(task_ids)},
        )
