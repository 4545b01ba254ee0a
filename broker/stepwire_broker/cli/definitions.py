"""A workflow as somebody wrote it: a file of YAML or JSON, or Python that builds it (`order.py`, `order.py:order`)."""

import os
import runpy
import sys
import traceback
from pathlib import Path
from typing import Final, NamedTuple

import msgspec
from stepwire.errors import ConfigurationError
from stepwire.workflow import Workflow as Builder

from stepwire_broker import definition_files
from stepwire_broker.core.definitions.document_problems import DocumentProblem, InvalidWorkflow, Where
from stepwire_broker.core.definitions.workflow import Workflow, read_workflow

from .failure import Exit, Failure

CONTENT_TYPES: Final = {".yaml": "application/yaml", ".yml": "application/yaml", ".json": "application/json"}


class WorkflowSource(NamedTuple):
    file: str
    content: bytes
    content_type: str
    where: Where | None = None  # which line said it, where the content's own lines are nobody's


def is_definition(name: str) -> bool:
    """Does this name a file, and no stored workflow?"""
    path = Path(_split(name)[0])
    return path.suffix.lower() in (*CONTENT_TYPES, ".py") and path.is_file()


def read(name: str) -> WorkflowSource:
    file, attribute = _split(name)
    if file.endswith(".py"):
        built = _built(file, attribute)
        return WorkflowSource(file, msgspec.json.encode(built.document()), CONTENT_TYPES[".json"], built.where)
    try:
        content = Path(file).read_bytes()
    except OSError as error:
        raise Failure(Exit.USAGE, f"{file} cannot be read: {error.strerror}") from None
    return WorkflowSource(file, content, CONTENT_TYPES.get(Path(file).suffix.lower(), "application/yaml"))


def compiled(written: WorkflowSource) -> Workflow:
    """What it means, or InvalidWorkflow with all that is wrong, each with its line."""
    try:
        document = definition_files.read_document(written.content, written.file)
    except definition_files.DocumentError as error:
        raise InvalidWorkflow([DocumentProblem("", str(error), written.file)]) from None
    return read_workflow(document.value, written.where or document.where)


def _split(name: str) -> tuple[str, str]:
    """`order.py:order` → `order.py` and `order`."""
    file, colon, attribute = name.rpartition(":")
    return (file, attribute) if colon and file.endswith(".py") else (name, "")


def _built(file: str, attribute: str) -> Builder:
    """The workflow that a Python file makes. The file is run as it would be by `python`, but not as `__main__`."""
    if not Path(file).is_file():
        raise Failure(Exit.USAGE, f"{file} is not a file")
    sys.path.insert(0, os.path.dirname(os.path.abspath(file)))  # so that it may import its neighbours
    try:
        names = runpy.run_path(file, run_name=Path(file).stem)
    except Exception as error:
        raise Failure(Exit.USAGE, f"{_line_of(error, file)}: {_said(error)}") from None
    finally:
        sys.path.pop(0)
    found = {name: value for name, value in names.items() if isinstance(value, Builder)}
    if attribute and attribute not in found:
        raise Failure(Exit.USAGE, f"{file} has no workflow {attribute}; it has {', '.join(found) or 'none'}")
    if not attribute and len(set(map(id, found.values()))) != 1:
        raise Failure(
            Exit.USAGE,
            f"{file} has {'several workflows' if found else 'no workflow'}",
            f"name one: {' or '.join(f'{file}:{name}' for name in found)}"
            if found
            else "it needs one at the top: order = stepwire.Workflow(…)",
        )
    return found[attribute or next(iter(found))]


def _line_of(error: Exception, file: str) -> str:
    lines = [frame.lineno for frame in traceback.extract_tb(error.__traceback__) if frame.filename == file]
    line = error.lineno if isinstance(error, SyntaxError) and error.filename == file else lines[-1] if lines else None
    return file if line is None else f"{file}:{line}"


def _said(error: Exception) -> str:
    if isinstance(error, ConfigurationError):
        return str(error)
    return f"{type(error).__name__}: {error.msg if isinstance(error, SyntaxError) else error}"
