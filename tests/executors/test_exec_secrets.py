"""Secrets of programs in the broker's `exec`: resolved on standard input, and absent from what the broker stores."""

import asyncio
from pathlib import Path
from typing import Any

import pytest
from stepwire_broker.embedded import Broker, TaskView

from .running import submit

KEY = "sk_live_5eb63bbbe01eeed0"
CONFIG = {"key": {"$secret": "stripe/live"}}


@pytest.fixture
def secrets_dir(tmp_path: Path) -> Path:
    directory = tmp_path / "secrets"
    (directory / "stripe").mkdir(parents=True, mode=0o700)
    (directory / "stripe/live").write_text(f"{KEY}\n")
    (directory / "stripe/live").chmod(0o600)
    return directory


def ran(directory: Path, script: str, secrets_dir: Path | None, **step: Any) -> tuple[TaskView, bytes]:
    """The task, and everything that the broker has stored."""
    command = {"argv": ["/bin/sh", "-c", script]}
    own = {"commands": {"H": command}, "secrets_dir": str(secrets_dir) if secrets_dir else None}
    settings = {
        "execution": {"default_execution_mode": "distributed", "default_executor": "exec"},
        "executors": {"exec": own},
    }

    async def it() -> TaskView:
        async with Broker.open(directory / "state.db", settings=settings) as broker:
            (task,) = await submit(broker, retry_limit=0, **step)
            return await task.wait(60)

    view = asyncio.run(it())
    stored = b"".join(path.read_bytes() for path in directory.rglob("state.db*") if path.is_file())
    return view, stored


def test_a_program_receives_the_value_and_its_output_is_stored_without_it(tmp_path: Path, secrets_dir: Path) -> None:
    script = f'read request; echo "$request" >&2; case "$request" in *{KEY}*) ;; *) exit 3;; esac; echo "$request"'
    view, stored = ran(tmp_path, script, secrets_dir, handler_config=CONFIG)
    assert view.result["s"]["handler_config"] == {"key": "[secret stripe/live]"}
    assert KEY.encode() not in stored


def test_the_error_of_a_failed_program_is_stored_without_the_value(tmp_path: Path, secrets_dir: Path) -> None:
    view, stored = ran(tmp_path, "cat >&2; exit 1", secrets_dir, context={"card": {"$secret": "stripe/live"}})
    assert "[secret stripe/live]" in view.steps[0].error["message"]
    assert KEY.encode() not in stored


@pytest.mark.parametrize("is_given", [True, False])
def test_a_program_does_not_start_without_its_secret(tmp_path: Path, secrets_dir: Path, is_given: bool) -> None:
    script = f"touch {tmp_path}/started"
    view, _ = ran(tmp_path, script, secrets_dir if is_given else None, handler_config={"k": {"$secret": "none"}})
    error = view.steps[0].error
    assert error["code"] == "secret_unavailable"
    assert "secret 'none'" in error["message"]
    assert not (tmp_path / "started").exists()
