"""The protocol over HTTP: the examples of SPEC.md are real bodies, and it describes every member of them."""

import json
import re

import jsonschema
import msgspec
import pytest
from msgspec import Struct, inspect
from stepwire_protocol import polling, schema
from stepwire_protocol.errors import InvalidMessage

from .test_spec import SPEC, section, shown

HTTP = section("23. Over HTTP", "##")
SECTIONS: dict[str, tuple[type[polling.FromPoller], type[polling.ToPoller]]] = {
    "Lease": (polling.LeaseCall, polling.Leased),
    "Heartbeat": (polling.HeartbeatCall, polling.HeartbeatAnswer),
    "Start": (polling.StartCall, polling.StartAnswer),
    "Results": (polling.ResultsCall, polling.ResultsAnswer),
    "Bye": (polling.ByeCall, polling.ByeAnswer),
}
COMMON = {"type", "v", "broker", "epoch"}


def about(title: str) -> str:
    heading = re.search(rf"^### {title}\n(.*?)(?=^### |\Z)", HTTP, re.S | re.M)
    assert heading
    return heading[1]


@pytest.mark.parametrize("title", SECTIONS)
def test_the_examples_are_valid_calls_and_answers(title: str) -> None:
    call, answer = SECTIONS[title]
    seen: set[type[Struct]] = set()
    for block in re.findall(r"```json\n(.*?)```", about(title), re.S):
        for line in block.splitlines():
            if '"type"' in line:
                decoded = msgspec.json.decode(line, type=answer)
                assert json.loads(msgspec.json.encode(decoded)).keys() == json.loads(line).keys()
            else:
                polling.read(call, line.encode(), 100_000)
            suffix = "_answer" if '"type"' in line else ""
            document = json.loads((schema.DIRECTORY / f"http_{title.lower()}{suffix}.json").read_text())
            jsonschema.Draft202012Validator(document).validate(json.loads(line))
            seen.add(answer if suffix else call)
    assert seen == {call, answer}


@pytest.mark.parametrize("title", SECTIONS)
def test_every_member_of_a_call_is_described(title: str) -> None:
    text = about(title)
    for field in inspect.type_info(SECTIONS[title][0]).fields:  # type: ignore[attr-defined]
        if field.name in COMMON or (title == "Results" and f"`{field.name}`" in text):
            continue
        row = re.search(rf"^\|[^|]*`{field.name}`[^|]*\|[^|]*\|([^|]*)\|", text, re.M)
        if title == "Results":
            assert field.name in ("worker", "session", "deployment", "batch_id", "results"), field.name
            continue
        assert row, f"{field.name} has no row"
        assert ("always" in row[1]) is field.required, row[0]
        if not field.required and "as in" not in row[1]:
            assert shown(field) in row[1], row[0]
    for name in SECTIONS[title][1].__struct_fields__:
        assert name in COMMON or f"`{name}`" in text or f'"{name}"' in text, name


def test_every_code_over_http_is_printed() -> None:
    """The codes of the gateway; tests/api/test_polling.py causes each of them."""
    for code in ("unknown_session", "stale_call", "worker_taken", "not_granted", "other_deployment", "not_enabled"):
        assert re.search(rf"^\| `{code}` \| 40[49] \|", SPEC, re.M), code


@pytest.mark.parametrize(
    ("kind", "members", "code"),
    [
        (polling.HeartbeatCall, {"session": "1.1", "v": "3.0"}, "unknown_version"),
        (polling.HeartbeatCall, {"session": "1"}, "bad_field"),
        (polling.StartCall, {"session": "1.1", "items": [[1, 1], [1, 1]]}, "duplicate_item"),
        (polling.LeaseCall, {"n": 1, "handlers": [], "slots": 1, "holding": [[1, 1, "lost", 0]]}, "bad_field"),
        (
            polling.ResultsCall,
            {"session": "1.1", "deployment": "", "batch_id": "b", "results": [{"step_id": 1, "status": "failed"}]},
            "bad_field",
        ),
    ],
)
def test_an_invalid_call_is_refused(kind: type[polling.FromPoller], members: dict[str, object], code: str) -> None:
    body = json.dumps({"worker": "w:0123456789abcdef", **members}).encode()
    with pytest.raises(InvalidMessage) as refused:
        polling.read(kind, body, 100_000)
    assert refused.value.code == code
