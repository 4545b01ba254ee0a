"""The worker: `worker.py` is what programs use, `socket_thread.py` joins the session with sockets and handlers."""

from .worker import Worker

__all__ = ["Worker"]
