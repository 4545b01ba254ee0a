"""The cases, in files by subject. Importing this package registers all of them."""

from . import duplicates, errors, heartbeats, hello, malformed, payload, results

__all__ = ["duplicates", "errors", "heartbeats", "hello", "malformed", "payload", "results"]
