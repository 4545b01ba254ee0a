"""What users write: workflows, rules, mappings and settings, read and checked."""
