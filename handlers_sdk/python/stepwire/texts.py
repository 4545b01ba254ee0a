"""Texts of handlers in a form that every broker accepts, without the values of secrets."""

from typing import Final

from .redaction import redact

MESSAGE_CHARS_MAX: Final = 2000


def clean(text: str, chars_max: int = MESSAGE_CHARS_MAX) -> str:
    """The text without values of secrets, U+0000 and lone surrogates, cut to `chars_max` characters."""
    return redact(text)[:chars_max].encode("utf-8", "replace").decode().replace("\0", "�")


def shortened(text: str, chars_max: int) -> str:
    """The same, but a text that was cut ends with `…`."""
    text = redact(text)  # before the cut, which could leave a part of a value
    return clean(text if len(text) <= chars_max else f"{text[: chars_max - 1]}…", chars_max)
