"""Documents from which the broker has left out the payloads, because the token lacks the scope `inspect`."""

from typing import Any, Final

from stepwire.errors import MissingPayload

PAYLOADS: Final = frozenset({"context", "result", "output", "stderr"})


class WithoutPayloads(dict[str, Any]):
    """A document whose payloads are absent. Reading one raises MissingPayload, a KeyError that names the scope."""

    def __missing__(self, name: str) -> Any:
        if name not in PAYLOADS:
            raise KeyError(name)
        raise MissingPayload(
            f"the answer has no {name!r}: the token lacks the scope `inspect`; use a token that has it:"
            " stepwire token new --scope read,inspect"
        )


def of_task(document: dict[str, Any]) -> dict[str, Any]:
    if "context" in document or "steps" not in document:
        return document
    return WithoutPayloads(document, steps=[WithoutPayloads(step) for step in document["steps"]])


def of_step(document: dict[str, Any]) -> dict[str, Any]:
    return document if "output" in document else WithoutPayloads(document)
