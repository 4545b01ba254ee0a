"""The public names of `stepwire`."""

import importlib

import pytest
import stepwire

PUBLIC = [
    "Client",
    "ClientError",
    "ConfigurationError",
    "Context",
    "OutcomeUnknown",
    "Permanent",
    "Retry",
    "StepError",
    "StepwireError",
    "Worker",
    "Workflow",
    "all_of",
    "any_of",
    "none_of",
]


def test_the_public_names_are_these_and_no_others() -> None:
    assert stepwire.__all__ == PUBLIC
    assert dir(stepwire) == PUBLIC


@pytest.mark.parametrize("name", PUBLIC)
def test_a_public_name_can_be_imported_and_is_documented(name: str) -> None:
    assert (getattr(stepwire, name).__doc__ or "").strip()


def test_an_unknown_name_raises_attribute_error() -> None:
    with pytest.raises(AttributeError, match="'stepwire' has no attribute 'Broker'"):
        stepwire.Broker  # noqa: B018


@pytest.mark.parametrize("package", ["stepwire.client", "stepwire.session", "stepwire.worker"])
def test_a_package_exports_documented_names(package: str) -> None:
    module = importlib.import_module(package)
    assert module.__all__ == sorted(module.__all__)
    assert all((getattr(module, name).__doc__ or "").strip() for name in module.__all__)
