"""Patterns over `::` names: the table of the design, and that no pattern is expensive."""

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st
from stepwire_protocol.patterns import compile_pattern, is_pattern, matches


@pytest.mark.parametrize(
    ("pattern", "name", "is_match"),
    [
        ("*", "any_task", True),
        ("*", "ml::train", False),
        ("**", "ml::a::b", True),
        ("**", "a", True),
        ("ml::*", "ml::train", True),
        ("ml::*", "ml::a::train", False),
        ("ml::*", "ml", False),
        ("*::ml::*", "public::ml::train", True),
        ("*::ml::*", "public::embedded::ml::train", False),
        ("**::ml::**", "public::embedded::ml::train", True),
        ("**::ml::**", "ml", True),
        ("batch::**", "batch::jobs::hourly::cleanup", True),
        ("batch::**", "batch", True),
        ("batch::**", "batches", False),
        ("**::heavy_*", "heavy_x", True),
        ("**::heavy_*", "etl::data::heavy_load", True),
        ("ml::**::x", "ml::x", True),
        ("ml::**::x", "ml::a::b::x", True),
        ("ml::**::x", "ml::a::b::y", False),
        ("heavy_*", "heavy_", True),
        ("*_gpu", "_gpu", True),
        ("ab*ba", "aba", False),
        ("ab*ba", "abba", True),
        ("ab*ba", "ab::ba", False),
        ("a*b*c", "axxbyyc", True),
        ("a*b*c", "acb", False),
        ("a*b*b", "ab", False),
        ("a**b", "ab", True),
        ("a**b", "a::b", False),  # inside a segment, two stars are one
        ("**::**", "a::b", True),
        ("**::a::**::a::**", "a", False),
        ("**::a::**::a::**", "x::a::y::z::a", True),
        ("OrderFulfillment::**", "OrderFulfillment::StepHandlers::Charge", True),
        ("orderfulfillment::**", "OrderFulfillment::StepHandlers::Charge", False),
        ("payments.charge", "payments.charge", True),
        ("payments.charge", "paymentsXcharge", False),
        ("a[b]?", "a[b]?", True),
        ("a[b]?", "abc", False),
        ("", "", True),
        ("*", "", True),
        ("a:*", "a:b", True),
    ],
)
def test_a_pattern_matches_as_the_table_says(pattern: str, name: str, is_match: bool) -> None:
    assert compile_pattern(pattern).matches(name) is is_match
    assert matches(pattern, name) is is_match


def test_only_a_star_makes_a_pattern() -> None:
    assert is_pattern("a::*")
    assert not is_pattern("OrderFulfillment::Charge")


@pytest.mark.parametrize(
    ("pattern", "name"),
    [
        ("::".join(["**", "a"] * 30), "::".join(["a"] * 60) + "::b"),
        ("**::" * 40 + "b", "a::" * 200 + "a"),
        ("*a" * 60 + "b", "a" * 5_000),
        ("*".join("a" * 60), "a" * 5_000 + "b"),
        ("**::" + "*a" * 40, "::".join(["a" * 60] * 40) + "b"),
    ],
)
def test_a_hostile_pattern_comes_to_an_end(pattern: str, name: str) -> None:
    """A matcher that tries every way would still be at it when the sun goes out."""
    assert not compile_pattern(pattern).matches(name)


_segments = st.text("ab", max_size=4)
_globs = st.one_of(st.just("**"), st.text("ab*", max_size=4).filter(lambda glob: "**" not in glob))


@given(st.lists(_globs, min_size=1, max_size=5), st.lists(_segments, min_size=1, max_size=6))
def test_matching_agrees_with_a_regular_expression(globs: list[str], segments: list[str]) -> None:
    # Every segment of the name ends with `;`: then `**` is simply any number of them.
    expression = "".join(
        "(?:[ab]*;)*" if glob == "**" else re.escape(glob).replace(r"\*", "[ab]*") + ";" for glob in globs
    )
    expected = re.fullmatch(expression, "".join(f"{segment};" for segment in segments)) is not None
    assert matches("::".join(globs), "::".join(segments)) is expected
