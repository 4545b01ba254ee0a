"""An application with its own broker: no server to start, one database file, and handlers as plain functions.

Run the program, kill it with `kill -9` while it charges, and run it again: the task continues where it was.
"""

import asyncio
from typing import Any

from stepwire import Context, Worker
from stepwire_broker import Broker, TaskHeld

worker = Worker()


@worker.handler("orders.reserve")
def reserve(ctx: Context, order: dict[str, Any]) -> dict[str, Any]:
    return {"seats": order["seats"]}  # a plain function runs in a thread


@worker.handler("orders.charge")
async def charge(ctx: Context, order: dict[str, Any]) -> dict[str, Any]:
    await asyncio.sleep(1)  # time for you to try kill -9
    return {"receipt": f"r-{ctx.task_id}"}  # pass ctx.idempotency_key to the bank


ORDER = {
    "name": "order",
    "steps": [
        {"name": "reserve", "handler_class": "orders.reserve"},
        {
            "name": "charge",
            "handler_class": "orders.charge",
            "depends_on": ["reserve"],
            "delivery_mode": "at_most_once",
        },
    ],
}


async def main() -> None:
    async with Broker.open("orders.db", handlers=worker) as broker:
        await broker.apply(ORDER)
        task = await broker.submit("order", {"seats": 2}, key="order-17")
        print(f"task {task.id} is {'new' if task.created else 'known'}", flush=True)
        try:
            print("result:", await task.result())
        except TaskHeld as held:  # killed while charging: only the bank knows whether it did
            for step in await broker.held_steps():
                print(f"held: {step.name}; resolving it as charged, because this example's bank is imaginary")
                await broker.resolve(step.step_id, "completed", output={"receipt": "found"}, reason="the bank has it")
            print("result:", await broker.task(held.task.task_id).result())


if __name__ == "__main__":
    asyncio.run(main())
