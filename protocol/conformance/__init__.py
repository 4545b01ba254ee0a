"""The conformance kit: drives an SDK, in any language, through the dialogues of `protocol/vectors/dialogues.json`.

Start with README.md. The kit depends on the protocol, but not on the broker or an SDK.
"""
