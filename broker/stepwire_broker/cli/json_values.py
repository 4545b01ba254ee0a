"""JSON values and text files that a user names on the command line."""

from pathlib import Path
from typing import Any

import msgspec
from stepwire_protocol.limits import DEPTH_MAX

from .failure import usage


def decoded(content: bytes, where: str, form: str) -> Any:
    """The value of this JSON text. An error names `where` the text came from, and a form to use."""
    try:
        return msgspec.json.decode(content)
    except RecursionError:
        usage(f"{where}: the nesting is deeper than {DEPTH_MAX}")
    except UnicodeDecodeError:
        usage(f"{where} is not UTF-8 text")
    except msgspec.DecodeError as error:
        problem = (
            str(error).removeprefix("JSON is malformed: ").replace("Input data was truncated", "the text is cut off")
        )
        usage(f"{where} is not JSON: {problem}", form)


def read_file(file: str) -> bytes:
    try:
        return Path(file).read_bytes()
    except OSError as error:
        usage(f"{file} cannot be read: {error.strerror}")


def read_text(file: str) -> str:
    try:
        return read_file(file).decode("utf-8")
    except UnicodeDecodeError:
        usage(f"{file} is not UTF-8 text")
