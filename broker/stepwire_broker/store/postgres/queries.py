"""All queries of a store, on one connection to PostgreSQL."""

from .backlog import PostgresBacklog
from .pages import PostgresPages
from .shared_rows import PostgresSharedRows


class PostgresQueries(PostgresBacklog, PostgresPages, PostgresSharedRows):
    """The port store/queries.py. Load queries serve the core, page queries serve people, and shared
    rows serve other brokers."""
