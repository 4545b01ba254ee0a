"""Why a message is refused: every code with the sentence that goes with it. SPEC.md prints this table."""

from typing import Final

REFUSALS: Final[dict[str, str]] = {
    # the frame
    "multipart": "a message is one frame: topic, one space, JSON",
    "no_topic": "the frame has no space after its topic",
    "unknown_topic": "nothing is read from this topic",
    "empty": "there is no JSON after the topic",
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
    "unknown_type": "this type of message is not known here; it is ignored",
    "missing_version": "the message does not say its protocol version",
    "unknown_version": "this protocol version is not spoken here",
    "duplicate_item": "the same step and delivery stand twice in one message",
    # what it is about
    "unknown_session": "no such session; say hello",
    "wrong_batch": "the batch_id is not the one this delivery went out in",
    "wrong_sender": "the delivery went to another worker",
    "unknown_delivery": "the step never had this delivery",
}


class InvalidMessage(Exception):
    """A message or document that is not taken. `code` is a key of REFUSALS; `message` says where and why."""

    def __init__(self, code: str, message: str = "") -> None:
        assert code in REFUSALS, code
        super().__init__(f"{code}: {message or REFUSALS[code]}")
        self.code = code
        self.message = message or REFUSALS[code]
