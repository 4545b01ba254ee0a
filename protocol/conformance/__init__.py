"""The conformance kit: drives an SDK, in any language, through the dialogues of `protocol/vectors/dialogues.json`.

Start with README.md. The kit knows the protocol, and neither the broker nor any SDK.
"""
