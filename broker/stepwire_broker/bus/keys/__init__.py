"""The CURVE keys of the bus: the brokers' key pair, and the files that admit the principals."""
