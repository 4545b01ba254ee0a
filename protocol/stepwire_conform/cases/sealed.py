"""Hardened: sealed payloads. The kit seals contexts, and opens what the worker sends back."""

import json
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

from stepwire_conform.case import Level, Missing, RuleBroken, case
from stepwire_conform.frames import encoded
from stepwire_conform.seals import ERROR_MESSAGE, SealedPlace, SealKey
from stepwire_conform.setting import START_S
from stepwire_conform.stage import Stage

from .secrets import CARD, CARD_REFERENCE, directory_of_secrets, expect_no_value, write

TASK: Final = ("shop::eu", "order", "kit-7")
PATIENT: Final = "A. Lovelace"
CONTEXT: Final = {"patient": PATIENT, "clear": {"region": "eu"}}


class Seals:
    """The keys of one program: the first seals, and the older one is still known."""

    def __init__(self) -> None:
        self.first = SealKey("2026-11")
        self.older = SealKey("2026-10")

    def context(self, value: Any = CONTEXT, *, key: SealKey | None = None, **task: str) -> dict[str, Any]:
        return (key or self.first).sealed(SealedPlace("context", *TASK), encoded(value), **task)

    def output(self, value: Any, step: str, *, key: SealKey | None = None) -> dict[str, Any]:
        return (key or self.first).sealed(SealedPlace("output", *TASK, step), encoded(value))

    def opened(self, kind: str, step: str, payload: Any) -> Any:
        return self.first.opened(SealedPlace(kind, *TASK, step), payload)


@contextmanager
def started(stage: Stage) -> Iterator[Seals]:
    """The program with a file of keys, and a directory of secrets. Raises Missing if it opens no payload."""
    seals = Seals()
    with directory_of_secrets() as directory:
        file = directory.parent / "seal.keys"
        write(file, "# keys\n" + seals.first.line + seals.older.line)
        stage.open_brokers()
        stage.start(STEPWIRE_SECRETS_DIR=str(directory), STEPWIRE_SEAL_KEYS_FILE=str(file))
        stage.until_session(within_s=START_S)
        context = seals.context({"clear": {}})
        if stage.run("conform.echo", context).get("output") == context:
            raise Missing("the worker does not open sealed payloads")
        yield seals


def _expect_not_unsealed(result: dict[str, Any]) -> None:
    error = result.get("error") or {}
    if result["status"] != "error" or error.get("code") != "not_unsealed":
        raise RuleBroken(f"a step that cannot be unsealed is reported as {str(result)[:400]}")
    if error.get("retryable") is not True:
        raise RuleBroken("`not_unsealed` is not retryable, and another worker may have the key")


@case(
    "sealed.output",
    Level.HARDENED,
    "The handler receives the plaintext of a sealed context, and its output is sealed for its task and step",
    "21",
    needs="conform.echo",
    auto=False,
    optional=True,
    cause="AES-256-GCM, the derived keys, the nonce and the AAD are those of protocol/vectors/sealed.json",
)
def output(stage: Stage) -> None:
    with started(stage) as seals:
        for value in (CONTEXT, {"é€": [1, None, True, "x\n"], "n": 0.5}, {"clear": [1]}):
            result = stage.run("conform.echo", seals.context(value), step_name="charge")
            if result["status"] != "completed":
                raise RuleBroken(f"a sealed step is reported as {str(result)[:400]}")
            opened = seals.opened("output", "charge", result["output"])
            if opened != value:
                raise RuleBroken(f"the handler saw {opened!r}, and the context is {value!r}")
        result = stage.run("conform.echo", seals.context(CONTEXT, key=seals.older), step_name="charge")
        seals.opened("output", "charge", result.get("output"))
        expect_no_value(stage, "a message or the log", PATIENT)


@case(
    "sealed.results",
    Level.HARDENED,
    "Sealed outputs in `previous_results` are unsealed, and others stay as they are; an `input` stays as it is",
    "21",
    needs=("conform.context", "conform.echo"),
    auto=False,
    optional=True,
)
def results(stage: Stage) -> None:
    with started(stage) as seals:
        before = {"a": seals.output({"x": PATIENT}, "a"), "b": seals.output([1], "b", key=seals.older), "c": None}
        found = stage.run("conform.context", seals.context(), previous_results=before, step_name="s")
        seen = seals.opened("output", "s", found.get("output"))["results"]
        if seen != {"a": {"x": PATIENT}, "b": [1], "c": None}:
            raise RuleBroken(f"the handler saw the results {seen!r}")
        found = stage.run("conform.echo", seals.context(), input={"region": "eu"}, step_name="s")
        if seals.opened("output", "s", found.get("output")) != {"region": "eu"}:
            raise RuleBroken("the handler did not receive the step's `input`")


