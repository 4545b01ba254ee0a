"""The exceptions of the product: one base each for broker and SDK, and a sentence for every class."""

import pytest
import stepwire
import stepwire_broker
from stepwire_broker.cli.error_tree import ErrorClass, error_classes


@pytest.mark.parametrize(("package", "root"), [(stepwire_broker, "BrokerError"), (stepwire, "StepwireError")])
def test_every_exception_derives_from_the_base_of_its_package(package: object, root: str) -> None:
    classes = error_classes(package)  # type: ignore[arg-type]
    assert [name for name, one in classes.items() if not derives(one, root, classes)] == []
    assert [name for name, one in classes.items() if not one.meaning.endswith(".")] == []


def derives(one: ErrorClass, root: str, classes: dict[str, ErrorClass]) -> bool:
    return one.name == root or any(base in classes and derives(classes[base], root, classes) for base in one.bases)
