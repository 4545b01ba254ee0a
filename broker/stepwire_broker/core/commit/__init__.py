"""From decisions to transactions: the outbox, the decision, timers, history and ports."""
