"""Handlers that a spawned process can import."""

import os
import time
from typing import Any


def square(ctx: Any, given: dict[str, int]) -> dict[str, int]:
    return {"square": given["n"] ** 2, "pid": os.getpid()}


def hang(ctx: Any) -> None:
    ctx.progress(1)
    while True:
        time.sleep(1)


def die(ctx: Any) -> None:
    os._exit(7)


def tell_the_secret(ctx: Any, given: dict[str, Any]) -> None:
    ctx.progress(1, 2, f"with {given['card']}")
    ctx.log.warning("child has %s", given["card"])
    raise ValueError(f"refused: {given['card']} and {ctx.config['key']}")
