"""The broker inside the application."""

import asyncio

from orders import document
from stepwire_broker import Broker, CommandError, TaskFailed, TaskHeld
from worker import worker


async def main() -> object:
    async with Broker.open("shop.db", handlers=worker) as broker:
        await broker.apply(document)
        try:
            task = await broker.submit("orders", {"order_id": 7, "cents": 1200}, namespace="shop", key="order-7")
            return await task.result(timeout_s=30)
        except (TaskFailed, TaskHeld) as error:
            return error.task.state
        except CommandError as error:
            return error.code


if __name__ == "__main__":
    print(asyncio.run(main()))
