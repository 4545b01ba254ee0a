"""The option `--context`: a JSON object from the command line, from a file, or from stdin."""

import os
import sys
from typing import Any, Final

import msgspec

from stepwire_broker.cli.failure import usage
from stepwire_broker.cli.json_values import decoded, read_file

_FORM: Final = """use a form like --context '{"order_id": 7}'"""


def read_context(text: str) -> Any:
    """The JSON object that `--context TEXT` names. An error names where the JSON text came from."""
    where, form = "--context", _FORM
    if text == "-":
        content, where = sys.stdin.buffer.read(), "stdin"
    elif text.startswith("@"):
        where = text[1:]
        content = read_file(where)
    else:
        content = os.fsencode(text)
        if text.endswith(".json") or os.path.isfile(text):
            form = f"to read a file: --context @{text}"
    if not isinstance(decoded(content, where, form), dict):
        usage(f"{where} is not a JSON object", form)
    return msgspec.Raw(content)  # the original text: 1.50 stays 1.50
