"""Hardened: both transports."""

from stepwire_conform.case import Level, case
from stepwire_conform.stage import Stage


@case(
    "transport.tcp", Level.HARDENED, "The worker works over tcp", "20", transport="tcp", cause="tcp:// is not supported"
)
def tcp(stage: Stage) -> None:
    _works(stage)


@case(
    "transport.ipc",
    Level.HARDENED,
    "The worker works over ipc, where its binding can",
    "20",
    transport="ipc",
    strength="should",
)
def ipc(stage: Stage) -> None:
    _works(stage)


def _works(stage: Stage) -> None:
    stage.expect("heartbeat", where=lambda m: bool(m["sessions"]))
    if stage.setting.has("conform.echo"):
        stage.run("conform.echo", {})
