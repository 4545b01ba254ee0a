"""The table of features in handlers_sdk/README.md, made from what each SDK claims, and compared with what it does.

    python -m tests.languages.features --write      write the table and the badges
    python -m tests.languages.features --check      compare them with the files, and the claims with the reports

`python -m tests.languages --case conform` writes the reports, one for each SDK, to build/conform. A feature that is
claimed and fails is wrong, and so is one that passes and is not claimed: the exit code is then 1.
"""

import argparse
import json
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

import stepwire_conform.cases as _cases  # registers them
from stepwire_conform.case import LEVEL_OF_WORD
from stepwire_conform.report import level_badge

from .claims import Claims, WrongClaim, all_claims
from .proofs import FEATURES, TRANSPORT_CASES, cases_of
from .sdks import FOLDER, REPORTS, SDKS

assert _cases

PAGE: Final = FOLDER / "README.md"
BADGES: Final = FOLDER / "badges"
BEGIN, END = "<!-- features -->", "<!-- end of the features -->"
HEADINGS: Final = {"go": "Go", "java": "Java", "node": "Node", "python": "Python", "ruby": "Ruby", "rust": "Rust"}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--write", action="store_true", help="write the table and the badges")
    parser.add_argument("--check", action="store_true", help="check them, and the claims against the reports")
    parser.add_argument("--reports", type=Path, default=REPORTS, metavar="DIR", help="the folder of the reports")
    parser.add_argument("languages", nargs="*", help=f"whose reports are read, from {', '.join(SDKS)}; all by default")
    options = parser.parse_args()
    if not options.write and not options.check:
        parser.error("say --write or --check")
    unknown = [name for name in options.languages if name not in SDKS]
    if unknown:
        parser.error(f"{unknown[0]}: there are {', '.join(SDKS)}")
    try:
        claims = all_claims()
    except WrongClaim as wrong:
        sys.exit(f"handlers_sdk/{wrong}")
    if options.write:
        write(claims)
    if options.check:
        faults = [*stale(claims)]
        for name in options.languages or SDKS:
            faults += differences(claims[name], options.reports / f"{name}.json")
        print("\n".join(faults) or "every claim is proven, and everything proven is claimed")
        sys.exit(bool(faults))


def write(claims: Mapping[str, Claims]) -> None:
    """Write the table into its page, and one badge for each SDK."""
    PAGE.write_text(page(PAGE.read_text(), claims))
    BADGES.mkdir(exist_ok=True)
    for name, one in claims.items():
        (BADGES / f"{name}.svg").write_text(badge(one))


def stale(claims: Mapping[str, Claims]) -> Iterator[str]:
    """The files that differ from what --write would write."""
    advice = "run python -m tests.languages.features --write"
    if PAGE.read_text() != page(PAGE.read_text(), claims):
        yield f"handlers_sdk/README.md does not show what the SDKs claim: {advice}"
    for name, one in claims.items():
        file = BADGES / f"{name}.svg"
        if not file.is_file() or file.read_text() != badge(one):
            yield f"handlers_sdk/badges/{name}.svg does not show the level that the SDK claims: {advice}"


def badge(claims: Claims) -> str:
    """The badge of the level that the SDK claims. A report must show the same level."""
    return level_badge(LEVEL_OF_WORD[claims.level])


# -- the claims and the reports ---------------------------------------------------------------------------------------


def differences(claims: Claims, report: Path) -> list[str]:
    """The claims that the report of a run contradicts, and the features that it shows beyond them."""
    if not report.is_file():
        return [f"{claims.sdk}: there is no report {report}: run python -m tests.languages {claims.sdk} --case conform"]
    result = json.loads(report.read_text())
    found = list(_level(claims, result))
    verdicts = {case["case"]: str(case["verdict"]) for case in result["cases"]}
    for feature, names in FEATURES.items():
        if names:
            found += _feature(claims.sdk, feature, claims.features[feature] is True, [*cases_of(names)], verdicts)
    for transport, names in TRANSPORT_CASES.items():
        found += _feature(claims.sdk, transport, transport in claims.transports, [*cases_of(names)], verdicts)
    return found


def _level(claims: Claims, result: Mapping[str, Any]) -> Iterator[str]:
    if result["problem"]:
        yield f"{claims.sdk}: the worker could not be graded: {result['problem']}"
    elif result["level"] != claims.level:
        yield f"{claims.sdk}: claims the level {claims.level}, and the run reached {result['level'] or 'none'}"


def _feature(
    sdk: str, feature: str, is_claimed: bool, cases: Sequence[str], verdicts: Mapping[str, str]
) -> Iterator[str]:
    not_passed = [f"{case} ({verdicts.get(case, 'not run')})" for case in cases if verdicts.get(case) != "pass"]
    if is_claimed and not_passed:
        yield f"{sdk}: claims {feature}, and these cases do not pass: {', '.join(not_passed)}"
    elif not is_claimed and not not_passed:
        yield f"{sdk}: does not claim {feature}, and its cases pass: {', '.join(cases)}"


# -- the table --------------------------------------------------------------------------------------------------------


def page(text: str, claims: Mapping[str, Claims]) -> str:
    """The page with the table of these claims. Everything outside the two markers stays."""
    before, begin, rest = text.partition(BEGIN)
    _, end, after = rest.partition(END)
    assert end, f"{PAGE} needs the lines {BEGIN} and {END}"
    return f"{before}{begin}\n\n{table(claims)}\n{end}{after}"


def table(claims: Mapping[str, Claims]) -> str:
    """The rows of the packages, and then of the features. A number points to a reason below the table."""
    reasons: list[str] = []
    lines = [
        _row("", *(HEADINGS[name] for name in claims), "proven by"),
        "|---|" + "---|" * (len(claims) + 1),
        _row("package", *(f"`{one.package}`" for one in claims.values()), "its manifest"),
        _row("version", *(one.version for one in claims.values()), "its manifest"),
        _row("protocol", *(", ".join(one.protocol) for one in claims.values()), "hello.versions"),
        _row("language version", *(one.toolchain for one in claims.values()), "its own check"),
        _row("transports", *(", ".join(one.transports) for one in claims.values()), "transport.tcp, transport.ipc"),
        _row("level", *(f"[{one.level}](badges/{one.sdk}.svg)" for one in claims.values()), "all cases of the level"),
    ]
    for feature, names in FEATURES.items():
        cells = [_cell(one.features[feature], HEADINGS[one.sdk], reasons) for one in claims.values()]
        proof = ", ".join(_shown(name) for name in names) or "own test"
        lines.append(_row(feature.replace("_", " "), *cells, proof))
    return "\n".join([*lines, "", *reasons, *([""] if reasons else [])])


def _cell(value: bool | str, language: str, reasons: list[str]) -> str:
    if isinstance(value, bool):
        return "yes" if value else "no"
    reasons.append(f"{len(reasons) + 1}. {language}: {value}.")
    return f"no ({len(reasons)})"


def _shown(name: str) -> str:
    return f"{name}*" if name.endswith(".") else name


def _row(*cells: str) -> str:
    return f"| {' | '.join(cells)} |"


if __name__ == "__main__":
    main()
