"""Reads workflow files: YAML, JSON, or Python that builds the workflow (`order.py`, `order.py:order`)."""

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
from stepwire_broker.core.definitions.workflow import Workflow, read_workflow
from stepwire_broker.core.reading.document_problems import DocumentProblem, InvalidWorkflow, Where

from .failure import Exit, Failure

CONTENT_TYPES: Final = {".yaml": "application/yaml", ".yml": "application/yaml", ".json": "application/json"}


class WorkflowSource(NamedTuple):
    file: str
    content: bytes
    content_type: str
    where: Where | None = None  # finds the line in a Python file, because the content is generated


def is_definition(name: str) -> bool:
    """True for the name of a workflow file, also of one that does not exist; False for that of a stored workflow."""
    return Path(_split(name)[0]).suffix.lower() in (*CONTENT_TYPES, ".py")


def read(name: str) -> WorkflowSource:
    """The source of this name; `-` is standard input. Raises Failure."""
    file, attribute = _split(name)
    if file.endswith(".py"):
        built = _built(file, attribute)
        return WorkflowSource(file, msgspec.json.encode(built.document()), CONTENT_TYPES[".json"], built.where)
    if file == "-":
        return WorkflowSource(name_of(file), sys.stdin.buffer.read(), CONTENT_TYPES[".yaml"])
    try:
        content = Path(file).read_bytes()
    except OSError as error:
        raise Failure(Exit.USAGE, f"{file} cannot be read: {error.strerror}") from None
    return WorkflowSource(file, content, CONTENT_TYPES.get(Path(file).suffix.lower(), "application/yaml"))


def name_of(file: str) -> str:
    """The name of a file in messages."""
    return "standard input" if file == "-" else file


def compiled(source: WorkflowSource) -> Workflow:
    """The workflow. Raises InvalidWorkflow with every problem and its line."""
    try:
        document = definition_files.read_document(source.content, source.file)
    except definition_files.DocumentError as error:
        raise InvalidWorkflow([DocumentProblem("", error.message, error.where(source.file))]) from None
    return read_workflow(document.value, source.where or document.where)


def problems_of(source: WorkflowSource) -> list[str]:
    """Every problem of a workflow file with its file and line; none if it is valid."""
    try:
        compiled(source)
    except InvalidWorkflow as error:
        return list(map(str, error.problems))
    return []


def _split(name: str) -> tuple[str, str]:
    """`order.py:order` → `order.py` and `order`."""
    file, colon, attribute = name.rpartition(":")
    return (file, attribute) if colon and file.endswith(".py") else (name, "")


def _built(file: str, attribute: str) -> Builder:
    """The workflow that a Python file builds. The file runs as under `python`, but not as `__main__`."""
    if not Path(file).is_file():
        raise Failure(Exit.USAGE, f"{file} is not a file")
    sys.path.insert(0, os.path.dirname(os.path.abspath(file)))  # so that the file can import its neighbours
    try:
        names = runpy.run_path(file, run_name=Path(file).stem)
    except Exception as error:
        raise Failure(Exit.USAGE, f"{_line_of(error, file)}: {_error_text(error)}") from None
    finally:
        sys.path.pop(0)
    workflows = {name: value for name, value in names.items() if isinstance(value, Builder)}
    if attribute and attribute not in workflows:
        raise Failure(Exit.USAGE, f"{file} has no workflow {attribute}; it has {', '.join(workflows) or 'none'}")
    if not workflows:
        hint = "add one at the top level: order = stepwire.Workflow(…)"
        raise Failure(Exit.USAGE, f"{file} has no workflow", hint)
    if not attribute and len(set(map(id, workflows.values()))) > 1:
        hint = f"name one: {' or '.join(f'{file}:{name}' for name in workflows)}"
        raise Failure(Exit.USAGE, f"{file} has several workflows", hint)
    return workflows[attribute or next(iter(workflows))]


def _line_of(error: Exception, file: str) -> str:
    lines = [frame.lineno for frame in traceback.extract_tb(error.__traceback__) if frame.filename == file]
    line = error.lineno if isinstance(error, SyntaxError) and error.filename == file else lines[-1] if lines else None
    return file if line is None else f"{file}:{line}"


def _error_text(error: Exception) -> str:
    if isinstance(error, ConfigurationError):
        return str(error)
    return f"{type(error).__name__}: {error.msg if isinstance(error, SyntaxError) else error}"
