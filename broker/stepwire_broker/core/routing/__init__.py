"""Routing: where a step runs, and in which order ready steps are dispatched."""
