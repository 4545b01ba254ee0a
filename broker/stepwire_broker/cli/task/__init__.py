"""`stepwire task`: one file for each command or family of commands."""
