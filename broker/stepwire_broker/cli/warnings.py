"""Prints the warnings about workflows: probable mistakes in a document, and handlers that no worker offers."""

from collections.abc import Iterable, Mapping
from typing import Any

from stepwire.client import Client, ClientError

from . import output
from .options import Options


def show(options: Options, warnings: Iterable[Mapping[str, Any]], subject: str = "") -> None:
    """Print one line for each warning of an answer's member `warnings`."""
    for warning in warnings:
        output.note(options, f"warning: {subject}{output.shortened(warning['message'], 1_000)}")


def of_stored(client: Client, name: str, namespace: str | None, version: str | None) -> list[dict[str, Any]]:
    """The warnings about a stored workflow. None if the token may not read workflows."""
    try:
        document = client.workflow(name, namespace=namespace, version=version)
    except ClientError:
        return []
    warnings: list[dict[str, Any]] = document["warnings"]
    return warnings
