"""All queries of a store, on one connection to SQLite."""

from .loading import LoadingQueries
from .pages import PageQueries
from .shared_rows import SharedRows


class SqliteQueries(LoadingQueries, PageQueries, SharedRows):
    """The port store/queries.py. Load queries serve the core, page queries serve people, and shared
    rows serve other brokers."""
