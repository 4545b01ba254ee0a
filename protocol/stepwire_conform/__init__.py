"""The worker conformance kit: plays a broker on private sockets and grades any worker program, in any language.

`stepwire handler conform` is its command. The kit depends on the protocol and ZeroMQ, never on the broker or an SDK.
"""
