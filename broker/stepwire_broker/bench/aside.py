"""A handler that gets no steps. The executors other than the bus need one to be configured."""

from typing import Final

from stepwire import Context, Worker

HANDLER: Final = "bench.aside"

worker = Worker()


@worker.handler(HANDLER)
def aside(context: Context) -> None:
    """Do nothing: no step names this handler."""
