"""All queries of a store, on one connection to PostgreSQL."""

from .loading import PostgresLoading
from .pages import PostgresPages


class PostgresQueries(PostgresLoading, PostgresPages):
    """The port store/queries.py. Load queries serve the core, page queries serve people."""
