"""The queries for the backlog in SQLite's SQL: stored tasks by what they wait for, from the index of it."""

from collections.abc import Sequence
from typing import Final

from .loading import LoadingQueries
from .reading import json_list

_WANTING: Final = """
 FROM json_each(:wants) AS offered CROSS JOIN json_each(:lanes) AS own
 CROSS JOIN tasks INDEXED BY tasks_wanting
 WHERE tasks.finished_ms IS NULL AND tasks.stored = 1 AND tasks.wants IS NOT NULL
  AND tasks.lane = own.value AND tasks.wants = offered.value LIMIT :limit"""


class BacklogQueries(LoadingQueries):
    def stored_wants(self) -> list[str]:
        return self.distinct_wants(self._lanes())

    def stored_counts(self, wants: Sequence[str], limit: int) -> dict[str, int]:
        return dict(
            self.execute(
                f"SELECT wants, count(*) FROM (SELECT tasks.wants{_WANTING}) GROUP BY wants",  # noqa: S608
                self._values(wants, limit),
            )
        )

    def stored_counts_by_workflow(self, wants: Sequence[str], limit: int) -> dict[tuple[str, int], int]:
        rows = self.execute(
            "SELECT wants, workflow_id, count(*) "  # noqa: S608
            f"FROM (SELECT tasks.wants, tasks.workflow_id{_WANTING}) GROUP BY wants, workflow_id",
            self._values(wants, limit),
        )
        return {(wanted, workflow_id): count for wanted, workflow_id, count in rows}

    def oldest_stored_ms(self, wants: Sequence[str]) -> int | None:
        (oldest_ms,) = self.execute(
            """
            SELECT min((
              SELECT created_ms FROM tasks
              WHERE finished_ms IS NULL AND stored = 1 AND wants IS NOT NULL
               AND lane = own.value AND wants = offered.value ORDER BY rank_ms, id LIMIT 1
            )) FROM json_each(:wants) AS offered CROSS JOIN json_each(:lanes) AS own
            """,
            {"wants": json_list(wants), "lanes": json_list(self._lanes())},
        ).fetchone()
        return None if oldest_ms is None else int(oldest_ms)

    def _values(self, wants: Sequence[str], limit: int) -> dict[str, str | int]:
        return {"wants": json_list(wants), "lanes": json_list(self._lanes()), "limit": limit}

    def _lanes(self) -> list[int]:
        return [lane for (lane,) in self.execute("SELECT id FROM lanes ORDER BY id")]
