"""Alembic's entry: runs the migrations on the connection and in the transaction that migrate.py has open."""

from alembic import context

context.configure(connection=context.config.attributes["connection"])
context.run_migrations()
