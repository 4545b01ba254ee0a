"""A handler that receives no steps. Executors other than the bus can only be configured with a handler."""

from typing import Final

from stepwire import Context, Worker

HANDLER: Final = "bench.aside"

worker = Worker()


@worker.handler(HANDLER)
def aside(context: Context) -> None:
    """Do nothing: no step names this handler."""
