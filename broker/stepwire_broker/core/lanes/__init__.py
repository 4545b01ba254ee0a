"""Which tasks are in memory, and which wait in the database."""
