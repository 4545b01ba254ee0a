"""Hardened: references to secrets. The program gets a directory of files that the kit has made."""

import json
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

from stepwire_conform.case import Level, Missing, RuleBroken, case
from stepwire_conform.setting import START_S
from stepwire_conform.stage import Stage

CARD: Final = "4929-7654-0001"
PIN: Final = "eu-7"  # shorter than what is removed from outputs
ODD: Final = 'key"of\\two\nand-a-second-line'
CARD_REFERENCE: Final = {"$secret": "card"}
PIN_REFERENCE: Final = {"$secret": "bank/pin"}
ODD_REFERENCE: Final = {"$secret": "odd"}


@contextmanager
def directory_of_secrets() -> Iterator[Path]:
    """A directory with three secrets."""
    with tempfile.TemporaryDirectory(prefix="stepwire-conform-") as path:
        directory = Path(path) / "secrets"
        (directory / "bank").mkdir(parents=True, mode=0o700)
        directory.chmod(0o700)
        for name, content in (("card", f"{CARD}\n"), ("bank/pin", PIN), ("odd", f"{ODD}\n")):
            write(directory / name, content)
        yield directory


@contextmanager
def started(stage: Stage) -> Iterator[Path]:
    """The program with a directory of secrets. Raises Missing if it resolves no reference."""
    with directory_of_secrets() as directory:
        stage.open_brokers()
        stage.start(STEPWIRE_SECRETS_DIR=str(directory))
        stage.until_session(within_s=START_S)
        if stage.run("conform.echo", {"pin": PIN_REFERENCE}).get("output") == {"pin": PIN_REFERENCE}:
            _expect_no_half(stage)
            raise Missing("the worker does not resolve references to secrets")
        yield directory


def _expect_no_half(stage: Stage) -> None:
    """A worker that leaves out the feature leaves it out for the configuration, too."""
    if stage.setting.has("conform.context"):
        found = stage.run("conform.context", {}, handler_config={"pin": PIN_REFERENCE})
        if (found.get("output") or {}).get("config") != {"pin": PIN_REFERENCE}:
            raise RuleBroken("references in `handler_config` are resolved, and those in the input are not")


def write(path: Path, content: str, mode: int = 0o600) -> None:
    path.touch(mode=0o600)
    path.write_text(content)
    path.chmod(mode)


def expect_no_value(stage: Stage, where: str, *values: str) -> None:
    """Neither a message of the worker nor the output of its program holds one of these values."""
    for value in values:
        forms = {value, json.dumps(value)[1:-1], json.dumps(json.dumps(value)[1:-1])[1:-1]}
        forms |= {line for line in value.splitlines() if len(line) >= 4}
        texts = [*(m.raw.decode(errors="replace") for m in stage.inbox), stage.output()]
        for text in texts:
            if any(form in text for form in forms):
                raise RuleBroken(
                    f"{where} holds the value of a secret: {text[:400]!r}",
                    cause="a text leaves the worker without removing the values that it has resolved",
                )


def expect_unavailable(result: dict[str, Any], *words: str) -> str:
    """The step was not run, and the message of its error has these words. Returns the message."""
    error = result.get("error") or {}
    if result["status"] != "error" or error.get("code") != "secret_unavailable":
        raise RuleBroken(f"a step whose secret has no value is reported as {str(result)[:400]}")
    if error.get("retryable") is not True:
        raise RuleBroken("`secret_unavailable` is not retryable, and the file may be placed later")
    message: str = error["message"]
    missing = [word for word in words if word not in message]
    if missing:
        raise RuleBroken(f"the message does not name {', '.join(missing)}: {message!r}")
    return message


@case(
    "secrets.resolved",
    Level.HARDENED,
    "References in `handler_config` and in the input are replaced by their values; a key may be written with escapes",
    "21",
    needs=("conform.echo", "conform.context"),
    auto=False,
    optional=True,
)
def resolved(stage: Stage) -> None:
    with started(stage):
        output = stage.run("conform.echo", [1, {"a": [PIN_REFERENCE]}])["output"]
        if output != [1, {"a": [PIN]}]:
            raise RuleBroken(f"the input of the handler is {output!r}")
        config = stage.run("conform.context", {}, handler_config={"pin": PIN_REFERENCE})["output"]["config"]
        if config != {"pin": PIN}:
            raise RuleBroken(f"the configuration of the handler is {config!r}")
        stage.outgoing_filter = lambda broker, body: [body.replace(b'"$secret"', b'"\\u0024secret"')]
        output = stage.run("conform.echo", {"a": PIN_REFERENCE})["output"]
        if output != {"a": PIN}:
            raise RuleBroken(f"with the key \\u0024secret, the input of the handler is {output!r}")


@case(
    "secrets.data",
    Level.HARDENED,
    "References in `previous_results` are data; with an `input`, its references count, and not those of the context",
    "21",
    needs=("conform.echo", "conform.context"),
    auto=False,
    optional=True,
)
def data(stage: Stage) -> None:
    with started(stage):
        step = stage.step(
            "conform.context", {}, handler_config={"pin": PIN_REFERENCE}, previous_results={"a": PIN_REFERENCE}
        )
        results = stage.steps(step).result()["output"]["results"]
        if results != {"a": PIN_REFERENCE}:
            raise RuleBroken(f"the handler sees the results {results!r}")
        context = {"a": {"$secret": "none"}}
        result = stage.run("conform.echo", context, input={"b": PIN_REFERENCE})
        if result.get("output") != {"b": PIN}:
            raise RuleBroken(f"a step with `input` is reported as {str(result)[:400]}")


