"""How much work waits for a kind of workers, and how many of them it needs."""
