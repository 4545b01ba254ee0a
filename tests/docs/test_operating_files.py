"""The unit files and the container file match the broker."""

import configparser
import os
import re
import shutil
import subprocess
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


@pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="no systemd here")
def test_systemd_accepts_every_directive_of_the_units(tmp_path: Path) -> None:
    for name in ("stepwire.service", "stepwire-worker@.service"):
        text = (FILES / name).read_text()
        (tmp_path / name.replace("@", "@shop")).write_text(re.sub(r"/opt/stepwire/bin/\w+", "/bin/true", text))
    units = sorted(map(str, tmp_path.iterdir()))
    done = subprocess.run(["systemd-analyze", "verify", *units], capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    ours = [line for line in done.stderr.splitlines() if "stepwire" in line]
    assert not ours


def test_the_container_file_uses_known_settings_and_copies_existing_paths() -> None:
    text = (FILES / "Containerfile").read_text().replace("\\\n", " ")
    environ = dict(re.findall(r"(STEPWIRE_\w+)=(\S+)", text))
    loaded = loader.load(None, {}, {**environ, "HOME": "/nowhere", "PATH": os.defpath})
    assert loaded.settings.http.listen == "0.0.0.0:7410"
    assert (loaded.settings.bus.allow_insecure, loaded.settings.http.allow_insecure) == (True, True)
    copied = [word for words in re.findall(r"^COPY (?!--from)(.+) \S+$", text, re.MULTILINE) for word in words.split()]
    assert {"pyproject.toml", "broker", "protocol"} <= set(copied)
    assert all((REPOSITORY / path).exists() for path in copied)
