"""What the core returns for a command: answers, hints, reason codes, and the scope that a command needs."""
