"""A command for a workflow that is not stored is refused with the name or the versions that may be meant."""

import pytest
from stepwire_broker.core.answers.hints import hint_text
from stepwire_broker.core.intake.unknown_workflow import NAMES_MAX, unknown_workflow

KNOWN = [
    ("default", "invoice", "1"),
    ("shop", "order", "1"),
    ("shop", "order", "2"),
    ("shop::eu", "order", "1"),
    ("shop", "refund", "1"),
]


@pytest.mark.parametrize(
    ("namespace", "name", "version", "message", "hint"),
    [
        ("default", "order", None, "there is no workflow default::order", "did you mean shop::order, shop::eu::order?"),
        ("default", "refund", "7", "there is no workflow default::refund", "did you mean shop::refund?"),
        ("default", "invoise", None, "there is no workflow default::invoise", "did you mean default::invoice?"),
        ("shop", "oder", None, "there is no workflow shop::oder", "did you mean shop::order?"),
        ("shob", "orde", None, "there is no workflow shob::orde", "did you mean shop::order?"),
        ("shop", "order", "9", "shop::order has no version 9", "its versions: 1, 2"),
        ("default", "xyz", None, "there is no workflow default::xyz", "apply the workflow first"),
    ],
)
def test_the_refusal_names_what_may_be_meant(
    namespace: str, name: str, version: str | None, message: str, hint: str
) -> None:
    refused = unknown_workflow(namespace, name, version, KNOWN)
    assert refused.hint is not None
    assert (refused.code, refused.message, hint_text(refused.hint)) == ("not_found", message, hint)


def test_the_refusal_names_a_bounded_number_of_versions_the_newest_last() -> None:
    refused = unknown_workflow("n", "w", "99", [("n", "w", str(number)) for number in range(20)])
    assert refused.hint is not None
    assert refused.hint.names == tuple(map(str, range(20 - NAMES_MAX, 20)))
