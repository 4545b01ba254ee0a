"""The queries for the backlog in PostgreSQL's SQL: stored tasks by what they wait for, from the index of it."""

from collections.abc import Sequence
from typing import Final

from .loading import PostgresLoading

# Each pair of a lane and a text is one range of the index, and both limits end the search.
_WANTING: Final = """
 FROM unnest(%(wants)s::text[]) AS offered (wants) CROSS JOIN lanes AS own CROSS JOIN LATERAL (
  SELECT tasks.wants, tasks.workflow_id FROM tasks
  WHERE finished_ms IS NULL AND stored AND tasks.wants IS NOT NULL AND lane = own.id AND tasks.wants = offered.wants
  LIMIT %(limit)s
 ) AS waiting LIMIT %(limit)s"""
_ONLY_WANTS: Final = _WANTING.replace("tasks.wants, tasks.workflow_id", "tasks.wants")


class PostgresBacklog(PostgresLoading):
    def stored_wants(self) -> list[str]:
        return self.distinct_wants([lane for (lane,) in self.plain("SELECT id FROM lanes ORDER BY id")])

    def stored_counts(self, wants: Sequence[str], limit: int) -> dict[str, int]:
        rows = self.plain(
            f"SELECT wants, count(*) FROM (SELECT waiting.wants{_ONLY_WANTS}) AS counted GROUP BY wants",  # noqa: S608
            {"wants": list(wants), "limit": limit},
        )
        return {wanted: int(count) for wanted, count in rows}

    def stored_counts_by_workflow(self, wants: Sequence[str], limit: int) -> dict[tuple[str, int], int]:
        rows = self.plain(
            "SELECT wants, workflow_id, count(*) "  # noqa: S608
            f"FROM (SELECT waiting.wants, waiting.workflow_id{_WANTING}) AS counted "
            "GROUP BY wants, workflow_id",
            {"wants": list(wants), "limit": limit},
        )
        return {(wanted, int(workflow_id)): int(count) for wanted, workflow_id, count in rows}

    def oldest_stored_ms(self, wants: Sequence[str]) -> int | None:
        ((oldest_ms,),) = self.plain(
            """
            SELECT min((
              SELECT created_ms FROM tasks
              WHERE finished_ms IS NULL AND stored AND tasks.wants IS NOT NULL
               AND lane = own.id AND tasks.wants = offered.wants ORDER BY rank_ms, id LIMIT 1
            )) FROM unnest(%(wants)s::text[]) AS offered (wants) CROSS JOIN lanes AS own
            """,
            {"wants": list(wants)},
        )
        return None if oldest_ms is None else int(oldest_ms)
