"""Submits four orders, waits for them, and prints how each ended and which worker ran each step.

Exits with 1 if an order ends otherwise than expected.
"""

import sys
from typing import Any

from stepwire import Client

ORDERS = (
    ({"sku": "mug", "quantity": 3, "customer": "Ada"}, "completed"),
    ({"sku": "lamp", "quantity": 1, "customer": "Grace"}, "completed"),
    ({"sku": "sofa", "quantity": 1, "customer": "Edsger"}, "failed"),  # too expensive: `screen` refuses it
    ({"sku": "mug", "quantity": 20, "customer": "Barbara"}, "completed"),
)
WAIT_S = 120.0  # for the workers to connect, and for the orders


def main() -> int:
    client = Client()
    submitted = [client.submit("order_fulfillment", order) for order, _ in ORDERS]
    as_expected = 0
    for (order, expected), one in zip(ORDERS, submitted, strict=True):
        task = client.wait(one.task_id, WAIT_S)
        as_expected += task["state"] == expected
        result = f": {task['result']['tracking']}" if task["state"] == "completed" else ""
        print(f"{order['quantity']} {order['sku']} for {order['customer']} {task['state']}{result}")
        for step in task["steps"]:
            print(f"    {text_of(client.step(step['step_id']))}")
    print(f"{as_expected} of {len(ORDERS)} orders ended as expected")
    return as_expected != len(ORDERS)


def text_of(step: dict[str, Any]) -> str:
    """The step, and which worker ran it. `stepwire dev` gives each worker the name of its process: the language."""
    worker = (step["worker"] or "-").partition(":")[0]
    error = f": {step['error']['message']}" if step["error"] else ""
    return f"{step['name']:<9} {worker:<7} {step['state']}{error}"


if __name__ == "__main__":
    sys.exit(main())
