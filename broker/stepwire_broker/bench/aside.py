"""A handler that is there and gets nothing: what the executors beside the bus have to have, to be configured."""

from typing import Final

from stepwire import Context, Worker

HANDLER: Final = "bench.aside"

worker = Worker()


@worker.handler(HANDLER)
def aside(context: Context) -> None:
    """No step names it."""
