"""Proof on real processes: several brokers on one PostgreSQL, with every kind of worker, under faults."""
