"""Answers to commands, with their hints and reason codes, and the scope that a command needs."""
