"""One line about an error: its type and its message together, `KeyError: 'nope'`, wherever people read it."""

from typing import Final

# Codes that name no type of error: the status of the result, where a handler gave no code, and codes that say what is
# done about the error.
GENERIC: Final = frozenset({"failed", "error", "outcome_unknown", "resolved_failed"})


def described(code: str | None, message: str, characters_max: int | None = None) -> str:
    """Return `<code>: <message>` on one line. A message that begins with its code is not given it again."""
    text = " ".join(message.split())
    if code and code not in GENERIC and text != code and not text.startswith(f"{code}:"):
        text = f"{code}: {text}" if text else code
    text = text or code or "failed"
    return text if characters_max is None or len(text) <= characters_max else f"{text[: characters_max - 1]}…"
