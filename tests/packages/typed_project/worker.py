"""Handlers of a user's project."""

from typing import Any, TypedDict

import msgspec
from stepwire import Context, OutcomeUnknown, Permanent, Retry, StepError, Worker

worker = Worker.from_env()


class Order(msgspec.Struct):
    order_id: int
    cents: int


class Receipt(TypedDict):
    receipt: str


@worker.handler("payments.charge")
def charge(ctx: Context, order: Order) -> Receipt:
    if order.cents <= 0:
        raise Permanent("nothing to pay", code="no_amount")
    if order.cents == 13:
        raise Retry("the bank is closed", after=1.5)
    if ctx.cancelled.is_set():
        raise OutcomeUnknown("stopped while the bank was asked")
    return {"receipt": ctx.idempotency_key}


@worker.handler("shipping.ship", concurrency=8)
async def ship(ctx: Context, order: dict[str, Any]) -> dict[str, Any]:
    ctx.progress(1, 2, "packed")
    paid = ctx.results["pay"]
    if "address" not in order:
        raise StepError("no address", category="data")
    return {"tracking": f"{order['address']}-{paid['receipt']}", "attempt": ctx.attempt}


if __name__ == "__main__":
    worker.run()
