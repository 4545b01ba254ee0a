"""Paths into JSON, as trigger rules and mappings use them."""

from typing import Any

import pytest
from stepwire_broker.core.definitions.input_mapping import mapped
from stepwire_broker.core.reading.json_paths import NOTHING, value_at

VALUE = {"list": [10, {"a": None}], "2": "two"}


@pytest.mark.parametrize(
    ("path", "value"),
    [
        ((), VALUE),
        (("list", "0"), 10),
        (("list", "1", "a"), None),
        (("2",), "two"),
        (("list", "2"), NOTHING),
        (("list", "-1"), NOTHING),
        (("list", "\N{ARABIC-INDIC DIGIT ZERO}"), NOTHING),
        (("list", "0", "a"), NOTHING),
        (("list", "1", "b"), NOTHING),
    ],
)
def test_a_path_leads_to_a_value_or_nowhere(path: tuple[str, ...], value: Any) -> None:
    found = value_at(VALUE, path)
    assert found is value if value is NOTHING else found == value


def test_a_mapping_gives_null_where_a_path_leads_nowhere() -> None:
    paths = (("a", ("context", "x", "0")), ("b", ("context", "x", "٠")), ("c", ("results", "none")))
    assert mapped(paths, b'{"x":[1]}', {}.get) == b'{"a":1,"b":null,"c":null}'
