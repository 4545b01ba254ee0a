"""The HTTP API, on the broker's own loop. The API makes no decisions and stores no state of tasks."""
