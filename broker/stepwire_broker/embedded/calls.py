"""The calls of an embedded broker to its engine."""

import asyncio
from collections.abc import Callable, Mapping
from typing import Any, Final, TypeVar

import msgspec
from msgspec import Struct
from stepwire_protocol.errors import InvalidMessage

from stepwire_broker.core.answers.answers import Answer, CommandRefused, Done
from stepwire_broker.core.answers.hints import hint_text
from stepwire_broker.core.definitions.settings import Settings
from stepwire_broker.engine import Engine
from stepwire_broker.operator_commands import OperatorCommand
from stepwire_broker.stages.requests import Make

from .errors import CommandError

T = TypeVar("T")
A = TypeVar("A", bound=Answer)
B = TypeVar("B", bound=Struct)

_encode: Final = msgspec.json.Encoder().encode


class EngineCalls:
    """The engine from its start on, for the broker and its tasks."""

    def __init__(self, settings: Settings) -> None:
        self.settings = settings
        self._engine: Engine | None = None

    def use(self, engine: Engine) -> None:
        """Use this engine, which starts on the running event loop."""
        self._engine = engine
        self._loop = asyncio.get_running_loop()

    async def order(self, command: "OperatorCommand[int, B, Done]", number: int, members: Mapping[str, Any]) -> None:
        body = _encode({name: value for name, value in members.items() if value not in (None, "", False)})
        await self.ask(read(lambda: command.read(body, number, self.settings.limits)), Done)

    async def ask(self, make: Make, expected: type[A]) -> A:
        answer = await self.engine().ask(make)
        if isinstance(answer, CommandRefused):
            hint = "" if answer.hint is None else hint_text(answer.hint)
            raise CommandError(answer.code, answer.message, hint, answer.retry_after_ms)
        assert isinstance(answer, expected), answer
        return answer

    def engine(self) -> Engine:
        if self._engine is None or not hasattr(self._engine, "identity"):
            raise RuntimeError("the broker is not started: use `async with Broker.open(...) as broker`")
        if asyncio.get_running_loop() is not self._loop:
            raise RuntimeError(
                "the broker was started on another event loop: call it from that loop (see Broker.in_thread)"
            )
        return self._engine


def read(make: Callable[[], T]) -> T:
    """Call `make`, which reads the caller's members. Raises CommandError."""
    try:
        return make()
    except InvalidMessage as refusal:
        raise CommandError(refusal.code, refusal.message) from None
