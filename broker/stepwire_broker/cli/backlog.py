"""`stepwire backlog`: how much work waits for workers of a kind, and how many of them it needs."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final

import click

from . import output, step_texts
from .connection import broker_client
from .failure import usage
from .options import Options, StepwireCommand

LABEL_WIDTH: Final = 18
SLOTS_MAX: Final = 10_000


def labels_of(texts: Sequence[str]) -> dict[str, str]:
    """Read labels like `gpu=true,region=eu`, from one option or several."""
    labels = {}
    for part in (part.strip() for text in texts for part in text.split(",")):
        key, separator, value = part.partition("=")
        if part and not (separator and key.strip()):
            usage(f"--labels has {part!r}: it needs a form like gpu=true,region=eu")
        if part:
            labels[key.strip()] = value.strip()
    return labels


@click.command(cls=StepwireCommand)
@click.option(
    "--handler", "handlers", metavar="HANDLER", multiple=True, help="Handler or pattern that the workers offer. [all]"
)
@click.option("--labels", metavar="KEY=VALUE,..", multiple=True, help="Labels of the workers.")
@click.option(
    "--slots",
    metavar="N",
    type=click.IntRange(1, SLOTS_MAX),
    help="Slots of one worker. [those of the connected workers]",
)
@click.pass_obj
def backlog(options: Options, handlers: tuple[str, ...], labels: tuple[str, ...], slots: int | None) -> None:
    """Print how much work waits for workers with these handlers and labels, and how many of them it needs.

    The figures are those of all brokers and of the database: what `stepwire worker autoscale` and KEDA read.
    """
    having = labels_of(labels)
    with broker_client(options) as client:
        found = client.backlog(handlers, labels=having, slots=slots)
    lines = [f"{label:<{LABEL_WIDTH}}{text}" for label, text in _lines(found)]
    output.one(options, found, "\n".join(lines), indent=LABEL_WIDTH)


def _lines(found: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    oldest_ms = found["oldest_wait_ms"]
    stored = f", {found['stored']} of them in the database" if found["stored"] else ""
    yield "waiting", f"{found['waiting']} steps{stored}"
    yield "running", f"{found['running']} steps"
    yield "oldest wait", step_texts.duration(oldest_ms) or "-"
    yield "connected", f"{found['workers']} workers with {found['slots']} slots"
    yield "wanted", f"{found['wanted_workers']} workers of {found['slots_per_worker']} slots"
    if found["unfit"]:
        yield "for other workers", f"{found['unfit']} steps"
    for sentence in found["because"]:
        yield "because", sentence
