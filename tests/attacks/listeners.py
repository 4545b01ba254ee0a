"""The ways in which the bus of a target can be reached, and the key of an honest worker."""

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import zmq

from .target import Target

TCP = {"bus.steps": "tcp://127.0.0.1:*", "bus.results": "tcp://127.0.0.1:*"}
HONEST = "honest.key"


def on_tcp(directory: Path) -> dict[str, str]:
    return TCP


def on_ipc(directory: Path) -> dict[str, str]:
    return {"bus.steps": f"ipc://{directory}/s.sock", "bus.results": f"ipc://{directory}/r.sock"}


def with_curve(directory: Path) -> dict[str, str]:
    """tcp with keys. The attackers have none."""
    _stepwire(directory, "keys", "init")
    (directory / "stepwire.yaml").write_text(
        "bus: {curve: {secret_file: .stepwire/keys/server.key, clients_dir: .stepwire/keys/clients}}\n"
    )
    _stepwire(directory, "keys", "new", "honest", "--handlers", "honest", "--out", HONEST)
    return TCP


LISTENERS: dict[str, Callable[[Path], dict[str, str]]] = {"tcp": on_tcp, "ipc": on_ipc, "curve": with_curve}


def has_keys(target: Target) -> bool:
    return (target.directory / HONEST).exists()


def use_key(target: Target, socket: "zmq.Socket[Any]") -> None:
    """Let a socket prove the honest worker's key, if the target's bus has keys."""
    if not has_keys(target):
        return
    text = (target.directory / HONEST).read_text()
    lines = dict(line.split("=", 1) for line in text.splitlines() if line.startswith("STEPWIRE_"))
    keys = {name: value.strip("'").encode() for name, value in lines.items()}
    socket.curve_serverkey = keys["STEPWIRE_CURVE_SERVER_KEY"]
    socket.curve_publickey = keys["STEPWIRE_CURVE_PUBLIC_KEY"]
    socket.curve_secretkey = keys["STEPWIRE_CURVE_SECRET_KEY"]


def _stepwire(directory: Path, *arguments: str) -> None:
    command = [sys.executable, "-m", "stepwire", "-q", *arguments]
    subprocess.run(command, cwd=directory, check=True, capture_output=True, timeout=60)
