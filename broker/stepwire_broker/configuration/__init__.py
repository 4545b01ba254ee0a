"""The configuration: the origin and the meaning of each setting, and an error message for each invalid value."""
