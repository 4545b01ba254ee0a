"""The worker: `worker.py` is the interface for programs, `socket_thread.py` connects session, sockets and handlers."""

from .worker import Worker

__all__ = ["Worker"]