@case(
    "sealed.error",
    Level.HARDENED,
    "Errors of a sealed step are sealed: a fixed message, and the payload as the only line of the backtrace",
    "21",
    needs="conform.fail",
    auto=False,
    optional=True,
)
def error(stage: Stage) -> None:
    with started(stage) as seals:
        for kind, code in (("error", None), ("permanent", "conform")):
            context = seals.context({"kind": kind, "text": f"refused: {PATIENT}"})
            found = stage.run("conform.fail", context, step_name="charge")["error"]
            expect_no_value(stage, "an error or the log", PATIENT)
            lines = found.get("backtrace")
            if found["message"] != ERROR_MESSAGE or not isinstance(lines, list) or len(lines) != 1:
                raise RuleBroken(f"the error of a sealed step is {str(found)[:400]}")
            if code is not None and found.get("code") != code:
                raise RuleBroken(f"the code {code!r} of an error is reported as {found.get('code')!r}")
            text = seals.opened("error", "charge", _decoded(lines[0]))
            if not isinstance(text.get("backtrace"), list) or "message" not in text:
                raise RuleBroken(f"the plaintext of an error is {str(text)[:300]}")
            if PATIENT not in text["message"]:
                raise Missing("conform.fail does not raise an error with the text of `input.text`")


@case(
    "sealed.progress",
    Level.HARDENED,
    "A sealed step reports progress without a note",
    "21",
    needs="conform.progress",
    auto=False,
    optional=True,
    lasts_s=2,
)
def progress(stage: Stage) -> None:
    with started(stage) as seals:
        stage.run("conform.progress", seals.context({"ms": 1_000, "note": PATIENT}))
        notes = [item[4] for m in stage.seen("progress") for item in m["items"]]
        if any(note is not None for note in notes):
            raise RuleBroken(f"the notes of a sealed step are {notes!r}")
        expect_no_value(stage, "a note", PATIENT)


@case(
    "sealed.refused",
    Level.HARDENED,
    "A payload with an unknown key, of another task or step, or changed, is not opened: `error` `not_unsealed`",
    "21",
    needs="conform.fail",
    auto=False,
    optional=True,
    cause="the AAD is not checked, or the outer members are believed",
)
def refused(stage: Stage) -> None:
    with started(stage) as seals:
        plain = {"kind": "permanent"}
        unknown = seals.context(plain, key=SealKey("2026-09"))
        other_key = seals.context(plain) | {"kid": seals.older.kid}
        other_task = seals.context(plain, key=None, workflow="orders")
        other_version = seals.context(plain) | {"$sealed": "v2"}
        without_task = {name: value for name, value in seals.context(plain).items() if name != "task"}
        for context in (unknown, other_key, other_task, other_version, without_task):
            _expect_not_unsealed(stage.run("conform.fail", context))
        for before in (seals.output(1, "b"), seals.output(1, "a") | {"nonce": "AAAAAAAAAAAAAAAA"}):
            _expect_not_unsealed(stage.run("conform.fail", seals.context(plain), previous_results={"a": before}))


@case(
    "sealed.secret",
    Level.HARDENED,
    "A reference inside a sealed context is resolved, and the value is removed before the output is sealed",
    "21",
    needs="conform.echo",
    auto=False,
    optional=True,
)
def secret(stage: Stage) -> None:
    with started(stage) as seals:
        found = stage.run("conform.echo", seals.context({"a": CARD_REFERENCE}), step_name="s")
        opened = seals.opened("output", "s", found.get("output"))
        if opened != {"a": "[secret card]"}:
            raise RuleBroken("the output does not have the name of the secret in the place of its value")
        expect_no_value(stage, "a message or the log", CARD)


@case(
    "sealed.no_keys",
    Level.HARDENED,
    "A worker without keys does not run a sealed step",
    "21",
    needs="conform.echo",
    fresh=True,
    optional=True,
)
def no_keys(stage: Stage) -> None:
    context = Seals().context()
    result = stage.run("conform.echo", context)
    if result.get("output") == context:
        raise Missing("the worker does not open sealed payloads")
    _expect_not_unsealed(result)


@case(
    "sealed.key_file",
    Level.HARDENED,
    "A file of keys that other users can read is refused at the start, in a sentence",
    "21",
    needs="conform.echo",
    strength="should",
    auto=False,
    optional=True,
)
def key_file(stage: Stage) -> None:
    with tempfile.TemporaryDirectory() as directory:
        file = Path(directory) / "seal.keys"
        seals = Seals()
        write(file, seals.first.line, mode=0o644)
        stage.may_end = True
        stage.open_brokers()
        stage.start(STEPWIRE_SEAL_KEYS_FILE=str(file))
        stage.until(
            lambda: stage.running.exit_code() is not None or bool(stage.inbox), "end of the program", within_s=START_S
        )
        if stage.inbox:
            stage.until_session(within_s=START_S)
            if stage.run("conform.echo", seals.context())["output"] != seals.context():
                raise RuleBroken("the worker uses a file of keys that other users can read")
            raise Missing("the worker does not open sealed payloads")
        if stage.running.exit_code() == 0 or "chmod 600" not in stage.output():
            raise RuleBroken("the program ended without a sentence about the file of keys")


def _decoded(text: Any) -> Any:
    try:
        return json.loads(text)
    except (TypeError, ValueError):
        raise RuleBroken(f"the backtrace of a sealed error holds no payload: {str(text)[:300]}") from None
