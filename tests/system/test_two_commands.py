"""Two commands lead from an empty directory to a worker in another network namespace, as the page describes it."""

import os
import shutil
import subprocess

import pytest

from . import two_commands


def _can_make_namespaces() -> bool:
    if os.geteuid() != 0 or shutil.which("ip") is None:
        return False
    return subprocess.run(["unshare", "--net", "true"], capture_output=True).returncode == 0


@pytest.mark.skipif(not _can_make_namespaces(), reason="network namespaces need root, and the program ip")
def test_a_worker_in_another_network_namespace_runs_a_step_after_two_commands_and_doctor_is_green() -> None:
    steps = [step for step, _ in two_commands.run("python")]
    assert steps[:2] == ["stepwire keys init", "stepwire keys new shop"]
    assert steps[-2:] == ["stepwire doctor", "in all"]
