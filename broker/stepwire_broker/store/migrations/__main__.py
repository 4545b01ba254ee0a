"""`python -m stepwire_broker.store.migrations`: writes down what the migrations come to, for new databases."""

from stepwire_broker.store.migrate import SCHEMA, schema

SCHEMA.write_text(schema(), encoding="utf-8")
