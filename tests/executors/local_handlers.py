"""Handlers that run inside a broker's process, in its threads or in separate processes."""

import os
import threading
from pathlib import Path
from typing import Any

from stepwire import Context, Worker

worker = Worker()


@worker.handler("where.thread")
def in_thread(context: Context) -> dict[str, Any]:
    return {"pid": os.getpid(), "thread": threading.current_thread().name}


@worker.handler("where.async")
async def on_loop(context: Context) -> dict[str, Any]:
    return {"pid": os.getpid(), "thread": threading.current_thread().name}


@worker.handler("where.process", process=True)
def in_process(context: Context, given: dict[str, Any]) -> dict[str, Any]:
    """Write the pid to a file; the first delivery then waits until it is killed."""
    me = {"pid": os.getpid(), "delivery": context.delivery}
    if "note" in given:
        note = Path(given["note"])
        part = note.with_suffix(".part")
        part.write_text(f"{os.getpid()}")
        part.rename(note)
        if context.delivery == 1:
            threading.Event().wait()
    return me
