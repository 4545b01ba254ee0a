"""What a broker writes on stderr about an error, for machines and on a terminal."""

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
    raise ValueError("the bank said no")
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
            said = b""
            while chunk := _read(ours):
                said += chunk
        assert process.returncode == 0
        return said.decode()
    finally:
        os.close(ours)


def _read(terminal: int) -> bytes:
    try:
        return os.read(terminal, 65_536)
    except OSError:  # nobody has the other end any more
        return b""


@pytest.mark.parametrize("where", [on_a_pipe, on_a_terminal])
@pytest.mark.parametrize("is_ours", [True, False])
def test_an_error_is_logged_with_its_place_and_without_any_variable(where: Callable[[str], str], is_ours: bool) -> None:

    said = where(SCRIPT.format(is_ours=is_ours))
    for wanted in ("charge_failed", "ValueError", "the bank said no", "take_money"):
        assert wanted in said
    for secret in ("stepwire-secret", "4242"):
        assert secret not in said
