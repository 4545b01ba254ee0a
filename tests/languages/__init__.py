"""The SDKs of all languages under the same load, the same faults and the same checks."""
