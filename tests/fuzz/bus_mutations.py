"""Mutated messages of a worker: every message of the vectors, with the ids of live traffic in their places.

A message is a tree: an object is a `Members`, an array a list, any other value its bytes, and a live value the name by
which the sender's `Live` knows it. Mutations change the tree or the bytes. BLOCK messages have one generator, so that a
message is the same for a seed and a number, but for the live values.
"""

import json
from pathlib import Path
from random import Random
from typing import Any, Final, NamedTuple

from stepwire_protocol import topics

from .mutations import POISON, RAW, of_bytes

BLOCK: Final = 100
VECTORS: Final = Path(__file__).resolve().parents[2] / "protocol/vectors/accepted.json"
BROKER: Final = "b1"
WORKER: Final = "fuzz:00000000000000ff"
HANDLER: Final = "fuzz.a"
INNER: Final = b'"local.b1:0000000000000001"'
FAR: Final = 0.02  # of the mutations of a value: hundreds of kilobytes


class Members(list[tuple[bytes, Any]]):
    """The members of an object, in order. Names may repeat."""


class Template(NamedTuple):
    name: str
    topic: bytes
    tree: Members


class Live(dict[str, bytes]):
    """The current values of ids, as JSON: the sender's own, and with the prefix `foreign.` those of others."""

    @classmethod
    def unknown(cls, worker: str) -> "Live":
        """Guesses, until the ids of live traffic are known."""
        live = cls(dict.fromkeys(_LIVE, b"1") | {"next": b"1"})
        for name in _LIVE:
            if name.endswith("worker"):
                live[name] = b'"shop:0123456789abcdef"'
            elif name.endswith("batch"):
                live[name] = b'"batch_0123456789abcdef_1"'
            elif name.endswith("session"):
                live[name] = b'"1.1"'
        live.update({"worker": b'"%s"' % worker.encode(), "deployment": b'"0123456789abcdef"', "inner.worker": INNER})
        return live


_BOUNDS: Final = [
    bound for power in (7, 8, 15, 16, 31, 32, 53, 63, 64) for bound in (2**power - 1, 2**power, -(2**power))
]
_INTEGERS: Final = (
    *(str(bound).encode() for bound in _BOUNDS),
    b"0", b"1", b"2", b"-0", b"1.0", b"1e0", b"1e400", b"01", b"+1", b"0x1", b"1_000", b"1" * 400,
)  # fmt: skip
_TEXTS: Final = (
    "", " ", "\u202e", "ÿ" * 65, "🙂" * 33, "x" * 129, "x" * 8_193, "**", "a::*", "exec.b1:0123456789abcdef",
)  # fmt: skip
_STRINGS: Final = (
    *(json.dumps(text).encode() for text in _TEXTS),
    b'"\\u0000"', b'"\\ud800"', b'"\\udc00\\ud800"', b'"\\/\\b\\f"', b'"\\x41"',
    b'"\t"', b'"\xff"', b'"\xc0\xaf"', b'"\xed\xa0\x80"',
)  # fmt: skip
_POISON: Final = tuple(json.dumps(value).encode("utf-8", "surrogatepass") for value in POISON)
_FAR: Final = (
    b'"' + b"x" * 300_000 + b'"',
    b"[" + b",".join([b"1.50"] * 60_000) + b"]",
    b"[" + b",".join([b'[1,1,"queued",1]'] * 20_001) + b"]",
    b"{" + b",".join(b'"k%d":"v"' % n for n in range(20_000)) + b"}",
    b"[" * 5_000 + b"]" * 5_000,
    b"9" * 100_000,
)
_VALUES: Final = (_INTEGERS, _INTEGERS, _STRINGS, _STRINGS, _POISON)
_TEXT_MEMBERS: Final = {
    "worker": "worker",
    "session": "session",
    "batch_id": "batch",
    "deployment": "deployment",
    "step_id": "step",
    "delivery": "delivery",
    "n": "n",
    "rid": "rid",
}
_ITEMS: Final = ("items", "holding")
_LIVE: Final = (
    "worker", "session", "batch", "deployment", "step", "delivery", "n", "rid",
    "foreign.worker", "foreign.session", "foreign.batch", "foreign.step", "foreign.delivery",
    "foreign.worker", "foreign.batch", "foreign.step", "level0.batch", "level0.step", "inner.worker",
    "old.batch", "old.step",
)  # fmt: skip


