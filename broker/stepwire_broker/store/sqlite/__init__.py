"""The store on SQLite: the only place that knows its driver, its SQL and its files."""