@case(
    "secrets.rotated",
    Level.HARDENED,
    "A secret is read again for each step, so a rotated one is used at once",
    "21",
    needs="conform.echo",
    auto=False,
    optional=True,
    cause="values are kept from one step to the next",
)
def rotated(stage: Stage) -> None:
    with started(stage) as directory:
        write(directory / "bank/pin", "us-8\n")
        output = stage.run("conform.echo", {"a": PIN_REFERENCE})["output"]
        if output != {"a": "us-8"}:
            raise RuleBroken(f"after its file was changed, the secret has the value {output!r}")


@case(
    "secrets.output",
    Level.HARDENED,
    "Values of at least 8 characters are removed from the strings and keys of an output",
    "21",
    needs="conform.echo",
    auto=False,
    optional=True,
)
def output(stage: Stage) -> None:
    with started(stage):
        step = stage.step("conform.echo", {"a": CARD_REFERENCE, "b": [ODD_REFERENCE, PIN_REFERENCE]})
        shown = stage.steps(step).result()["output"]
        if shown != {"a": "[secret card]", "b": ["[secret odd]", PIN]}:
            raise RuleBroken(f"the output is {shown!r}")
        expect_no_value(stage, "an output", CARD, ODD)


@case(
    "secrets.error",
    Level.HARDENED,
    "Errors, backtraces and the log of the worker hold no value of a secret",
    "21",
    needs="conform.fail",
    auto=False,
    optional=True,
)
def error(stage: Stage) -> None:
    with started(stage):
        for kind in ("error", "permanent"):
            for reference, value, name in ((CARD_REFERENCE, CARD, "card"), (ODD_REFERENCE, ODD, "odd")):
                found = stage.run("conform.fail", {"kind": kind, "text": reference, "log": reference})["error"]
                if f"[secret {name}]" not in found["message"]:
                    if value in found["message"]:
                        raise RuleBroken(f"the message of an error holds the value of a secret: {found['message']!r}")
                    raise Missing("conform.fail does not raise an error with the text of `input.text`")
        expect_no_value(stage, "an error or the log", CARD, ODD)


@case(
    "secrets.progress",
    Level.HARDENED,
    "A note of progress holds no value of a secret",
    "21",
    needs="conform.progress",
    auto=False,
    optional=True,
    lasts_s=2,
)
def progress(stage: Stage) -> None:
    with started(stage):
        batch = stage.steps(stage.step("conform.progress", {"ms": 1_000, "note": CARD_REFERENCE}))
        batch.result()
        notes = [item[4] for m in stage.seen("progress") for item in m["items"]]
        if "half" in notes:
            raise Missing("conform.progress does not report the note of `input.note`")
        if "[secret card]" not in notes:
            raise RuleBroken(f"the notes are {notes!r}")
        expect_no_value(stage, "a note", CARD)


@case(
    "secrets.unavailable",
    Level.HARDENED,
    "A step whose secret has no value is not run: `error` with the code `secret_unavailable`, retryable, and the name",
    "21",
    needs="conform.fail",
    auto=False,
    optional=True,
)
def unavailable(stage: Stage) -> None:
    with started(stage) as directory:
        missing = {"kind": "permanent", "more": {"$secret": "none"}}
        message = expect_unavailable(stage.run("conform.fail", missing), "'none'")
        expected = f"secret 'none': there is no such file in {directory}"
        if message != expected:
            raise RuleBroken(f"the message is {message!r}, and the sentence is {expected!r}")
        for wrong in ({"$secret": "card", "more": 1}, {"$secret": "../secrets/card"}, {"$secret": 7}):
            expect_unavailable(stage.run("conform.fail", {"kind": "permanent", "more": wrong}))


@case(
    "secrets.files",
    Level.HARDENED,
    "A file that other users may use, or a link that leads out of the directory, gives no value",
    "21",
    needs="conform.fail",
    auto=False,
    optional=True,
)
def files(stage: Stage) -> None:
    with started(stage) as directory:
        write(directory / "open", CARD, mode=0o644)
        write(directory.parent / "outside", CARD)
        (directory / "leaving").symlink_to(directory.parent / "outside")
        (directory / "inside").symlink_to("card")
        for name in ("open", "leaving", "bank"):
            step = {"kind": "permanent", "more": {"$secret": name}}
            expect_unavailable(stage.run("conform.fail", step), f"'{name}'")
        found = stage.run("conform.echo", {"a": {"$secret": "inside"}})
        if found.get("output") != {"a": "[secret inside]"}:
            raise RuleBroken(f"a secret whose file is a link inside the directory is reported as {found!r}")
        expect_no_value(stage, "a refusal", CARD)


@case(
    "secrets.none",
    Level.HARDENED,
    "A worker without a source of secrets does not run a step with a reference",
    "21",
    needs="conform.echo",
    strength="should",
    fresh=True,
    optional=True,
)
def none(stage: Stage) -> None:
    result = stage.run("conform.echo", {"a": CARD_REFERENCE})
    if result.get("output") == {"a": CARD_REFERENCE}:
        raise Missing("the worker does not resolve references to secrets")
    expect_unavailable(result, "'card'", "STEPWIRE_SECRETS_DIR")
