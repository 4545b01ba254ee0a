"""A user's project that uses the documented API. test_types.py passes this file to type checkers in strict mode."""

import asyncio
from dataclasses import dataclass
from typing import Any, TypedDict

import msgspec
from stepwire import (
    Client,
    ClientError,
    ConfigurationError,
    Context,
    OutcomeUnknown,
    Permanent,
    Retry,
    StepError,
    Worker,
    Workflow,
    all_of,
    any_of,
    none_of,
    testing,
)
from stepwire.client import NotFound, Overloaded, Unreachable
from stepwire.errors import WaitTimeout
from stepwire_broker import Broker, CommandError, InUse, Task, TaskFailed, TaskHeld


class Order(msgspec.Struct):
    item: str
    cents: int = 0


class Receipt(TypedDict):
    id: str


@dataclass
class Parcel:
    weight: float


worker = Worker.from_env(slots=4)
other = Worker(steps=["tcp://127.0.0.1:7411"], results=["tcp://127.0.0.1:7412"], name="a", labels={"gpu": "true"})


@worker.handler("shop.charge", concurrency=2, timeout_ms=5_000, version="1")
def charge(ctx: Context, order: Order) -> Receipt:
    ctx.log.info("charging %d", order.cents, extra={"item": order.item})
    ctx.progress(1, 2, note="asked the bank")
    if order.cents < 0:
        raise Permanent("no", code="declined", category="payment")
    if ctx.attempt > 3:
        raise Retry("later", after=1.5)
    if ctx.remaining_ms < 100 or ctx.cancelled:
        raise OutcomeUnknown("too late")
    return {"id": ctx.idempotency_key}


@worker.handler("shop.pack", process=True)
def pack(ctx: Context, parcel: Parcel) -> dict[str, float]:
    return {"weight": parcel.weight}


@worker.handler("shop.ship")
async def ship(ctx: Context, order: dict[str, Any]) -> None:
    await asyncio.sleep(0)
    ctx.log.warning("from %s", ctx.results["charge"]["id"])


@worker.handler("shop.**")
def rest(ctx: Context) -> str:
    return ctx.handler_class


class Declined(StepError):
    retryable = False


def the_decorator_keeps_the_type() -> Receipt:
    function = charge

    def call(ctx: Context) -> Receipt:
        return function(ctx, Order("tea"))

    outcome = testing.run(call)
    assert outcome.error is None or outcome.error.message
    return {"id": str(outcome.output)}


async def tested() -> bool:
    outcome = await testing.run_async(ship, {"id": 1}, results={"charge": {"id": "r"}}, attempt=1)
    return outcome.is_completed and outcome.progress[0].done > 0


def workflow() -> Workflow:
    order = Workflow("order", version="1", namespace="shop")
    reserve = order.step("reserve", "shop.reserve", retry_limit=3)
    pay = order.step("pay", "shop.charge", depends_on=[reserve], delivery_mode="at_most_once")
    ship_it = order.step("ship", "shop.ship", depends_on=[pay], input={"item": order.context["item"]})
    refund = all_of(pay.completed, none_of(ship_it.completed))
    order.step("refund", "shop.refund", depends_on=[pay, ship_it], trigger_rule=any_of(refund, ship_it.failed))
    order.output({"receipt": pay["id"]})
    return order


def submit() -> int:
    with Client("http://127.0.0.1:7410", token="x") as client:
        try:
            task = client.submit("order", {"item": "tea"}, key="order-1", labels={"city": "Utrecht"})
            document = client.wait(task.task_id, timeout=5)
            print(document["state"], client.why(task.task_id)["message"])
            for event in client.events():
                print(event)
                break
        except (NotFound, Overloaded, Unreachable, WaitTimeout) as error:
            print(error.code, error.hint)
            raise
        except ClientError as error:
            print(error.status)
            raise
        except ConfigurationError:
            raise
    return task.task_id


async def embedded() -> Any:
    async with Broker.open("orders.db", handlers=worker, http="127.0.0.1:0") as broker:

        @broker.handler("shop.extra")
        def extra(ctx: Context) -> int:
            return 1

        await broker.apply({"name": "order", "steps": [{"name": "pay", "handler_class": "shop.charge"}]})
        task: Task = await broker.submit("order", {"item": "tea"}, key="k")
        try:
            return await task.result(timeout_s=10)
        except TaskFailed as failed:
            return [step.error_text for step in failed.steps]
        except TaskHeld as held:
            await broker.resolve(held.steps[0].step_id, "completed", output={}, reason="seen")
        except (CommandError, InUse) as error:
            return str(error)


def blocking() -> Any:
    with Broker.open("orders.db").in_thread() as run:
        task = run(Broker.open("x").submit("order"))
        return run(task.result())


if __name__ == "__main__":
    worker.run()
