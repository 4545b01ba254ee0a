"""The store on SQLite: the only package that uses its driver, its SQL and its files."""
