"""Where a step runs, and in which order ready steps leave."""
