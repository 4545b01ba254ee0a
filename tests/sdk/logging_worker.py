"""A worker process with the logging configuration that its argument names."""

import asyncio
import logging
import os
import sys
import time

import structlog
from stepwire import Context, Permanent, Worker

worker = Worker(steps="ipc://s", results="ipc://r", name="logging", slots=2)
configuration = sys.argv[1]
FORMAT = "%(levelname)s|%(name)s|%(task_id)s|%(message)s"


def configure() -> None:
    handler = logging.StreamHandler()
    handler.setFormatter(logging.Formatter(FORMAT, defaults={"task_id": "-"}))
    logging.basicConfig(level=logging.INFO, handlers=[handler])


@worker.handler("log")
def log(ctx: Context, given: dict[str, str]) -> None:
    ctx.log.debug("debug %s", given["text"])
    ctx.log.info("info %s", given["text"])


@worker.handler("log_async")
async def log_async(ctx: Context, given: dict[str, str]) -> None:
    ctx.log.info("info %s", given["text"])


@worker.handler("log_in_child", process=True)
def log_in_child(ctx: Context, given: dict[str, str]) -> int:
    ctx.log.info("info %s", given["text"], extra={"order": 7})
    logging.getLogger("mine").warning("from my own logger")
    return os.getpid()


@worker.handler("fail")
def fail(ctx: Context) -> None:
    look_up({})


@worker.handler("fail_in_child", process=True)
def fail_in_child(ctx: Context) -> None:
    look_up({})


@worker.handler("block")
async def block(ctx: Context) -> None:
    time.sleep(4.5)  # noqa: ASYNC251 - the mistake that the worker reports


@worker.handler("block_in_a_task")
async def block_in_a_task(ctx: Context) -> None:
    await asyncio.create_task(block(ctx))


@worker.handler("wait")
async def wait(ctx: Context) -> None:
    await asyncio.sleep(4.5)


@worker.handler("decline")
def decline(ctx: Context) -> None:
    raise Permanent("the card is declined")


def look_up(stock: dict[str, int]) -> int:
    return stock["nope"]


if __name__ == "__main__":
    match configuration:
        case "basic":
            configure()
        case "null":
            logging.getLogger("stepwire").addHandler(logging.NullHandler())
        case "structlog":
            structlog.configure(
                logger_factory=structlog.stdlib.LoggerFactory(), processors=[structlog.processors.KeyValueRenderer()]
            )
            handler = logging.StreamHandler()
            handler.setFormatter(
                structlog.stdlib.ProcessorFormatter(processor=structlog.processors.KeyValueRenderer(["event"]))
            )
            logging.basicConfig(level=logging.INFO, handlers=[handler])
        case "level":
            logging.getLogger("stepwire").setLevel(logging.DEBUG)
    if configuration == "later":
        worker.start()
        configure()
        worker.wait()
    worker.run()
