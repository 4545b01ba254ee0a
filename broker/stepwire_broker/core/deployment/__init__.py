"""The books of a broker about the other brokers of its deployment: their orders, and what they have changed."""
