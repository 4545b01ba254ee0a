"""The result of a run as text, as a JUnit file and as a badge."""

from collections.abc import Iterable
from typing import Final
from xml.sax.saxutils import escape, quoteattr

from .case import LEVEL_WORDS, Case, CaseVerdict, Level
from .grading import Grade
from .scheduling import CaseOutcome

COLOURS: Final = {None: "#9f3a38", Level.ZERO: "#4c6ef5", Level.ONE: "#2b8a3e", Level.FULL: "#2b8a3e"}
BADGE_WORDS: Final = {None: "not conformant", Level.ZERO: "level 0", Level.ONE: "level 1", Level.FULL: "level 1 full"}
CHARACTER_WIDTH: Final = 6.6


def heading(grade: Grade, cases: int) -> str:
    """The result of the first look, on one line."""
    if grade.speaks is Level.ZERO:
        kind = "a handler at level 0"
    else:
        count = len(grade.handlers)
        kind = f"a worker at level 1 with {count} handler{'s' if count != 1 else ''}"
    own = "" if any(name.startswith("conform.") for name in grade.handlers) else _OWN_HANDLERS
    cases_text = "1 case" if cases == 1 else f"{cases} cases"
    return f"{kind}, over {' and '.join(grade.transports)}: {cases_text}{own}"


_OWN_HANDLERS: Final = (
    "\nthe program does not offer the handlers conform.*, so cases that run a handler are reported as missing;"
    " see protocol/conformance/CONTRACT.md"
)


def line(outcome: CaseOutcome) -> str:
    """One case on one line."""
    return f"{outcome.verdict.value:10}  {outcome.case.name}  ({outcome.seconds:.1f} s, {outcome.transport})"


def detail(outcome: CaseOutcome) -> str:
    """Why a case did not pass: the rule, the likely cause and the frames."""
    section = outcome.section or outcome.case.section
    page = section if section.startswith("SDK_GUIDE") else f"SPEC {section}"
    lines = [outcome.what, f"rule: {outcome.rule or outcome.case.rule} ({page})"]
    lines += [f"likely cause: {cause}" for cause in outcome.causes]
    if outcome.frames:
        lines += ["frames (<- from the program, -> to it, -- connection):", *(f"  {one}" for one in outcome.frames)]
    return "\n".join("    " + part for line in lines for part in line.split("\n"))


def summary(grade: Grade) -> str:
    """The last lines of a run."""
    counts = ", ".join(
        f"{grade.count(verdict)} {word}"
        for verdict, word in (
            (CaseVerdict.PASS, "passed"),
            (CaseVerdict.NON_STRICT, "non-strict"),
            (CaseVerdict.FAIL, "failed"),
            (CaseVerdict.MISSING, "missing"),
        )
    )
    by_level = []
    for level in Level:
        own = [o for o in grade.outcomes if o.case.level is level]
        if own:
            good = sum(o.verdict in (CaseVerdict.PASS, CaseVerdict.NON_STRICT) for o in own)
            by_level.append(f"level {LEVEL_WORDS[level]} {good} of {len(own)}")
    reached = (
        "no level is complete"
        if grade.reached is None
        else f"conforms at {BADGE_WORDS.get(grade.reached) or 'hardened'}"
    )
    return f"{counts} in {grade.seconds:.1f} s ({'; '.join(by_level)})\n{reached}"


def listing(cases: Iterable[Case]) -> str:
    """The cases with their rules, for --list."""
    return "\n".join(
        f"{one.level.word:9} {one.name:32} {'' if one.strength == 'must' else 'should: '}{one.rule} (§{one.section})"
        for one in cases
    )


def junit(grade: Grade, command: str) -> str:
    """A JUnit file. A missing or non-strict case is skipped there, with its reason."""
    bodies = []
    for o in grade.outcomes:
        name = (
            f'  <testcase classname="conform.{o.case.level.word}" name={quoteattr(o.case.name)} time="{o.seconds:.2f}"'
        )
        if o.verdict is CaseVerdict.PASS:
            bodies.append(name + "/>")
            continue
        tag = "failure" if o.verdict is CaseVerdict.FAIL else "skipped"
        message = quoteattr(_printable(o.what.split("\n")[0]))
        bodies.append(f"{name}>\n    <{tag} message={message}>{escape(_printable(detail(o)))}</{tag}>\n  </testcase>")
    if grade.problem:
        bodies.append(
            f'  <testcase classname="conform" name="starts"><failure message={quoteattr(_printable(grade.problem))}/>'
            "</testcase>"
        )
    failures = grade.count(CaseVerdict.FAIL) + bool(grade.problem)
    skipped = grade.count(CaseVerdict.MISSING) + grade.count(CaseVerdict.NON_STRICT)
    head = (
        f'<testsuite name={quoteattr(_printable(command))} tests="{len(bodies)}" failures="{failures}"'
        f' skipped="{skipped}" time="{grade.seconds:.1f}">'
    )
    return "\n".join(['<?xml version="1.0" encoding="UTF-8"?>', head, *bodies, "</testsuite>", ""])


def badge(grade: Grade) -> str:
    """An SVG badge with the highest level of which no case fails."""
    return level_badge(grade.reached)


def level_badge(level: Level | None) -> str:
    """The SVG badge of a level, or of none."""
    left, right = "stepwire", BADGE_WORDS.get(level) or "hardened"
    colour = COLOURS.get(level, "#1864ab")
    a, b = (round(len(text) * CHARACTER_WIDTH) + 12 for text in (left, right))
    size = f'width="{a + b}" height="20"'
    return f"""<svg xmlns="http://www.w3.org/2000/svg" {size} role="img" aria-label="{left}: {right}">
<title>{left}: {right}</title>
<rect {size} rx="3" fill="{colour}"/>
<path d="M3 0h{a - 3}v20h-{a - 3}a3 3 0 0 1-3-3V3a3 3 0 0 1 3-3z" fill="#444"/>
<g fill="#fff" text-anchor="middle" font-family="Verdana,Geneva,DejaVu Sans,sans-serif" font-size="11">
<text x="{a / 2:g}" y="14">{left}</text><text x="{a + b / 2:g}" y="14">{right}</text>
</g>
</svg>
"""


def _printable(text: str) -> str:
    """The text without characters that XML does not allow."""
    return "".join(c if c.isprintable() or c == "\n" else "\N{REPLACEMENT CHARACTER}" for c in text)
