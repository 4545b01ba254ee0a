"""The output of a program as one sentence: without times, paths, ports and ids. A stack trace of the SDK is a fault."""

import re
from pathlib import Path
from typing import Final

SHOP: Final = "/srv/shop"  # stands for the scratch directory

_LOG_LINE: Final = re.compile(r"^\d{4}-\d\d-\d\d \d\d:\d\d:\d\d (?:WARNING|ERROR  ) (.*)$")
_STEP: Final = re.compile(r"^task \d+ step \d+ \S+ attempt \d+ of \d+ ")
_SECONDS: Final = re.compile(r"^no broker for \d+ s")
# Frames of a stack trace inside an SDK, as Python, Go, Java, Node, Ruby and Rust print them.
_FRAMES: Final = re.compile(
    r"""^\s*(?:
        File\ ".*/stepwire/.*",\ line\ \d+,\ in\ (?!checked$)  # Python shows the function that the program calls
      | .*handlers_sdk/go/.*\.go:\d+
      | at\ io\.stepwire\..*
      | at\ .*handlers_sdk/node/src/.*
      | (?:from\ )?.*lib/stepwire/.*\.rb:\d+:in\ .*
      | thread\ '.*'\ (?:\(\d+\)\ )?panicked\ at.*
    )""",
    re.MULTILINE | re.VERBOSE,
)
# The line in which each language shows an error that a program does not catch, or that it prints as its README does.
_ENDINGS: Final = {
    "python": re.compile(r"^stepwire\.errors\.ConfigurationError: (.*)$", re.MULTILINE),
    "go": re.compile(r"^\d{4}/\d\d/\d\d \d\d:\d\d:\d\d (.*)$", re.MULTILINE),
    "java": re.compile(r'^Exception in thread "main" io\.stepwire\.ConfigurationError: (.*)$', re.MULTILINE),
    "node": re.compile(r"^ConfigurationError: (.*)$", re.MULTILINE),
    "ruby": re.compile(r"^.*?: (.*) \(Stepwire::ConfigurationError\)$", re.MULTILINE),
    "rust": re.compile(r"^(.*)$", re.MULTILINE),
}


class NoSentence(Exception):
    """The program did not end in one sentence."""


def logged(output: str) -> list[str]:
    """The texts of the warnings and errors in the log."""
    return [found[1] for line in output.splitlines() if (found := _LOG_LINE.match(line))]


def of_program(language: str, output: str) -> str:
    """The sentence with which a program ended that handles errors as the README of its SDK does."""
    found = _ENDINGS[language].findall(output.strip())
    if len(found) != 1:
        raise NoSentence(f"not one sentence of a ConfigurationError:\n{output}")
    return str(found[0])


def check_traces(output: str) -> None:
    frame = _FRAMES.search(output)
    if frame:
        raise NoSentence(f"a stack trace of the SDK: {frame[0].strip()}\n{output}")


_PUBLIC_KEY: Final = re.compile(r"public key is \S{40};")


def normalised(text: str, directory: Path, ports: tuple[int, ...] = ()) -> str:
    """The sentence as the page shows it. `ports` are free ports, which stand for 7411 and so on."""
    text = _STEP.sub("", text.strip())
    text = _SECONDS.sub("no broker for 3 s", text).replace(str(directory), SHOP)
    text = _PUBLIC_KEY.sub("public key is KEY;", text)
    for at, port in enumerate(ports):
        text = re.sub(rf"\b{port}\b", str(7411 + at), text)
    return text


def faults(text: str, must_have: tuple[str, ...]) -> list[str]:
    """Why this is not the sentence that it should be."""
    found = [f"it does not contain {words!r}" for words in must_have if words not in text]
    if "\n" in text:
        found.append("it has several lines")
    return found
