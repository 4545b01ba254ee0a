"""All queries of a store, on one connection to SQLite."""

from .loading import LoadingQueries
from .pages import PageQueries


class SqliteQueries(LoadingQueries, PageQueries):
    """The port store/queries.py. Load queries serve the core, page queries serve people."""
