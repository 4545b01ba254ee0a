"""The demo's Python workers: `python -m stepwire_broker.demo.worker shop` (or `payments`), in the demo's directory.

Each run is written to a ledger, and each charge or refund to the bank's book, before the broker gets the result. The
demo checks these files at its end.
"""

import os
import sys
import time
from collections.abc import Callable
from typing import Any, Final

from stepwire import Context, Permanent, StepError, Worker

from . import books

PACKING_S: Final = 1.0
SHIPPING_S: Final = 0.2
POLL_S: Final = 0.02


def validate(ctx: Context, order: dict[str, Any]) -> dict[str, Any]:
    if not order["items"]:
        raise Permanent("the order has no items")
    return {"items": len(order["items"])}


def stock(ctx: Context, order: dict[str, Any]) -> dict[str, Any]:
    if order["warehouse"] == "busy" and ctx.attempt == 0:
        raise StepError("the warehouse does not answer", code="warehouse_busy")
    return {"shelf": f"{chr(65 + ctx.task_id % 26)}{ctx.task_id % 90 + 10}"}


def charge(ctx: Context, order: dict[str, Any]) -> dict[str, Any]:
    """Charge at a bank that can be slow before or after it books. The caller cannot distinguish the two cases."""
    if order["bank"] == "books late":
        _wait_while_slow()
    transaction = books.book("charge", ctx.task_id, ctx.idempotency_key, order["cents"])
    if order["bank"] == "answers late":
        _wait_while_slow()
    return {"transaction": transaction, "cents": order["cents"]}


def refund(ctx: Context, order: dict[str, Any]) -> dict[str, Any]:
    cents = ctx.results["charge"]["cents"]
    return {"transaction": books.book("refund", ctx.task_id, ctx.idempotency_key, cents), "cents": cents}


def pack(ctx: Context, order: dict[str, Any]) -> dict[str, Any]:
    time.sleep(PACKING_S)
    return {"parcels": 1}


def ship(ctx: Context, order: dict[str, Any]) -> dict[str, Any]:
    time.sleep(SHIPPING_S)
    if order["city"] == "Atlantis":
        raise Permanent("no carrier delivers to Atlantis")
    return {"tracking_number": f"T{ctx.task_id:06}"}


OFFERS: Final[dict[str, dict[str, Callable[..., dict[str, Any]]]]] = {
    "shop": {"shop.validate": validate, "shop.stock": stock, "shop.pack": pack, "shop.ship": ship},
    "payments": {"payments.charge": charge, "payments.refund": refund},
}


def _in_ledger(handler: Callable[..., dict[str, Any]]) -> Callable[..., dict[str, Any]]:
    """The handler, with each of its runs written to the ledger."""

    def run(ctx: Context, order: dict[str, Any]) -> dict[str, Any]:
        def write(event: books.Event) -> None:
            books.write_run(event, ctx.task_id, ctx.step_id, ctx.step_name, ctx.attempt)

        write("started")
        try:
            output = handler(ctx, order)
        except Exception:
            write("failed")
            raise
        write("finished")
        return output

    return run


def _wait_while_slow() -> None:
    while os.path.exists(books.BANK_IS_SLOW):
        time.sleep(POLL_S)


def main() -> None:
    worker = Worker.from_env()
    for name, handler in OFFERS[sys.argv[1]].items():
        worker.handler(name)(_in_ledger(handler))
    worker.run()


if __name__ == "__main__":
    main()
