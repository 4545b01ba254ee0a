"""`orders.validate` in Python, and the five other handlers for machines without their language.

    python worker.py HANDLER …

offers the named handlers. The other workers of this example do the same work, each in its language.
"""

import sys
from typing import Any

from stepwire import Context, Permanent, Worker

PRICES_CENTS = {"mug": 1_200, "lamp": 8_900, "sofa": 129_900}
SCREENED_CENTS = 100_000


def validate(ctx: Context, order: dict[str, Any]) -> dict[str, Any]:
    if order["sku"] not in PRICES_CENTS:
        raise Permanent(f"there is no product {order['sku']!r}", code="no_product")
    return {"cents": PRICES_CENTS[order["sku"]] * order["quantity"]}


def reserve(ctx: Context, item: dict[str, Any]) -> dict[str, Any]:
    return {"reservation": f"R-{ctx.task_id}-{item['sku']}-{item['quantity']}"}


def screen(ctx: Context, payment: dict[str, Any]) -> dict[str, Any]:
    if payment["cents"] > SCREENED_CENTS:
        raise Permanent(f"{payment['cents']} cents need a signature", code="too_expensive")
    return {"risk": payment["cents"] / SCREENED_CENTS}


def charge(ctx: Context, payment: dict[str, Any]) -> dict[str, Any]:
    # The key is the same in every attempt: a payment service that knows it does not charge a second time.
    return {"transaction": f"T-{ctx.task_id}-{payment['cents']}", "key": ctx.idempotency_key}


def pack(ctx: Context, reserved: dict[str, Any]) -> dict[str, Any]:
    return {"parcel": reserved["reservation"].replace("R-", "P-", 1)}


def ship(ctx: Context, parcel: dict[str, Any]) -> dict[str, Any]:
    return {"tracking": f"{parcel['parcel']} to {parcel['customer']}"}


HANDLERS = {
    "orders.validate": validate,
    "orders.reserve": reserve,
    "orders.screen": screen,
    "orders.charge": charge,
    "orders.pack": pack,
    "orders.ship": ship,
}

if __name__ == "__main__":
    worker = Worker.from_env()
    for name in sys.argv[1:] or HANDLERS:
        worker.handler(name)(HANDLERS[name])
    worker.run()
