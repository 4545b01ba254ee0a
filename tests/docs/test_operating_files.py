"""The unit files and the container file match the broker."""

import configparser
import json
import os
import re
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from stepwire_broker.cli.failure import Exit
from stepwire_broker.configuration import loader
from stepwire_broker.core.definitions.settings import Settings

from .pages import REPOSITORY

FILES = REPOSITORY / "examples/operating"
CLOSING_S = 10  # the HTTP server and the database, after the drain
WORKER_DRAIN_S = 25


class Unit(configparser.ConfigParser):
    def optionxform(self, optionstr: str) -> str:
        return optionstr


def service(name: str) -> configparser.SectionProxy:
    unit = Unit(strict=False, interpolation=None)
    unit.read(FILES / name)
    return unit["Service"]


def test_the_broker_has_time_to_drain_and_a_wrong_configuration_is_not_restarted() -> None:
    unit = service("stepwire.service")
    assert (unit["Type"], unit["KillMode"]) == ("notify", "mixed")
    assert int(unit["TimeoutStopSec"]) > Settings().broker.drain_timeout_ms / 1000 + CLOSING_S
    assert int(unit["RestartPreventExitStatus"]) == Exit.USAGE
    assert int(service("stepwire-worker@.service")["TimeoutStopSec"]) > WORKER_DRAIN_S
    assert loader.find_file(None, {}) is None or Path("/etc/stepwire/stepwire.yaml").exists()


def test_the_services_reach_only_this_host_and_can_see_the_processes_of_others() -> None:
    for name in ("stepwire.service", "stepwire-exec-worker.service"):
        unit = service(name)
        assert (unit["IPAddressDeny"], unit["IPAddressAllow"]) == ("any", "localhost")
        assert "ProtectProc" not in unit, "a proof of death reads /proc"
        assert unit["CapabilityBoundingSet"] == ""
    assert service("stepwire-exec-worker.service")["User"] != service("stepwire.service")["User"]
    assert int(service("stepwire-exec-worker.service")["TimeoutStopSec"]) > Settings().broker.drain_timeout_ms / 1000


@pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="no systemd here")
def test_systemd_accepts_every_directive_of_the_units(tmp_path: Path) -> None:
    for name in ("stepwire.service", "stepwire-worker@.service", "stepwire-exec-worker.service"):
        text = (FILES / name).read_text()
        (tmp_path / name.replace("@", "@shop")).write_text(re.sub(r"/opt/stepwire/bin/\w+", "/bin/true", text))
    units = sorted(map(str, tmp_path.iterdir()))
    done = subprocess.run(["systemd-analyze", "verify", *units], capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    ours = [line for line in done.stderr.splitlines() if "stepwire" in line]
    assert not ours


def container_file() -> tuple[str, dict[str, str]]:
    """The text, and the variables that it sets."""
    text = (FILES / "Containerfile").read_text().replace("\\\n", " ")
    return text, dict(re.findall(r"(STEPWIRE_\w+)=(\S+)", text))


def test_the_container_file_uses_known_settings_and_copies_existing_paths() -> None:
    text, environ = container_file()
    loaded = loader.load(None, {}, {**environ, "HOME": "/nowhere", "PATH": os.defpath})
    assert loaded.settings.http.listen == "0.0.0.0:7410"
    assert (loaded.settings.bus.allow_insecure, loaded.settings.http.allow_insecure) == (False, True)
    copied = [word for words in re.findall(r"^COPY (?!--from)(.+) \S+$", text, re.MULTILINE) for word in words.split()]
    assert {"pyproject.toml", "broker", "protocol"} <= set(copied)
    assert all((REPOSITORY / path).exists() for path in copied)


def test_the_command_of_the_container_creates_keys_once_and_serves_no_worker_without_a_key(tmp_path: Path) -> None:
    text, environ = container_file()
    (command,) = re.findall(r"^CMD (\[.+\])$", text, re.MULTILINE)
    tmp_path.chmod(0o700)
    programs = tmp_path / "bin"
    programs.mkdir()
    (programs / "stepwire").write_text(f'#!/bin/sh\nexec {sys.executable} -m stepwire "$@"\n')
    (programs / "stepwire").chmod(0o700)
    environ |= {"STEPWIRE_HTTP__LISTEN": "127.0.0.1:0"}
    environ |= {f"STEPWIRE_BUS__{name}": "tcp://127.0.0.1:*" for name in ("STEPS", "RESULTS")}
    environ |= {"PATH": f"{programs}:{os.environ['PATH']}", "HOME": str(tmp_path)}
    environ |= {name: value for name, value in os.environ.items() if name == "PYTHONPATH"}
    keys = set()
    for _ in range(2):
        broker = subprocess.Popen(json.loads(command), cwd=tmp_path, env=environ, stdout=subprocess.PIPE, text=True)
        try:
            assert broker.stdout is not None
            assert "is ready" in broker.stdout.readline()
            keys.add((tmp_path / ".stepwire/keys/server.key").read_text())
            asked = subprocess.run(
                [programs / "stepwire", "doctor"], cwd=tmp_path, env=environ, capture_output=True, text=True, timeout=60
            )
            assert "can read all steps" not in asked.stdout
        finally:
            broker.send_signal(signal.SIGTERM)
            broker.communicate(timeout=40)
        assert broker.returncode == 0
    assert len(keys) == 1
