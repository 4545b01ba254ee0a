"""A workflow in Python."""

from typing import Any

from stepwire import Workflow, all_of, any_of, none_of

orders = Workflow("orders", namespace="shop", version="1")
pay = orders.step("pay", "payments.charge", delivery_mode="at_most_once", timeout="30s")
ship = orders.step("ship", "shipping.ship", depends_on=[pay], retry_limit=5, backoff={"base": "2s"})
orders.step(
    "refund",
    "payments.refund",
    depends_on=[pay, ship],
    trigger_rule=any_of(all_of(pay.completed, none_of(ship.completed)), pay["amount"].greater_than(1000)),
)
orders.output({"tracking": ship["tracking"]})

document: dict[str, Any] = orders.document()
