"""The User-Id of a connection: its principal, what proved it, and how often that proof has lost its access."""


def user_id_of(principal: str, proof: str, withdrawals: int) -> str:
    """`withdrawals`: how often this proof has lost its access. Without a proof, the principal is its own User-Id."""
    return f"{principal}#{proof}#{withdrawals}" if proof else principal


def proof_in(user_id: str) -> str:
    """The proof that a User-Id names."""
    return user_id.split("#")[1]


def owner_of(name: str) -> str:
    """The principal that a connection belongs to, or belonged to before its proof lost its access. `name`: from
    `Identities.of`."""
    return name.partition("#")[0]
