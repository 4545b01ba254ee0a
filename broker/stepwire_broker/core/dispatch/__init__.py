"""Which worker gets which ready steps."""
