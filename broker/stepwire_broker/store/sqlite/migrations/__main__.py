"""`python -m stepwire_broker.store.sqlite.migrations`: writes schema.sql, from which new databases are made."""

from stepwire_broker.store.sqlite.migrate import SCHEMA, schema

SCHEMA.write_text(schema(), encoding="utf-8")
