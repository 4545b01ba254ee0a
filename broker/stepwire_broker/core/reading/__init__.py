"""Tools for reading a document: problems with their place, durations, JSON paths, the nearest known name."""
