"""Dispatch: the choice of a worker for each ready step."""
