"""Secrets of programs: references in a request become values, and the program's output loses these values."""

import msgspec
from msgspec import structs
from stepwire import secret_values
from stepwire.redaction import Redactor
from stepwire.secret_files import SecretUnavailable
from stepwire.secret_values import SecretValues
from stepwire_protocol.messages import StepRequest

from .program import ProgramEnded


def resolved(request: StepRequest, directory: str | None) -> SecretValues:
    """The request for the program, and the values in it by name. Raises SecretUnavailable. Reads files."""
    return secret_values.resolved(request, secret_values.resolver_of(directory or _no_directory))


def without_values(ended: ProgramEnded, values: dict[str, str]) -> ProgramEnded:
    """The end of the program without these values in standard output and standard error."""
    if not values:
        return ended
    redactor = Redactor()
    for name, value in values.items():
        redactor.add(name, value)
    return structs.replace(
        ended,
        stdout=b"" if ended.too_much else _stdout(ended.stdout, redactor),  # cut anywhere, perhaps within a value
        stderr=_stderr(ended, redactor, values),
    )


def _stdout(stdout: bytes, redactor: Redactor) -> bytes:
    """The output as JSON if it is JSON: a value is then removed from strings and keys, and the rest stays valid."""
    try:
        return msgspec.json.encode(redactor.redacted(msgspec.json.decode(stdout)))
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return redactor.redact(stdout.decode("utf-8", "replace")).encode()


def _stderr(ended: ProgramEnded, redactor: Redactor, values: dict[str, str]) -> bytes:
    text = ended.stderr.decode("utf-8", "replace")
    if ended.stderr_cut:  # the text may begin with the rest of a value
        text = text.partition("\n")[2] or text[max(map(len, values.values())) :]
        return ("\n" + redactor.redact(text)).encode()  # the first line counts as cut
    return redactor.redact(text).encode()


def _no_directory(name: str) -> str:
    raise SecretUnavailable(
        f"secret {name!r}: the broker reads no secrets: set executors.exec.secrets_dir to a directory of files"
    )
