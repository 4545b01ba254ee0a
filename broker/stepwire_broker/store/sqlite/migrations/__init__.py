"""Alembic's environment and the migrations, in the package so that an installed broker can migrate."""
