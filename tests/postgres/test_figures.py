"""The command of the figures runs, and the figures keep their bounds where the machine's speed does not matter."""

import pytest

from . import against_sqlite, figures
from .plans import QUESTIONS
from .server import PostgresServer


def test_the_command_prints_a_line_for_each_measurement(capsys: pytest.CaptureFixture[str]) -> None:
    sections = ["poolers", "fence", "loading", "writer", "held", "plans"]
    figures.main(["--steps", "400", "--in-memory", *sections])
    lines = capsys.readouterr().out.splitlines()
    assert [line[:-1] for line in lines if line.endswith(":")] == sections
    assert len(lines) == 1 + len(sections) + 3 + 8 + 2 + 5 + 8 + len(QUESTIONS)


def test_a_step_writes_at_most_1800_bytes_of_log_and_its_changes_are_hot() -> None:
    with PostgresServer() as server:
        measured = figures.measure_writer(server, steps=8_000)
    assert measured.wal_bytes <= 1_800
    assert measured.hot >= 0.7


def test_the_comparison_prints_a_ratio_for_each_figure(capsys: pytest.CaptureFixture[str]) -> None:
    against_sqlite.main(["--pairs", "1", "--tasks", "60", "--lone-tasks", "3", "--lanes", "2", "--in-memory"])
    lines = capsys.readouterr().out.splitlines()
    compared = [line.split("SQLite")[0].strip() for line in lines if "ratio" in line]
    assert set(against_sqlite.TARGETS) < set(compared)
