"""Workflows by id, for readers: those that the core has in memory, and on a miss those that another broker applied."""

from collections.abc import Iterator, Mapping

from stepwire_broker.core.definitions.workflow import Workflow, stored_workflow

from .queries import Queries


class Definitions(Mapping[int, Workflow]):
    """`known` belongs to the core, which adds to it while a reader looks values up."""

    def __init__(self, queries: Queries, known: Mapping[int, Workflow]) -> None:
        self._queries = queries
        self._known = known
        self._read: dict[int, Workflow] | None = None

    def __getitem__(self, workflow_id: int) -> Workflow:
        known = self._known.get(workflow_id)
        if known is not None:
            return known
        if self._read is None:
            rows = self._queries.catalogue(tuple(self._known)).workflows
            self._read = {row.id: stored_workflow(row) for row in rows}
        found = self._read.get(workflow_id)
        return self._known[workflow_id] if found is None else found

    def __iter__(self) -> Iterator[int]:
        return iter(self._known)

    def __len__(self) -> int:
        return len(self._known)
