"""The codes of refused messages, each with a sentence (SPEC.md contains this table), and the base of all exceptions."""

from typing import Final

REFUSALS: Final[dict[str, str]] = {
    # the frame
    "multipart": "a message is one frame: topic, one space, JSON",
    "no_topic": "the frame has no space after its topic",
    "unknown_topic": "the receiver does not read this topic",
    "empty": "the frame has no JSON after its topic",
    "too_large": "the message is larger than the limit",
    # the JSON
    "not_utf8": "the JSON is not UTF-8",
    "not_json": "the text is not JSON",
    "not_an_object": "the JSON is not an object",
    "not_a_number": "NaN and Infinity are not JSON",
    "number_out_of_range": "a number is too large for a double",
    "integer_out_of_range": "an integer is outside ±(2^53 - 1)",
    "duplicate_key": "an object names the same key twice",
    "nul_character": "a string holds U+0000, which databases cannot store",
    "lone_surrogate": "a string holds half of a surrogate pair",
    "too_deep": "the nesting is deeper than 32",
    # the message
    "bad_field": "a member is missing, or has the wrong type or range",
    "unknown_type": "the receiver does not know this type of message, and ignores it",
    "missing_version": "the message has no protocol version",
    "unknown_version": "the receiver does not support this protocol version",
    "duplicate_item": "the message lists the same step and delivery twice",
    # the sender
    "unauthorized": "the sender's grant does not allow this",
    # the step, the delivery, the session
    "unknown_session": "the broker has no such session; send hello",
    "wrong_batch": "the delivery was sent in another batch",
    "wrong_sender": "the delivery was sent to another worker, or to another principal",
    "unknown_delivery": "the step never had this delivery",
}


class StepwireError(Exception):
    """Base of every exception that Stepwire defines: in the protocol, the SDK and the broker."""


class InvalidMessage(StepwireError):
    """A message or document that is refused. `code` is a key of REFUSALS; `message` names the place and the reason."""

    def __init__(self, code: str, message: str = "") -> None:
        assert code in REFUSALS, code
        super().__init__(f"{code}: {message or REFUSALS[code]}")
        self.code = code
        self.message = message or REFUSALS[code]
