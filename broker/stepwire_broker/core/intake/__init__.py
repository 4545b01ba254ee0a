"""What clients and operators request: submissions, commands and routing rules."""
