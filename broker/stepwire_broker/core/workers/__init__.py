"""Sessions, level-0 peers and executors, and their reports about steps."""
