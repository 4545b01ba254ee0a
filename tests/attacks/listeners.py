"""The ways in which the bus of a target can be reached, and the keys of honest workers.

The attackers use the first listener. The honest load has an identity of its own: that of the broker's user where the
attackers are anonymous, and a key where the attackers have the broker's user or no key.
"""

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import zmq

from .target import Target

ANY_PORT = "tcp://127.0.0.1:*"
TCP = {"bus.steps": ANY_PORT, "bus.results": ANY_PORT}
HONEST = "honest.key"


def on_tcp(directory: Path) -> dict[str, str]:
    return _both(ANY_PORT, *_paths(directory))


def on_ipc(directory: Path) -> dict[str, str]:
    _write_keys(directory)
    return _both(*_paths(directory), ANY_PORT)


def with_curve(directory: Path) -> dict[str, str]:
    """tcp with keys. The attackers have none."""
    _write_keys(directory)
    return TCP


LISTENERS: dict[str, Callable[[Path], dict[str, str]]] = {"tcp": on_tcp, "ipc": on_ipc, "curve": with_curve}


def has_keys(target: Target) -> bool:
    """True if the attackers meet CURVE."""
    return bool(target.ready["listeners"][0]["curve"])


def of_honest_load(target: Target) -> dict[str, Any]:
    """The listener of the honest load: the last one."""
    return dict(target.ready["listeners"][-1])


def use_key(target: Target, socket: "zmq.Socket[Any]") -> None:
    """Let a socket prove the honest worker's key, if the attackers' listener has keys."""
    if not has_keys(target):
        return
    text = (target.directory / HONEST).read_text()
    lines = dict(line.split("=", 1) for line in text.splitlines() if line.startswith("STEPWIRE_"))
    keys = {name: value.strip("'").encode() for name, value in lines.items()}
    socket.curve_serverkey = keys["STEPWIRE_CURVE_SERVER_KEY"]
    socket.curve_publickey = keys["STEPWIRE_CURVE_PUBLIC_KEY"]
    socket.curve_secretkey = keys["STEPWIRE_CURVE_SECRET_KEY"]


def _paths(directory: Path) -> tuple[str, str]:
    return f"ipc://{directory}/s.sock", f"ipc://{directory}/r.sock"


def _both(*endpoints: str) -> dict[str, str]:
    """Two listeners, of which one is a port and the other a pair of paths."""
    steps = [each for each in endpoints if not each.endswith("/r.sock")]
    results = [each for each in endpoints if not each.endswith("/s.sock")]
    return {"bus.steps": json.dumps(steps), "bus.results": json.dumps(results)}


def _write_keys(directory: Path) -> None:
    _stepwire(directory, "keys", "init")
    (directory / "stepwire.yaml").write_text(
        "bus: {curve: {secret_file: .stepwire/keys/server.key, clients_dir: .stepwire/keys/clients}}\n"
    )
    offered = ("--handlers", "honest,bench.echo", "--workers", "honest,bench")
    _stepwire(directory, "keys", "new", "honest", *offered, "--out", HONEST)


def _stepwire(directory: Path, *arguments: str) -> None:
    command = [sys.executable, "-m", "stepwire", "-q", *arguments]
    subprocess.run(command, cwd=directory, check=True, capture_output=True, timeout=60)
