"""Patterns over `::` names: the table of the design, and that no pattern is expensive."""

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st
from stepwire_protocol.patterns import compile_pattern, covers, is_pattern, matches

from .vectors import vectors


@pytest.mark.parametrize(("pattern", "name", "is_match"), vectors("patterns"))
def test_a_pattern_matches_as_the_protocols_table_requires(pattern: str, name: str, is_match: bool) -> None:
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
def test_a_hostile_pattern_is_matched_in_bounded_time(pattern: str, name: str) -> None:
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


@pytest.mark.parametrize(
    ("wide", "narrow", "is_covered"),
    [
        ("**", "a::*", True),
        ("**::**", "**", True),
        ("a::**", "a", True),
        ("a::**", "**", False),
        ("*::b", "x::b", True),
        ("x::b", "*::b", False),
        ("**::x", "a::**::x", True),
        ("**::ml::**", "*::ml::*", True),
        ("*::ml::*", "**::ml::**", False),
        ("a::*::b", "a::**::b", False),
        ("a*", "ab*", True),
        ("ab*", "a*", False),
        ("*a*", "*aa", True),
        ("*", "*", True),
        ("*", "**", False),
        ("a", "a", True),
    ],
)
def test_a_pattern_covers_another_if_it_matches_every_path_of_the_other(
    wide: str, narrow: str, is_covered: bool
) -> None:
    assert covers(compile_pattern(wide), compile_pattern(narrow)) is is_covered


@given(
    st.lists(_globs, min_size=1, max_size=4),
    st.lists(_globs, min_size=1, max_size=4),
    st.lists(_segments, min_size=1, max_size=4),
)
def test_a_covered_pattern_never_matches_alone(wide: list[str], narrow: list[str], path: list[str]) -> None:
    one, other, name = "::".join(wide), "::".join(narrow), "::".join(path)
    if covers(compile_pattern(one), compile_pattern(other)) and matches(other, name):
        assert matches(one, name)
