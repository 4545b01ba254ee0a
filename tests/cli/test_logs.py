"""How a broker logs an error on stderr, as JSON and on a terminal."""

import os
import pty
import subprocess
import sys
from collections.abc import Callable

import pytest

SCRIPT = """
from stepwire_broker.cli import logs
logs.set_up("info")
import logging, structlog
def take_money(token):
    card = "4242 4242"
    raise ValueError("the bank declined")
try:
    take_money("stepwire-secret")
except ValueError:
    if {is_ours}:
        structlog.get_logger().exception("charge_failed")
    else:
        logging.getLogger("uvicorn").exception("charge_failed")
"""


def on_a_pipe(script: str) -> str:
    return subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True).stderr


def on_a_terminal(script: str) -> str:
    ours, its = pty.openpty()
    try:
        with subprocess.Popen([sys.executable, "-c", script], stderr=its) as process:
            os.close(its)
            output = b""
            while chunk := _read(ours):
                output += chunk
        assert process.returncode == 0
        return output.decode()
    finally:
        os.close(ours)


def _read(terminal: int) -> bytes:
    try:
        return os.read(terminal, 65_536)
    except OSError:  # the other end is closed
        return b""


@pytest.mark.parametrize("where", [on_a_pipe, on_a_terminal])
@pytest.mark.parametrize("is_ours", [True, False])
def test_an_error_is_logged_with_its_location_and_without_variables(where: Callable[[str], str], is_ours: bool) -> None:
    logged = where(SCRIPT.format(is_ours=is_ours))
    for expected in ("charge_failed", "ValueError", "the bank declined", "take_money"):
        assert expected in logged
    for secret in ("stepwire-secret", "4242"):
        assert secret not in logged
