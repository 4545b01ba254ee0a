"""A web application with its own broker, also with several web processes.

    uvicorn fastapi_app:app --workers 2

A database file has one broker. Every process tries to host it: one gets the file, runs the handlers, and serves the
broker's HTTP API on BROKER. All processes submit there. If the host ends, another process continues its work.
"""

import asyncio
import logging
import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from fastapi import FastAPI, HTTPException, Request
from fastapi.responses import JSONResponse
from pydantic import BaseModel
from stepwire import Client, Context, Permanent, Worker
from stepwire.errors import NotFound, Unreachable
from stepwire_broker import Broker, BrokerError, InUse

BROKER = os.environ.get("ORDERS_BROKER", "127.0.0.1:7420")
DATABASE = Path("orders.db")

log = logging.getLogger("orders")
worker = Worker()


@worker.handler("orders.charge")
def charge(ctx: Context, order: dict[str, Any]) -> dict[str, Any]:
    if order["cents"] > 100_000:
        raise Permanent("the card is declined", code="declined")
    return {"receipt": f"r-{ctx.task_id}"}  # pass ctx.idempotency_key to the bank


ORDER = {"name": "order", "steps": [{"name": "charge", "handler_class": "orders.charge"}]}


class Order(BaseModel):
    id: str
    cents: int


async def host_the_broker() -> None:
    """Host the broker whenever no other process does."""
    while True:
        try:
            async with Broker.open(DATABASE, handlers=worker, http=BROKER) as broker:
                await broker.apply(ORDER)
                await broker.until_failed()
        except InUse:
            pass  # another process hosts it
        except BrokerError as error:
            log.error("the broker cannot run: %s", error)
        await asyncio.sleep(0.5)


@asynccontextmanager
async def lifespan(app: FastAPI) -> AsyncIterator[None]:
    hosting = asyncio.create_task(host_the_broker())
    try:
        token_file = DATABASE.with_name(f"{DATABASE.name}.token")
        while not token_file.exists():  # noqa: ASYNC110 - another process may create it
            await asyncio.sleep(0.05)
        with Client(f"http://{BROKER}", token_file=token_file) as app.state.broker:
            yield
    finally:
        hosting.cancel()
        await asyncio.gather(hosting, return_exceptions=True)  # the host lets running steps finish


app = FastAPI(lifespan=lifespan)


@app.exception_handler(Unreachable)
def no_broker(request: Request, error: Unreachable) -> JSONResponse:
    """For the moment in which another process takes over. The key of an order makes a second submission safe."""
    return JSONResponse({"detail": "try again"}, status_code=503, headers={"Retry-After": "1"})


# Plain functions: FastAPI runs them in threads, because the client blocks.


@app.post("/orders", status_code=202)
def create_order(order: Order, request: Request) -> dict[str, Any]:
    task = request.app.state.broker.submit("order", order.model_dump(), key=f"order-{order.id}")
    return {"task_id": task.task_id, "created": task.created}


@app.get("/orders/{task_id}")
def read_order(task_id: int, request: Request) -> dict[str, Any]:
    try:
        task = request.app.state.broker.task(task_id)
    except NotFound:
        raise HTTPException(404) from None
    return {"state": task["state"], "result": task["result"], "process": os.getpid()}
