"""`stepwire handler`: checks of the programs that run steps."""

import shlex
import signal
from pathlib import Path
from typing import TYPE_CHECKING

import click

from .failure import Exit, leave, usage
from .options import Options, StepwireGroup

if TYPE_CHECKING:
    from collections.abc import Sequence

    from stepwire_conform.case import Case, Level
    from stepwire_conform.grading import Grade
    from stepwire_conform.scheduling import CaseOutcome

LEVELS = ("0", "1", "full", "hardened")


@click.group(cls=StepwireGroup)
def handler() -> None:
    """Check a program that runs steps."""


@handler.command(context_settings={"ignore_unknown_options": False})
@click.option(
    "--level",
    type=click.Choice(LEVELS),
    help="Run the cases up to this level; its cases decide the exit code. By default, all cases that fit the program"
    " run, and those of the level that it speaks (0 or 1) decide.",
)
@click.option(
    "--only",
    metavar="CASE",
    multiple=True,
    help="Run only this case, or the cases whose names begin with CASE. May be repeated.",
)
@click.option("--list", "is_list", is_flag=True, help="List the cases with their rules and exit.")
@click.option("--junit", metavar="FILE", type=click.Path(dir_okay=False), help="Write a JUnit report to this file.")
@click.option("--badge", metavar="FILE", type=click.Path(dir_okay=False), help="Write an SVG badge to this file.")
@click.argument("command", nargs=-1, metavar="-- COMMAND...", type=click.UNPROCESSED)
@click.pass_obj
def conform(
    options: Options,
    level: str | None,
    only: tuple[str, ...],
    is_list: bool,
    junit: str | None,
    badge: str | None,
    command: tuple[str, ...],
) -> None:
    """Grade any worker program, in any language, against the protocol.

    The command plays a broker on private sockets. It needs no running broker and stores no state. COMMAND is started
    several times, with STEPWIRE_STEPS, STEPWIRE_RESULTS and the other variables of a worker in its environment. A
    program that offers the handlers conform.* is checked completely. Handlers of your own are never run: the cases
    that need a handler are reported as missing.

    Verdicts: pass; non-strict, for a broken recommendation; fail; missing. A failure prints the rule, its section of
    protocol/SPEC.md, the likely cause, and the frames. Exit code 0: no case of the level fails; 1: at least one fails;
    2: the command line is wrong, or COMMAND does not exist.
    """
    from stepwire_conform import grading
    from stepwire_conform.case import LEVEL_OF_WORD

    asked = None if level is None else LEVEL_OF_WORD[level]
    chosen = grading.selected(asked, None if asked is None else min(asked, type(asked).ONE), only)
    if not chosen:
        usage(f"--only {' '.join(only)}: there is no such case", "see: stepwire handler conform --list")
    if is_list:
        _print_list(options, chosen)
        return
    if not command:
        usage("the program to grade is missing", "for example: stepwire handler conform -- python worker.py")
    grade = _graded(options, command, asked, only)
    _write(options, grade, shlex.join(command), junit, badge)
    leave(Exit.USAGE if grade.is_usage else Exit.FAILURE if grade.has_failed else Exit.OK)


def _graded(options: Options, command: tuple[str, ...], asked: "Level | None", only: tuple[str, ...]) -> "Grade":
    """Run the cases, and print each outcome that is of interest when it is known."""
    from stepwire_conform import grading, report

    is_text = options.output == "text"

    def found(first: "Grade", cases: int) -> None:
        if is_text:
            click.echo(report.heading(first, cases))

    def show(outcome: "CaseOutcome") -> None:
        if is_text and (outcome.what or options.verbosity > 0):
            click.echo(report.line(outcome))
            if outcome.what and outcome.verdict.value != "missing":
                click.echo(report.detail(outcome))
        elif options.output == "jsonl":
            click.echo(_encoded(grading.outcome_json(outcome)))

    before = signal.signal(signal.SIGTERM, lambda *_: leave(Exit.INTERRUPTED))  # the programs end before this process
    try:
        return grading.grade(command, level=asked, only=only, report=show, found=found)
    finally:
        signal.signal(signal.SIGTERM, before)


def _write(options: Options, grade: "Grade", command: str, junit: str | None, badge: str | None) -> None:
    """Write the files, and print the end of the run."""
    from stepwire_conform import grading, report

    if junit:
        Path(junit).write_text(report.junit(grade, command))
    if badge:
        Path(badge).write_text(report.badge(grade))
    if options.output == "json":
        click.echo(_encoded(grading.as_json(grade)))
    elif grade.problem:
        click.echo(f"stepwire: {grade.problem}", err=True)
    elif options.output == "text":
        click.echo(report.summary(grade))


def _print_list(options: Options, cases: "Sequence[Case]") -> None:
    from stepwire_conform import grading, report

    if options.output == "text":
        click.echo(report.listing(cases))
    else:
        click.echo(_encoded(grading.cases_json(cases)))


def _encoded(value: object) -> str:
    import msgspec

    return msgspec.json.encode(value).decode()
