"""The command line. `stepwire.__main__` imports `main`; what is heavy is imported by the command that needs it."""
