"""Vectors of a released protocol version: they stay in the files that every SDK plays."""

import json
import re
from pathlib import Path
from typing import Any

import pytest

from . import frozen

CHANGELOG = Path(__file__).parents[2] / "protocol/CHANGELOG.md"
OLD = {"name": "a hello", "level": 1, "text": "{}", "value": {"n": 1, "brokers": [{"id": "b1"}]}}


def changed_by(tmp_path: Path, *vectors: dict[str, Any]) -> list[str]:
    """The reports after the vector OLD was released and then replaced by these vectors."""
    file = tmp_path / "accepted.json"
    file.write_text(json.dumps({"format": 1, "messages": [OLD]}))
    frozen.freeze("2.0", tmp_path)
    file.write_text(json.dumps({"format": 1, "messages": vectors}))
    return list(frozen.changed(tmp_path))


def test_the_vectors_of_every_released_version_are_kept() -> None:
    assert list(frozen.changed()) == []


def test_every_released_version_of_sessions_has_its_frozen_vectors() -> None:
    headings = re.findall(r"^## (\d+\.\d+)(.*)$", CHANGELOG.read_text(), re.MULTILINE)
    released = [version for version, rest in headings if "not released" not in rest and not version.startswith("1.")]
    present = {path.name for path in frozen.VECTORS.glob("released/*")}
    assert present == set(released), "run: python -m tests.protocol.frozen MAJOR.MINOR"


def test_added_vectors_and_members_of_a_value_are_allowed(tmp_path: Path) -> None:
    value = {"n": 1, "brokers": [{"id": "b1", "region": None}], "colour": ""}
    assert changed_by(tmp_path, {"name": "new"}, OLD | {"value": value}) == []


@pytest.mark.parametrize(
    "present",
    [
        {"text": "{ }"},
        {"level": 1.0},
        {"value": {"n": 2, "brokers": [{"id": "b1"}]}},
        {"value": {"n": 1}},
        {"value": {"n": 1, "brokers": [{"id": "b1"}, {"id": "b2"}]}},
        {"note": "a member outside of `value`"},
    ],
)
def test_a_changed_vector_is_reported_by_its_name(tmp_path: Path, present: dict[str, Any]) -> None:
    expected = "accepted.json of 2.0, messages: the vector 'a hello' was changed or removed"
    assert changed_by(tmp_path, OLD | present) == [expected]


def test_a_removed_vector_is_reported(tmp_path: Path) -> None:
    assert "was changed or removed" in changed_by(tmp_path)[0]


def test_a_removed_file_and_a_changed_format_are_reported(tmp_path: Path) -> None:
    (tmp_path / "refused.json").write_text('{"format": 1}')
    (tmp_path / "patterns.json").write_text('{"format": 1}')
    frozen.freeze("2.0", tmp_path)
    (tmp_path / "refused.json").unlink()
    (tmp_path / "patterns.json").write_text('{"format": 2}')
    assert list(frozen.changed(tmp_path)) == ["patterns.json of 2.0, format: 1 is now 2", "refused.json of 2.0 is gone"]


def test_a_version_is_frozen_once(tmp_path: Path) -> None:
    frozen.freeze("2.0", tmp_path)
    with pytest.raises(SystemExit, match="do not change"):
        frozen.freeze("2.0", tmp_path)
