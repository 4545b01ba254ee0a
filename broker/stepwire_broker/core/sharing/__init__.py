"""Several brokers on one database: orders to the owner of a task, and what all brokers keep in memory."""
