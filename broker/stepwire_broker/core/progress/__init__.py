"""What follows when a step changes its state."""
