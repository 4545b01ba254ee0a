"""Sessions, level-0 peers and executors: who runs steps, and what they report."""
