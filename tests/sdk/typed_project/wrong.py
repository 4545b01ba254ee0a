"""Mistakes that a type checker must find: one on each line that ends in a comment with mypy's code."""

from stepwire import Client, Context, Permanent, Retry, Worker, Workflow
from stepwire_broker import Broker

worker = Worker(slots="4")  # arg-type


@worker.handler("shop.charge", concurency=2)  # call-arg
def charge(ctx: Context, order: dict[str, int]) -> int:
    ctx.progress("half")  # arg-type
    print(ctx.task)  # attr-defined
    if order["cents"] > 5:
        raise Retry("later")  # call-arg
    raise Permanent("no", kode="declined")  # call-arg


@worker.handler("shop.pack")
def pack(ctx: Context) -> int:
    return 1


@worker.handler  # arg-type
def sort(ctx: Context) -> int:
    return 1


length: str = pack(worker)  # arg-type, assignment


def submit(client: Client) -> str:
    client.submit("order", {}, kee="order-1")  # call-arg
    return client.submit("order").task_id  # return-value


async def embedded() -> None:
    broker = Broker.open("orders.db", http=7410)  # arg-type
    task = await broker.submit("order", key=17)  # arg-type
    await broker.resolve(task.id, "done", reason="seen")  # arg-type


Workflow("order").step("pay", "shop.charge", delivery_mode="exactly_once")  # arg-type
