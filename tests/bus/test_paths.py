"""Claims of ipc paths: one broker per path, and no file of another program is touched."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
from stepwire_broker.bus.endpoints import EndpointRefused, read_endpoint
from stepwire_broker.bus.paths import PathClaim


def claim(path: Path) -> PathClaim:
    return PathClaim(read_endpoint("bus.steps", f"ipc://{path}"))


def test_a_missing_directory_is_made_private(tmp_path: Path) -> None:
    claim(tmp_path / ".stepwire" / "steps.sock").release()
    assert (tmp_path / ".stepwire").stat().st_mode & 0o777 == 0o700


def test_a_missing_directory_elsewhere_is_left_to_the_installation(tmp_path: Path) -> None:
    with pytest.raises(EndpointRefused, match="does not exist; make it, owned by this user, mode 700"):
        claim(tmp_path / "two" / "missing" / "steps.sock")


@pytest.mark.skipif(os.geteuid() != 0, reason="needs a directory of another user")
def test_a_directory_is_not_made_inside_another_users(tmp_path: Path) -> None:
    os.chown(tmp_path, 12345, 12345)
    with pytest.raises(EndpointRefused, match="make it, owned by this user"):
        claim(tmp_path / "missing" / "steps.sock")


def test_a_world_writable_directory_is_refused_unless_sticky(tmp_path: Path) -> None:
    tmp_path.chmod(0o777)
    with pytest.raises(EndpointRefused, match="every user may write to"):
        claim(tmp_path / "steps.sock")
    tmp_path.chmod(0o1777)
    claim(tmp_path / "steps.sock").release()


def test_a_file_that_is_not_a_socket_is_never_deleted(tmp_path: Path) -> None:
    (tmp_path / "precious").write_text("data")
    with pytest.raises(EndpointRefused, match="exists and is not a socket; remove it, or give another path"):
        claim(tmp_path / "precious")
    assert (tmp_path / "precious").read_text() == "data"


def test_a_file_in_place_of_the_directory_is_named(tmp_path: Path) -> None:
    (tmp_path / "x").write_text("")
    with pytest.raises(EndpointRefused, match=r"cannot be used: Not a directory|x is not a directory"):
        claim(tmp_path / "x" / "steps.sock")


def test_a_path_is_claimed_once_and_free_after_release(tmp_path: Path) -> None:
    first = claim(tmp_path / "s")
    with pytest.raises(EndpointRefused, match=rf"another broker \(pid {os.getpid()}\) serves .*; stop it, or give"):
        claim(tmp_path / "s")
    first.release()
    claim(tmp_path / "s").release()


def test_a_stale_socket_file_of_a_killed_broker_is_replaced(tmp_path: Path) -> None:
    script = f"""
import zmq, os, signal
from stepwire_broker.bus.endpoints import read_endpoint
from stepwire_broker.bus.paths import PathClaim
endpoint = read_endpoint("bus.steps", "ipc://{tmp_path}/s")
held = PathClaim(endpoint)
socket = zmq.Context().socket(zmq.SUB)
socket.bind(endpoint.address)
os.kill(os.getpid(), signal.SIGKILL)
"""
    assert subprocess.run([sys.executable, "-c", script], check=False).returncode == -9
    assert (tmp_path / "s").is_socket()
    claim(tmp_path / "s").release()


def test_a_deleted_lock_file_does_not_admit_two_brokers(tmp_path: Path) -> None:
    held = claim(tmp_path / "s")
    (tmp_path / "s.lock").unlink()
    # The first claim can no longer be detected; but the two that come after it detect each other.
    second = claim(tmp_path / "s")
    with pytest.raises(EndpointRefused):
        claim(tmp_path / "s")
    second.release()
    held.release()
