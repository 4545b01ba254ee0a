"""All queries of a store, on one connection to SQLite."""

from .backlog import BacklogQueries
from .pages import PageQueries
from .shared_rows import SharedRows


class SqliteQueries(BacklogQueries, PageQueries, SharedRows):
    """The port store/queries.py. Load queries serve the core, page queries serve people, and shared
    rows serve other brokers."""
