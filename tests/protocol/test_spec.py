"""SPEC.md describes every message, member, code and number of the code, and its examples are real frames."""

import json
import re
from typing import Any

import pytest
from msgspec import Struct, inspect
from stepwire_broker.core.model.level0_peer import UNKNOWN_REMEMBERED_MAX
from stepwire_broker.core.model.principal import SESSIONS_MAX
from stepwire_broker.core.routing.level0_handlers import OFFERED_MAX
from stepwire_broker.core.workers import level0
from stepwire_protocol import codec, errors, limits, messages, schema

from .receivers import read_as_broker, read_as_worker

PROTOCOL = schema.DIRECTORY.parent
SPEC = (PROTOCOL / "SPEC.md").read_text()
GUIDE = (PROTOCOL / "SDK_GUIDE.md").read_text()
WIRE = [
    line
    for page in (SPEC, GUIDE)
    for block in re.findall(r"```wire\n(.*?)```", page, re.S)
    for line in block.splitlines()
]

LEVEL_0 = {messages.StepsLevel0, messages.ResultsLevel0}
LEVEL_1 = [document for document in schema.DOCUMENTS if document.type not in LEVEL_0]
COMMON = {"type", "v", "worker", "broker", "epoch"}


def section(title: str, mark: str = "###") -> str:
    """The text under a heading, up to the next heading of its rank or above."""
    heading = re.search(rf"^{mark} {re.escape(title)}\n(.*?)(?=^#{{2,{len(mark)}}} |\Z)", SPEC, re.S | re.M)
    assert heading, f"SPEC.md has no heading {mark} {title}"
    return heading[1]


def read(frame: str) -> Struct:
    is_brokers = frame.startswith(("@", "brokers ", "steps "))
    return (read_as_worker if is_brokers else read_as_broker)([frame.encode()])


@pytest.mark.parametrize("frame", WIRE)
def test_every_example_is_the_output_of_the_codec(frame: str) -> None:
    topic, _ = codec.split(frame.encode())
    assert codec.frame(topic, read(frame)) == frame.encode()


def test_every_message_has_an_example() -> None:
    assert {type(read(frame)) for frame in WIRE} == {document.type for document in schema.DOCUMENTS}


@pytest.mark.parametrize("document", LEVEL_1, ids=lambda d: d.name)
def test_every_member_of_a_message_is_described_with_its_default(document: schema.SchemaDocument) -> None:
    text = section(document.name)
    if document.name in ("go", "adopt"):
        text += section("cancel")  # the three share one table
    for field in inspect.type_info(document.type).fields:  # type: ignore[attr-defined]
        if field.name in COMMON:
            continue
        row = re.search(rf"^\|[^|]*`{field.name}`[^|]*\|[^|]*\|([^|]*)\|", text, re.M)
        assert row, f"{field.name} has no row"
        assert ("always" in row[1]) is field.required, row[0]
        if not field.required:
            assert shown(field) in row[1], row[0]


def shown(field: inspect.Field) -> str:
    default = field.default_factory() if callable(field.default_factory) else field.default
    if isinstance(default, dict | list | str):
        return f"`{json.dumps(default)}`"
    return json.dumps(default)


@pytest.mark.parametrize(
    "inner", [messages.Result, messages.ErrorDetail, messages.ResultMetadata], ids=lambda t: t.__name__
)
def test_every_member_of_a_result_is_described(inner: type[Struct]) -> None:
    for name in inner.__struct_fields__:
        assert f"`{name}`" in section("results"), name


@pytest.mark.parametrize("inner", [messages.StepRequest, messages.StepMetadata], ids=lambda t: t.__name__)
def test_every_member_of_a_step_is_described(inner: type[Struct]) -> None:
    for name in inner.__struct_fields__:
        assert f"`{name}`" in section("steps"), name


def test_every_member_of_level_0_is_described() -> None:
    text = section("17. Level 0", "##")
    for kind in (messages.StepsLevel0, messages.ResultsLevel0, messages.StepRequestLevel0, messages.StepMetadataLevel0):
        for name in kind.__struct_fields__:
            assert f"`{name}`" in text, name


@pytest.mark.parametrize(
    ("kind", "where"),
    [
        (messages.RefuseCode, "refuse"),
        (messages.CancelReason, "cancel"),
        (messages.ResetCode, "reset"),
        (messages.Status, "results"),
        (messages.DeliveryMode, "steps"),
    ],
)
def test_every_value_of_an_enumeration_is_described(kind: Any, where: str) -> None:
    for value in kind.__args__:
        assert f"`{value}`" in section(where), value


def test_every_code_of_a_refusal_is_printed_with_its_sentence() -> None:
    text = section("18. Refusals", "##")
    for code, sentence in errors.REFUSALS.items():
        assert f"| `{code}` | {sentence} |" in text


def test_every_number_is_printed() -> None:
    text = section("19. Timers and limits", "##")
    numbers = {
        **vars(limits),
        "SETTLE_MS": level0.SETTLE_MS,
        "PEERS_MAX": level0.PEERS_MAX,
        "SESSIONS_MAX": SESSIONS_MAX,
    }
    numbers |= {"OFFERED_MAX": OFFERED_MAX, "UNKNOWN_REMEMBERED_MAX": UNKNOWN_REMEMBERED_MAX}
    for name, value in numbers.items():
        if name.isupper():
            row = re.search(rf"^\| `{name}` \| (.*?) \|", text, re.M)
            assert row, name
            shown = ", ".join(value) if isinstance(value, tuple) else str(value)
            assert re.sub(r"[`\",]", "", row[1]) == re.sub(r"[`\",]", "", shown), name


def test_every_link_has_a_target() -> None:
    for page, text in (("SPEC.md", SPEC), ("SDK_GUIDE.md", GUIDE)):
        headings = re.findall(r"^#+ (.*)$", text, re.M)
        anchors = {re.sub(r"[^\w\- ]", "", h.lower()).replace(" ", "-") for h in headings}
        for target in re.findall(r"\]\(#(.*?)\)", text):
            assert target in anchors, f"{page}#{target}"
        for target in re.findall(r"\]\(([^#)]+?)\)", text):
            assert (PROTOCOL / target).exists(), f"{page}: {target}"
