"""Requests of clients and operators: submissions, commands and routing rules."""
