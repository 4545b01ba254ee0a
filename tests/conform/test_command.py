"""`stepwire handler conform`: its output, its files and its exit codes."""

import json
import sys
import tomllib
from pathlib import Path
from xml.etree import ElementTree

import pytest
from click.testing import CliRunner, Result
from stepwire_broker.cli.main import main

LOOP = [sys.executable, "-m", "tests.conform.loop_at_level0"]


def conform(*words: str) -> Result:
    return CliRunner().invoke(main, ["handler", "conform", *words])


def test_the_list_has_every_case_with_its_rule() -> None:
    listed = conform("--list", "--only", "hello")
    assert listed.exit_code == 0
    assert "hello.subscribes" in listed.stdout
    assert "(§2)" in listed.stdout


def test_the_list_is_json_for_programs() -> None:
    listed = json.loads(conform("--list", "--only", "lease.ends", "-o", "json").stdout)
    assert [(one["case"], one["level"], one["strength"]) for one in listed] == [("lease.ends", "1", "must")]


@pytest.mark.parametrize(
    "words", [["--only", "no.such.case"], [], ["--level", "7", "--", "x"], ["--", "no-such-program"]]
)
def test_a_wrong_command_line_ends_with_2(words: list[str]) -> None:
    assert conform(*words).exit_code == 2


def test_a_good_handler_ends_with_0_and_writes_its_report_and_badge(tmp_path: Path) -> None:
    xml, svg = tmp_path / "conform.xml", tmp_path / "conform.svg"
    done = conform("--only", "loop.echo", "--junit", str(xml), "--badge", str(svg), "--", *LOOP)
    assert done.exit_code == 0, done.output
    suite = ElementTree.parse(xml).getroot()
    assert (suite.get("tests"), suite.get("failures")) == ("1", "0")
    assert ElementTree.parse(svg).getroot().tag.endswith("svg")


def test_a_failure_ends_with_1_and_prints_rule_section_cause_and_frames() -> None:
    done = conform("--only", "loop.answers", "--", *LOOP, "two_frames")
    assert done.exit_code == 1
    assert "a message of 2 frames" in done.stdout
    assert "(SPEC 2)" in done.stdout
    assert "likely cause: topic and JSON are sent as two frames" in done.stdout
    assert "-> b1 steps {" in done.stdout


def test_the_json_of_a_run_has_the_verdict_of_each_case() -> None:
    done = conform("--only", "loop.failure", "-o", "json", "--", *LOOP, "dies_of_a_failure")
    result = json.loads(done.stdout)
    assert done.exit_code == 1
    assert result["speaks"] == "0"
    assert [(case["case"], case["verdict"]) for case in result["cases"]] == [("loop.failure", "fail")]


def test_a_level_that_the_program_does_not_speak_is_named() -> None:
    done = conform("--level", "full", "--only", "hello.versions", "--", *LOOP)
    assert done.exit_code == 1
    assert "it is a handler at level 0" in done.stderr


def test_the_kit_is_part_of_the_wheel() -> None:
    project = tomllib.loads((Path(__file__).parents[2] / "pyproject.toml").read_text())
    assert "protocol/stepwire_conform" in project["tool"]["hatch"]["build"]["targets"]["wheel"]["packages"]


OWN_WORKER = """
import os
from stepwire import Context, Worker
worker = Worker.from_env()
@worker.handler("shop.charge")
def charge(ctx: Context) -> None:
    os.abort()
worker.run()
"""


def test_a_handler_of_the_users_own_is_never_run(tmp_path: Path) -> None:
    program = tmp_path / "worker.py"
    program.write_text(OWN_WORKER)
    done = conform("--only", "cancel", "--only", "adopt", "--only", "at_most_once", "--", sys.executable, str(program))
    assert done.exit_code == 0, done.output
    assert "missing     at_most_once.runs" in done.stdout
    assert "cancel.unknown" not in done.stdout  # it has passed
