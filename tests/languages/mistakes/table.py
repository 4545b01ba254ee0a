"""The mistakes, in the order of the page. Each one has to be named, and to end in one sentence that says what to do."""

from collections.abc import Mapping
from types import MappingProxyType
from typing import Final, NamedTuple

LANGUAGES: Final = ("python", "go", "java", "node", "ruby", "rust")


class Mistake(NamedTuple):
    """One mistake. `must_have`: words of its sentence, after `sentence.normalised`, in every language.

    `differs` is the reason why the sentences of the languages cannot be equal. `absent` are languages in which the
    mistake cannot be made, or is not noticed, each with the reason.
    """

    name: str
    title: str
    must_have: tuple[str, ...]
    differs: str = ""
    absent: Mapping[str, str] = MappingProxyType({})


_IPC: Final = {"java": "ipc:// is refused: see `ipc in Java`"}
_ELSEWHERE: Final = "set STEPWIRE_STEPS and STEPWIRE_RESULTS to what `stepwire serve` prints"
_NOT_A_BROKER: Final = ("does not answer as a broker", "Check that STEPWIRE_STEPS and STEPWIRE_RESULTS name")
_NO_LOOP: Final = "each handler has a thread of its own"
_IN_ONE_PLACE: Final = "the toolchain of each language has another name, and is refused in another place"

