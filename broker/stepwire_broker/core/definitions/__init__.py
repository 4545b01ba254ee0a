"""Workflows, trigger rules, mappings and settings: what users write, read and validated."""
