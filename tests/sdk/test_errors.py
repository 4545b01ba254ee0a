"""The tree of the SDK's exceptions."""

import importlib
import pkgutil
import re
from types import ModuleType

import pytest
import stepwire
from stepwire import errors
from stepwire.errors import StepwireError


def modules() -> list[ModuleType]:
    names = [module.name for module in pkgutil.walk_packages(stepwire.__path__, "stepwire.")]
    return [importlib.import_module(name) for name in names if name != "stepwire.__main__"]


def exceptions() -> set[type[BaseException]]:
    values = [value for module in modules() for value in vars(module).values()]
    classes = {value for value in values if isinstance(value, type) and issubclass(value, BaseException)}
    return {each for each in classes if each.__module__.startswith("stepwire.")}


def drawn(kind: type[BaseException], indent: str = "") -> list[str]:
    """The tree below `kind`, as the docstring of errors.py draws it, without the remarks."""
    below = [each for each in kind.__subclasses__() if each.__module__ == errors.__name__]
    lines = []
    for each in below:
        is_last = each is below[-1]
        lines += [indent + ("└── " if is_last else "├── ") + each.__name__]
        lines += drawn(each, indent + ("    " if is_last else "│   "))
    return lines


def test_every_exception_of_the_sdk_is_a_stepwire_error() -> None:
    assert not [each for each in exceptions() if not issubclass(each, StepwireError)]


def test_the_tree_in_the_docstring_is_the_tree_of_the_classes() -> None:
    tree = (errors.__doc__ or "").split("\n\n")[1]
    lines = [line.removeprefix("    ") for line in tree.splitlines()]
    without_remarks = [re.sub(r"(\w+).*", r"\1", line) for line in lines]
    assert without_remarks == ["StepwireError", *drawn(StepwireError)]


@pytest.mark.parametrize("kind", sorted(exceptions(), key=lambda each: each.__name__))
def test_every_exception_has_a_docstring_sentence(kind: type[BaseException]) -> None:
    first_line = (kind.__doc__ or "").splitlines()[0]
    assert first_line.endswith((".", ":"))


def test_a_configuration_error_is_a_value_error_and_a_bad_answer_an_os_error() -> None:
    from stepwire.client.connection import BadAnswer

    assert issubclass(errors.ConfigurationError, ValueError)
    assert issubclass(BadAnswer, OSError)
