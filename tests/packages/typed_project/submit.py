"""Submits a task and waits for it."""

from orders import orders
from stepwire import Client, ClientError


def submit(order_id: int) -> str:
    with Client() as client:
        client.apply_workflow(orders)
        try:
            task = client.submit("orders", {"order_id": order_id}, namespace="shop", key=f"order-{order_id}")
        except ClientError as error:
            return f"{error.code}: {error.hint}"
        ended = client.wait(task.task_id, timeout=60)
        return str(ended["state"])


if __name__ == "__main__":
    print(submit(7))
