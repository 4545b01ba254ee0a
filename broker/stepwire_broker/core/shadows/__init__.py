"""Copies of steps that are compared with the real ones."""
