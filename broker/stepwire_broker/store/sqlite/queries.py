"""All questions that a store answers, on one connection to SQLite."""

from .loading import LoadingQueries
from .pages import PageQueries


class SqliteQueries(LoadingQueries, PageQueries):
    """The port store/queries.py. Load queries are the core's, page queries are for people."""
