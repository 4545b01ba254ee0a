"""The exceptions of the product: one base for all of them, and a sentence for every class."""

from functools import cache

import stepwire
import stepwire_broker
import stepwire_protocol
from stepwire_broker.cli.error_tree import ErrorClass, error_classes


@cache
def product_errors() -> dict[str, ErrorClass]:
    return error_classes(stepwire_protocol, stepwire, stepwire_broker)


def test_every_exception_of_the_product_derives_from_one_base() -> None:
    assert [name for name, one in product_errors().items() if not derives(one, "StepwireError")] == []


def test_every_exception_of_the_broker_is_a_broker_error() -> None:
    classes = error_classes(stepwire_broker)
    assert [name for name in classes if not derives(classes[name], "BrokerError")] == []


def test_every_exception_has_a_sentence() -> None:
    assert [name for name, one in product_errors().items() if not one.meaning.endswith(".")] == []


def derives(one: ErrorClass, root: str) -> bool:
    return one.name == root or any(
        base in product_errors() and derives(product_errors()[base], root) for base in one.bases
    )
