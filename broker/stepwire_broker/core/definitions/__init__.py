"""Reading and validation of the users' workflows, trigger rules, mappings and settings."""
