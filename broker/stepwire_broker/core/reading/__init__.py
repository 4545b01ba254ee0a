"""What reading a document needs: problems with their place, durations, JSON paths, the nearest known name."""
