"""Which brokers are alive, and which lanes this broker takes and releases: decided from rows that a beat has read."""