def templates() -> list[Template]:
    """Every message of a worker in the vectors."""
    messages = json.loads(VECTORS.read_text())["messages"]
    return [
        Template(each["name"], each["topic"].encode(), _tree(json.loads(each["text"])))
        for each in messages
        if each["sender"] == "worker" and each["topic"].encode() in (topics.WORKERS, topics.RESULTS, _TO_BROKER)
    ]


_TO_BROKER: Final = topics.results_to(BROKER)


def _tree(value: Any, member: str = "") -> Any:
    if member in _TEXT_MEMBERS:
        return _TEXT_MEMBERS[member]
    if member == "sessions":
        return Members(
            (_name(broker), "session" if broker == BROKER else _name(each)) for broker, each in value.items()
        )
    if member == "next":
        return _by_broker(value, "next")
    if member == "handlers":
        return [_name(HANDLER)]
    if member in _ITEMS:
        return [["step", "delivery", *map(_scalar, item[2:])] for item in value]
    if isinstance(value, dict):
        return Members((_name(name), _tree(each, name)) for name, each in value.items())
    if isinstance(value, list):
        return [_tree(each) for each in value]
    return _scalar(value)


def _by_broker(value: dict[str, Any], live: str) -> Members:
    return Members((_name(broker), live if broker == BROKER else _scalar(each)) for broker, each in value.items())


def _scalar(value: Any) -> bytes:
    return json.dumps(value).encode("utf-8", "surrogatepass")


_name = _scalar


def rendered(node: Any, live: Live) -> bytes:
    kind = type(node)
    if kind is bytes:
        return bytes(node)
    if kind is str:
        return live[node]
    if kind is Members:
        return b"{" + b",".join([name + b":" + rendered(each, live) for name, each in node]) + b"}"
    return b"[" + b",".join([rendered(each, live) for each in node]) + b"]"


# What stands in the place of a value and has the same form, so that it passes the codec and reaches the core.
_ALIKE: Final[dict[Any, tuple[Any, ...]]] = {
    "worker": ("foreign.worker", "inner.worker"),
    "session": ("foreign.session", b'"1.1"', b'"0.0"'),
    "batch": ("foreign.batch", "level0.batch", "old.batch"),
    "step": ("foreign.step", "level0.step", "old.step", b"9007199254740991"),
    "delivery": ("foreign.delivery", b"1", b"2", b"3", b"9007199254740991"),
    "n": (b"0", b"1", b"9007199254740991"),
    "rid": (b"1", b"2", b"9007199254740991"),
    "next": (b"1", b"2", b"9007199254740991"),
}
_CHOICES: Final = (
    ("completed", "failed", "error"),
    ("queued", "asking", "running", "done", "unknown"),
    ("busy", "unknown_handler", "draining", "stale", "bad_message", "too_large"),
    ("hello", "heartbeat", "bye", "gone", "accept", "refuse", "start", "results", "adopted", "progress"),
)
for _choice in _CHOICES:
    _ALIKE.update({_scalar(each): tuple(map(_scalar, _choice)) for each in _choice})
_ALIKE.update(dict.fromkeys((b"true", b"false", b"null"), (b"true", b"false", b"null")))
_COUNTS: Final = (b"0", b"1", b"2", b"50", b"4294967296", b"9007199254740991")


