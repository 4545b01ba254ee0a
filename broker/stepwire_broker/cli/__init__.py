"""The command line. `stepwire.__main__` imports `main`. Each command imports the heavy modules that it needs itself."""
