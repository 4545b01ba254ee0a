"""The other live brokers: how workers reach them."""