GROUPS: Final[dict[str, tuple[Mistake, ...]]] = {
    "Endpoints": (
        Mistake("no_broker", "no process at the tcp endpoint", ("no broker for 3 s", "port 7411", _ELSEWHERE)),
        Mistake("no_socket", "no socket at the ipc endpoint", ("there is no such socket", _ELSEWHERE), absent=_IPC),
        Mistake(
            "elsewhere",
            "relative ipc path, in another directory than the broker",
            ("ipc:///srv/shop/.stepwire/steps.sock", "relative to this directory", "where the broker runs"),
            absent=_IPC,
        ),
        Mistake(
            "left_socket",
            "socket of a broker that was killed",
            ("no process listens there", "Start the broker"),
            absent=_IPC,
        ),
        Mistake("not_a_socket", "file in place of the socket", ("not a socket", "Remove it"), absent=_IPC),
        Mistake("swapped", "steps and results swapped", (*_NOT_A_BROKER, "in this order")),
        Mistake("http_port", "HTTP port in place of both endpoints", (*_NOT_A_BROKER, "not its HTTP address")),
        Mistake("unknown_host", "host name that does not exist", ("'broker.invalid'", "check")),
        Mistake(
            "wrong_scheme",
            "scheme that is none of ZeroMQ's",
            ("'http://127.0.0.1:7410'", "http:// is not supported", "tcp://"),
            differs="each names the transports that its binding has; only Python has a broker in the same process",
        ),
        Mistake(
            "no_scheme",
            "endpoint without a scheme",
            ("'127.0.0.1:7411'", "a form like tcp://127.0.0.1:7411"),
            differs="Java has no ipc://",
        ),
        Mistake("no_port", "endpoint without a port", ("'tcp://127.0.0.1'", "no port", "tcp://127.0.0.1:7411")),
        Mistake("bad_port", "port that is no number", ("'tcp://127.0.0.1:steps'", "1 to 65535")),
        Mistake("far_port", "port above 65535", ("'tcp://127.0.0.1:74110'", "1 to 65535")),
        Mistake("bind_address", "address of a listener", ("'tcp://*:7411'", "names no host", "only a broker may bind")),
        Mistake("long_path", "ipc path above 107 bytes", ("119 bytes", "107", "use a relative path"), absent=_IPC),
        Mistake(
            "ipc_in_java",
            "ipc in Java",
            ("JeroMQ", "tcp listener", "tcp://127.0.0.1:7411"),
            absent=dict.fromkeys((name for name in LANGUAGES if name != "java"), "connects with ipc://"),
        ),
        Mistake("one_of_two", "two endpoints for steps, one for results", ("2 endpoints", "1 for results", "commas")),
    ),
    "Settings": (
        Mistake("slots_word", "STEPWIRE_SLOTS that is no number", ("STEPWIRE_SLOTS is 'ten'", "whole number")),
        Mistake("slots_zero", "STEPWIRE_SLOTS of 0", ("slots is 0", "1 to 10000", "STEPWIRE_SLOTS")),
        Mistake("labels", "label without a value", ("STEPWIRE_LABELS has 'region'", "region=eu,gpu=true")),
        Mistake("name", "name with a space", ("'my worker'", "1 to 48", "STEPWIRE_NAME")),
        Mistake("version_text", "handler version above 64 characters", ("65 characters", "at most 64")),
    ),
    "Handlers": (
        Mistake(
            "no_handlers",
            "no handler registered",
            ("the worker has no handlers", "register"),
            differs="each shows the call of its language",
        ),
        Mistake("twice", "handler registered twice", ("handler 'ship_order'", "registered twice")),
        Mistake("too_late", "handler registered after the start", ("handler 'ship_order'", "before the worker starts")),
        Mistake("handler_name", "handler name with a space", ("handler name 'ship order'", "1 to 128 letters, digits")),
        Mistake(
            "unknown_handler",
            "step whose handler no worker offers (the broker's sentence)",
            ("no worker offers `conform.ecko`", "did you mean `conform.echo`?"),
        ),
        Mistake(
            "blocking",
            "blocking call in async code",
            ("handler ship_order", "has blocked the event loop for 2 s", "await"),
            differs="Python has threads for plain functions, Node has worker threads",
            absent=dict.fromkeys(("go", "java", "ruby"), _NO_LOOP)
            | {"rust": "not noticed: the others run on tokio's other threads while one is free; use `handle_blocking`"},
        ),
    ),
    "Outputs": (
        Mistake(
            "no_json",
            "output that is no JSON",
            ("cannot be sent as JSON", "has no form in JSON", "return"),
            differs="each names the type of its language",
        ),
        Mistake("nan", "NaN in the output", ("cannot be sent as JSON", "NaN or Infinity", "return null")),
        Mistake("big_id", "id above 2^53 in the output", ("an integer outside ±(2^53 - 1)", "return it as text")),
        Mistake("nul", "U+0000 in the output", ("U+0000", "databases cannot store", "Base64")),
        Mistake(
            "surrogate",
            "half of a surrogate pair in the output",
            ("return well-formed text, or Base64",),
            differs="a text of Ruby can hold any bytes, so its sentence names UTF-8",
            absent={"go": "Go writes U+FFFD in its place"},
        ),
    ),
    "Versions and keys": (
        Mistake(
            "protocol_version",
            "broker without a common protocol version",
            ("no protocol version in common", "use a broker and an SDK of the same release"),
        ),
        Mistake("no_keys", "broker with CURVE, worker without keys", ("CURVE needs keys, STEPWIRE_CURVE_FILE",)),
        Mistake("wrong_server_key", "wrong server key", ("Check also the three CURVE keys",)),
        Mistake(
            "refused_key",
            "key that the broker refuses",
            ("Check also the three CURVE keys", "public key is", "stepwire keys allow", "(connection_refused)"),
        ),
        Mistake(
            "unauthorized",
            "worker outside the grant of its key",
            ("refuses this worker: unauthorized", "public key is", "`stepwire keys list` and `stepwire keys allow`"),
        ),
        Mistake(
            "missing_key", "one of three keys missing", ("STEPWIRE_CURVE_SECRET_KEY is missing", "STEPWIRE_CURVE_FILE")
        ),
        Mistake("short_key", "key that was cut", ("STEPWIRE_CURVE_PUBLIC_KEY is no key", "40 characters of Z85")),
        Mistake("two_pairs", "halves of two key pairs", ("does not belong to", "take both from one key pair")),
        Mistake("open_file", "key file readable by others", ("others may use this file", "chmod 600")),
        Mistake("no_file", "key file that does not exist", ("STEPWIRE_CURVE_FILE is", "No such file or directory")),
    ),
    "Toolchains": (
        Mistake(
            "old_toolchain",
            "toolchain below the oldest supported one",
            ("needs", "or newer"),
            differs=_IN_ONE_PLACE,
        ),
    ),
}

MISTAKES: Final = {mistake.name: mistake for group in GROUPS.values() for mistake in group}
