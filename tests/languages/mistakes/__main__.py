"""Makes every mistake of the table with the SDKs, and compares the sentences with `handlers_sdk/mistakes.md`.

    python -m tests.languages.mistakes                   every SDK
    python -m tests.languages.mistakes go rust           some
    python -m tests.languages.mistakes --write           write the page, after all sentences are right

Each sentence has to say what is wrong and what to do, without a stack trace of the SDK. All SDKs print the same one,
unless the table has a reason for a difference. `check.sh build` of each SDK has to be run before.
"""

import argparse
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Final

from stepwire_conform.case import RuleBroken

from tests.languages.sdks import SDKS, Sdk

from . import page, programs
from .made import Bench
from .sentence import NoSentence, faults
from .table import LANGUAGES, MISTAKES, Mistake

AT_ONCE: Final = 4


class Outcome:
    """The sentence of one mistake in one language, or why there is none."""

    def __init__(self, mistake: Mistake, language: str) -> None:
        self.mistake = mistake
        self.language = language
        self.sentence = ""
        self.faults: list[str] = []


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("languages", nargs="*", help=f"from {', '.join(LANGUAGES)}; all by default")
    parser.add_argument("--only", default=",".join(MISTAKES), help="comma-separated names of mistakes")
    parser.add_argument("--write", action="store_true", help="write handlers_sdk/mistakes.md; needs all languages")
    options = parser.parse_args()
    languages = options.languages or list(LANGUAGES)
    chosen = options.only.split(",")
    for name, known in (*((one, SDKS) for one in languages), *((one, MISTAKES) for one in chosen)):
        if name not in known:
            parser.error(f"{name}: there are {', '.join(known)}")
    if options.write and (set(languages) != set(LANGUAGES) or set(chosen) != set(MISTAKES)):
        parser.error("--write needs all languages and all mistakes")
    sys.exit(run(languages, chosen, is_written=options.write))


def run(languages: list[str], chosen: list[str], *, is_written: bool) -> int:
    """Make the chosen mistakes. Returns the exit code."""
    outcomes = []
    for name in languages:
        began_s = time.monotonic()
        of_language = _made(SDKS[name], [MISTAKES[one] for one in chosen if name not in MISTAKES[one].absent])
        outcomes += of_language
        good = sum(not outcome.faults for outcome in of_language)
        print(f"{name:<7} {good} of {len(of_language)} sentences, {time.monotonic() - began_s:.0f} s", flush=True)
    sentences: page.Sentences = {}
    for outcome in outcomes:
        sentences.setdefault(outcome.mistake.name, {})[outcome.language] = outcome.sentence
    _compare(outcomes, sentences)
    if not is_written:
        _compare_with_page(outcomes)
    failed = [outcome for outcome in outcomes if outcome.faults]
    for outcome in failed:
        print(f"\n{outcome.mistake.name} ({outcome.language}): {'; '.join(outcome.faults)}")
        if outcome.sentence:
            print(f"    {outcome.sentence}")
    if is_written and not failed:
        page.PAGE.write_text(page.written(sentences))
    print(f"{len(outcomes) - len(failed)} passed, {len(failed)} failed")
    return bool(failed)


def _made(sdk: Sdk, mistakes: list[Mistake]) -> list[Outcome]:
    """Make these mistakes, a few at a time: most of them wait three seconds for a broker."""
    with ThreadPoolExecutor(AT_ONCE) as at_once, tempfile.TemporaryDirectory(prefix="sw-") as directory:
        program = programs.built(sdk, Path(directory) / "program")
        lanes = [mistakes[lane::AT_ONCE] for lane in range(AT_ONCE)]
        benches = [Path(directory) / str(lane) for lane in range(AT_ONCE)]
        results = at_once.map(lambda lane, place: _lane(sdk, program, lane, place), lanes, benches)
        return [outcome for lane in results for outcome in lane]


def _lane(sdk: Sdk, program: tuple[str, ...], mistakes: list[Mistake], directory: Path) -> list[Outcome]:
    directory.mkdir()
    outcomes = []
    for mistake in mistakes:
        place = directory / mistake.name
        place.mkdir()
        outcome = Outcome(mistake, sdk.name)
        outcomes.append(outcome)
        try:
            outcome.sentence = Bench(sdk, place, program).make(mistake.name)
            outcome.faults = faults(outcome.sentence, mistake.must_have)
        except (NoSentence, RuleBroken) as error:
            outcome.faults = [str(error)]
        except Exception as error:  # one mistake that cannot be made must not hide the others
            outcome.faults = [f"{type(error).__name__}: {error}"]
    return outcomes


def _compare(outcomes: list[Outcome], sentences: page.Sentences) -> None:
    """All languages print the same sentence, unless the table has a reason."""
    for outcome in outcomes:
        texts = sentences[outcome.mistake.name]
        first = next((text for text in texts.values() if text), "")
        if not outcome.mistake.differs and outcome.sentence and outcome.sentence != first:
            outcome.faults.append(f"another language prints:\n    {first}")


def _compare_with_page(outcomes: list[Outcome]) -> None:
    known = page.read() if page.PAGE.exists() else {}
    for outcome in outcomes:
        text = known.get(outcome.mistake.name, {}).get(outcome.language)
        if outcome.sentence and text != outcome.sentence:
            outcome.faults.append(f"handlers_sdk/mistakes.md has: {text}")


if __name__ == "__main__":
    main()
