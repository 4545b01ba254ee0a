"""The first look at a program: does it start, which level does it speak, which transports, which handlers."""

import time
from typing import Final, NamedTuple

from .case import RuleBroken
from .endpoints import Transport
from .program import ProgramUnavailable
from .setting import Setting, ended, last_lines
from .stage import Stage

SILENT_S: Final = 20.0
OTHER_TRANSPORT_S: Final = 2.0  # after one transport has answered, the other one has this much longer
LEVEL0_S: Final = 1.5  # after this time, a program that has only subscribed `steps ` is at level 0


class Arrival(NamedTuple):
    """The result of the first look. `problem` is a sentence if the program cannot be graded at all."""

    level: int | None
    transports: tuple[Transport, ...]
    handlers: tuple[str, ...]
    problem: str = ""
    is_usage: bool = False


def look(setting: Setting) -> Arrival:
    """Start the program once for each transport, side by side, and see how it connects."""
    stages = {transport: Stage(setting, transport) for transport in _TRANSPORTS}
    try:
        return _look(stages, setting.patience)
    except ProgramUnavailable as refusal:
        return Arrival(None, (), (), f"the command cannot be started: {refusal}", is_usage=True)
    finally:
        for stage in stages.values():
            stage.close()


_TRANSPORTS: Final[tuple[Transport, ...]] = ("ipc", "tcp")


def _look(stages: dict[Transport, Stage], patience: float) -> Arrival:
    for stage in stages.values():
        stage.open_brokers()
        stage.may_end = True
        stage.start()
    problems: dict[Transport, str] = {}
    levels: dict[Transport, int] = {}
    subscribed_s: dict[Transport, float] = {}
    began_s = time.monotonic()
    until_s = began_s + SILENT_S * patience
    while time.monotonic() < until_s and len(levels) + len(problems) < len(stages):
        for transport, stage in stages.items():
            if transport in levels or transport in problems:
                continue
            try:
                stage.pump(0.05)
            except RuleBroken as failed:
                problems[transport] = _with_causes(failed.what, failed.cause, stage)
                continue
            if stage.sessions:
                levels[transport] = 1
            elif b"steps " in stage.broker.subscriptions or b"steps" in stage.broker.subscriptions:
                since_s = subscribed_s.setdefault(transport, time.monotonic())
                if time.monotonic() - since_s > LEVEL0_S and not stage.inbox:
                    levels[transport] = 0
            code = stage.running.exit_code()
            if code is not None and transport not in levels:
                sentence = f"the program has {ended(code)} before it connected{last_lines(stage.output())}"
                problems[transport] = _with_causes(sentence, "", stage)
        if levels:
            until_s = min(until_s, time.monotonic() + OTHER_TRANSPORT_S * patience)
    if not levels:
        return Arrival(None, (), (), _why_nothing(stages, problems))
    transports = tuple(transport for transport in _TRANSPORTS if transport in levels)
    hello = stages[transports[0]].watch.hello
    return Arrival(min(levels.values()), transports, tuple(hello["handlers"]) if hello else ())


def _why_nothing(stages: dict[Transport, Stage], problems: dict[Transport, str]) -> str:
    for transport in ("tcp", "ipc"):
        if transport in problems:
            return problems[transport]
    stage = stages["tcp"]
    heard = [m for m in stage.inbox if m.kind != "hello"]
    if heard:
        sentence = (
            f"the program sends `{heard[0].kind}`, but no `hello` arrived: PUB drops what is sent before the broker's"
            " subscription has arrived, so `hello` is sent again until `welcome`"
        )
    elif stage.broker.accepted["steps"] or stage.broker.accepted["results"]:
        sentence = (
            f"the program connected, but was silent for {SILENT_S:g} s: no `hello`, and no subscription of `steps `"
        )
    else:
        sentence = f"the program was silent for {SILENT_S:g} s: it did not connect"
    return _with_causes(sentence, "", stage)


def _with_causes(sentence: str, cause: str, stage: Stage) -> str:
    causes = list(dict.fromkeys([*([cause] if cause else []), *stage.causes()]))
    return sentence + "".join(f"\n  likely cause: {one}" for one in causes)