def _alike(rng: Random, node: Any, chance: float) -> Any:
    """The tree with some values replaced by others of the same form."""
    kind = type(node)
    if kind is Members:
        return Members((name, _alike(rng, each, chance)) for name, each in node)
    if kind is list:
        return [_alike(rng, each, chance) for each in node]
    if rng.random() > chance:
        return node
    others = _ALIKE.get(node)
    if others is not None:
        return rng.choice(others)
    return rng.choice(_COUNTS) if node.isdigit() else node


class Messages:
    """Makes the messages of one seed."""

    def __init__(self, seed: int) -> None:
        self._seed = seed
        self._templates = templates()

    def block(self, number: int, live: Live) -> "list[tuple[bytes, bytes]]":
        """The topics and bodies of the BLOCK messages from `number` on. Live values are those of this moment."""
        rng = Random(f"{self._seed}.{number // BLOCK}")
        return [self._message(rng, live) for _ in range(BLOCK)]

    def _message(self, rng: Random, live: Live) -> tuple[bytes, bytes]:
        random = rng.random
        template = self._templates[int(random() * len(self._templates))]
        tree: Any = template.tree
        chance = random()
        if chance < 0.4:
            return template.topic, rendered(_alike(rng, tree, chance), live)
        for _ in range(0 if chance < 0.45 else 1 if chance < 0.75 else 2 if chance < 0.9 else 4):
            tree = _mutated(rng, tree)
        body = rendered(tree, live)
        if random() < 0.3:
            for _ in range(1 if random() < 0.6 else 4):
                body = of_bytes(rng, body)
        chance = random()
        topic = template.topic if chance < 0.97 else topics.WORKERS if chance < 0.985 else topics.RESULTS
        return topic, body


def _mutated(rng: Random, node: Any) -> Any:
    """The tree with one change. Unchanged branches are shared with the original."""
    kind = type(node)
    if kind is Members and node:
        return _of_members(rng, node)
    if kind is list and node:
        return _of_array(rng, node)
    return _value(rng, node)


def _of_members(rng: Random, node: Members) -> Members:
    at = int(rng.random() * len(node))
    changed = Members(node)
    name, value = node[at]
    chance = rng.random()
    if chance < 0.55:
        changed[at] = (name, _mutated(rng, value))
    elif chance < 0.65:
        del changed[at]
    elif chance < 0.72:
        changed.insert(int(rng.random() * len(node)), (name, value if rng.random() < 0.5 else _value(rng, value)))
    elif chance < 0.82:
        other = int(rng.random() * len(node))
        changed[at], changed[other] = (name, node[other][1]), (node[other][0], value)
    elif chance < 0.87:
        changed[at] = (_renamed(rng, name), value)
    elif chance < 0.92:
        changed.append((rng.choice(_STRINGS), _value(rng, value)))
    elif chance < 0.96:
        rng.shuffle(changed)
    else:
        changed[at] = (name, Members([(name, value)]) if rng.random() < 0.5 else [value])
    return changed


def _of_array(rng: Random, node: list[Any]) -> Any:
    at = int(rng.random() * len(node))
    chance = rng.random()
    if chance < 0.6:
        return [*node[:at], _mutated(rng, node[at]), *node[at + 1 :]]
    if chance < 0.75:
        return node[:at] + node[at + 1 :]
    if chance < 0.9:
        return node + [node[at]] * rng.choice((1, 1, 30))
    return _value(rng, node)


def _renamed(rng: Random, name: bytes) -> bytes:
    """Another name, or the same one in escapes."""
    match int(rng.random() * 3):
        case 0:
            return name[:-1] + b'x"'
        case 1:
            return name.upper()
        case _:
            return b'"' + b"".join(b"\\u%04x" % letter for letter in name[1:-1]) + b'"'


def _value(rng: Random, value: Any) -> Any:
    chance = rng.random()
    if chance < 0.45:
        return rng.choice(_LIVE)
    if chance < 0.93:
        return rng.choice(rng.choice(_VALUES))
    if chance < 0.95:
        return rng.choice(RAW)
    return rng.choice(_FAR) if rng.random() < FAR else rng.choice(_POISON)
