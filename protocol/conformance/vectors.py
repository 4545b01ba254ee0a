"""Reads the vector files, and makes the bytes of their frames."""

import base64
import json
from pathlib import Path
from typing import Any, Final

DIRECTORY: Final = Path(__file__).parents[1] / "vectors"


def load(name: str) -> Any:
    """The content of `<name>.json`. Raises ValueError for a format that this kit does not support."""
    vectors = json.loads((DIRECTORY / f"{name}.json").read_text())
    if vectors["format"] != 1:
        raise ValueError(f"{name}.json has format {vectors['format']}; this kit reads format 1")
    return vectors


def body_of(vector: dict[str, Any]) -> bytes:
    """The bytes of a vector with `text`, `base64` or `parts`."""
    if "text" in vector:
        return str(vector["text"]).encode()
    if "base64" in vector:
        return base64.b64decode(vector["base64"])
    return b"".join(body_of(part) * part.get("times", 1) for part in vector["parts"])


def frames_of(vector: dict[str, Any]) -> list[bytes]:
    """The frames of one message: one frame, unless the vector lists `frames`."""
    if "frames" not in vector:
        return [vector["topic"].encode() + body_of(vector)]
    return [body_of(frame) for frame in vector["frames"] for _ in range(frame.get("times", 1))]
