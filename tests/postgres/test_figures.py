"""The command of the figures runs, and the figures keep their bounds where the machine's speed does not matter."""

import pytest

from . import figures
from .server import PostgresServer


def test_the_command_prints_a_line_for_each_measurement(capsys: pytest.CaptureFixture[str]) -> None:
    sections = ["poolers", "fence", "loading"]
    figures.main(["--steps", "400", "--in-memory", *sections])
    lines = capsys.readouterr().out.splitlines()
    assert [line[:-1] for line in lines if line.endswith(":")] == sections
    assert len(lines) == 1 + len(sections) + 3 + 8 + 4


def test_a_step_writes_at_most_1800_bytes_of_log_and_its_changes_are_hot() -> None:
    with PostgresServer() as server:
        measured = figures.measure(server, steps=8_000)
    assert measured.wal_bytes <= 1_800
    assert measured.hot >= 0.7
