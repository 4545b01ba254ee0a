"""Writes protocol/vectors/sealed.json: `python -m tests.protocol.sealed_vectors`. The result is always the same.

tests/protocol/test_sealed_vectors.py computes the vectors a second time, with other code.
"""

import base64
import json
from pathlib import Path
from typing import Any, Final

from stepwire import sealing
from stepwire.sealing import NotUnsealed, SealKeys
from stepwire_protocol.sealed_payloads import SealedTask

FILE: Final = Path(__file__).parents[2] / "protocol/vectors/sealed.json"
KEYS: Final = {"2026-11": bytes(range(32)), "2026-10": bytes(range(100, 132))}
TASK: Final = SealedTask("shop::eu", "order", "order-12345")
OUTPUT: Final = '{"clear":{"approved":true},"transaction":"txn_1"}'
PAYLOADS: Final[tuple[tuple[str, str, str, str | None, str], ...]] = (
    ("a context", "2026-11", "context", None, '{"card":"4929-7654","clear":{"region":"eu"}}'),
    ("a context without clear members", "2026-11", "context", None, "{}"),
    ("a clear member that is no object", "2026-11", "context", None, '{"clear":[1]}'),
    ("an output", "2026-11", "output", "charge", OUTPUT),
    ("the same output of another step", "2026-11", "output", "refund", OUTPUT),
    ("an output with an older key", "2026-10", "output", "charge", '"Zoë €"'),
    ("an output of null", "2026-11", "output", "charge", "null"),
    ("an error", "2026-11", "error", "charge", '{"message":"declined: 4929-7654","backtrace":[]}'),
)


def vectors() -> dict[str, Any]:
    sealed = [_sealed(*payload) for payload in PAYLOADS]
    return {
        "format": 1,
        "keys": [_key(kid, key) for kid, key in KEYS.items()],
        "sealed": sealed,
        "refused": list(_refused(sealed)),
        "key_files": list(_key_files()),
    }


def written() -> str:
    parts = ['{"format": 1']
    for name, rows in vectors().items():
        if name != "format":
            parts.append(f' "{name}": [\n' + ",\n".join(f"  {json.dumps(row)}" for row in rows) + "]")
    return ",\n".join(parts) + "}\n"


def _key(kid: str, key: bytes) -> dict[str, str]:
    return {
        "kid": kid,
        "key": base64.b64encode(key).decode(),
        "encryption_key": sealing.derived(key, sealing.ENCRYPTION).hex(),
        "nonce_key": sealing.derived(key, sealing.NONCE).hex(),
    }


def _sealed(name: str, kid: str, kind: Any, step: str | None, plaintext: str) -> dict[str, Any]:
    payload = SealKeys({kid: KEYS[kid]}).seal(kind, TASK, step, plaintext.encode())
    return {
        "name": name,
        "kind": kind,
        "namespace": TASK.namespace,
        "workflow": TASK.workflow,
        "key": TASK.key,
        "step": step,
        "aad": base64.b64encode(sealing.associated_data(kind, kid, TASK, step)).decode(),
        "plaintext": plaintext,
        "payload": json.loads(payload),
    }


def _refused(sealed: list[dict[str, Any]]) -> Any:
    """Payloads that must not be unsealed: each differs from the first output in one respect."""
    output = sealed[3]
    changes: list[tuple[str, dict[str, Any], dict[str, Any]]] = [
        ("of another step", {"step": "refund"}, {}),
        ("of another task", {"key": "order-12346"}, {}),
        ("of another workflow", {"workflow": "orders"}, {}),
        ("of another namespace", {"namespace": "shop"}, {}),
        ("as an error", {"kind": "error"}, {}),
        ("with another nonce", {}, {"nonce": sealed[4]["payload"]["nonce"]}),
        ("with other data", {}, {"data": sealed[4]["payload"]["data"]}),
        ("with an unknown key", {}, {"kid": "2026-09"}),
        ("with the name of another key", {}, {"kid": "2026-10"}),
        ("of another version", {}, {"$sealed": "v2"}),
        ("without data", {}, {"data": ""}),
    ]
    for name, of_vector, of_payload in changes:
        kept = {key: value for key, value in output.items() if key not in ("aad", "plaintext")}
        vector = {**kept, **of_vector, "name": f"an output {name}", "payload": {**output["payload"], **of_payload}}
        yield {**vector, "sentence": _sentence(vector)}


def _sentence(vector: dict[str, Any]) -> str:
    """The text of the error that refuses a payload."""
    keys = SealKeys(KEYS)
    task = SealedTask(vector["namespace"], vector["workflow"], vector["key"])
    try:
        keys.unseal(vector["kind"], task, vector["step"], vector["payload"])
    except NotUnsealed as error:
        return str(error)
    raise AssertionError(vector["name"])


def _key_files() -> Any:
    """Files of keys: the names of their keys in order, or the sentence that refuses them. `{path}` is their path.
    A number instead of a text means a file with this number of `#`."""
    lines = [f"{kid}={base64.b64encode(key).decode()}\n" for kid, key in KEYS.items()]
    form = "is not KID=KEY, with a key of 32 random bytes in Base64, as made by: openssl rand -base64 32"
    for name, text, kids in (
        ("two keys", "".join(lines), [*KEYS]),
        ("comments, empty lines and white space", f"# keys\n\n  {lines[1].strip()} \r\n", ["2026-10"]),
    ):
        yield {"name": name, "text": text, "mode": "0600", "kids": kids}
    wrong = f"STEPWIRE_SEAL_KEYS_FILE: line 2 of '{{path}}' {form}"
    whole = "STEPWIRE_SEAL_KEYS_FILE is '{path}': "
    for name, text, mode, sentence in (
        ("a key of 31 bytes", f"{lines[0]}b={'A' * 40}AA==\n", "0600", wrong),
        ("a line without a name", f"{lines[0]}={lines[1].partition('=')[2]}", "0600", wrong),
        ("a name with a space", f"{lines[0]}a b={lines[1].partition('=')[2]}", "0600", wrong),
        ("no Base64", f"{lines[0]}b={'*' * 43}=\n", "0600", wrong),
        (
            "a name twice",
            lines[0] * 2,
            "0600",
            "STEPWIRE_SEAL_KEYS_FILE: '{path}' has two keys with the name '2026-11'",
        ),
        ("no key", "# none\n", "0600", f"{whole}it needs 1 to 100 keys, and has 0"),
        (
            "101 keys",
            "".join(f"k{n}={lines[0][8:]}" for n in range(101)),
            "0600",
            f"{whole}it needs 1 to 100 keys, and has 101",
        ),
        ("a file that others may read", lines[0], "0644", f"{whole}its group or others may use it: chmod 600 {{path}}"),
        (
            "a file that the group may read",
            lines[0],
            "0640",
            f"{whole}its group or others may use it: chmod 600 {{path}}",
        ),
        ("a long file", 65_537, "0600", f"{whole}it has more than 65536 bytes"),
        ("no file", None, "", f"{whole}it cannot be read: No such file or directory"),
    ):
        yield {"name": name, "text": text, "mode": mode, "sentence": sentence}


if __name__ == "__main__":
    FILE.write_text(written())
