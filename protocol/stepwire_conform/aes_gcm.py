"""AES-256-GCM as NIST SP 800-38D describes it, so that the kit needs no library for a few small payloads of its own.

Slow, and not safe against an observer who measures time: for tests only. `tests/conform` compares it with the vectors.
"""

from typing import Final

BLOCK: Final = 16
_POLYNOMIAL: Final = 0xE1 << 120


def sealed(key: bytes, nonce: bytes, plaintext: bytes, aad: bytes) -> bytes:
    """The ciphertext, followed by its tag of 16 bytes. `nonce` has 12 bytes."""
    cipher = _Cipher(key)
    ciphertext = cipher.counted(nonce, 2, plaintext)
    return ciphertext + cipher.tag(nonce, aad, ciphertext)


def unsealed(key: bytes, nonce: bytes, data: bytes, aad: bytes) -> bytes | None:
    """The plaintext; None if the tag does not fit."""
    cipher = _Cipher(key)
    ciphertext, tag = data[:-BLOCK], data[-BLOCK:]
    return cipher.counted(nonce, 2, ciphertext) if tag == cipher.tag(nonce, aad, ciphertext) else None


class _Cipher:
    def __init__(self, key: bytes) -> None:
        self._round_keys = _round_keys(key)
        self._hash_key = int.from_bytes(self._block(bytes(BLOCK)))

    def counted(self, nonce: bytes, first: int, text: bytes) -> bytes:
        """The text, combined with the encrypted counters from `first` on."""
        parts = []
        for number, at in enumerate(range(0, len(text), BLOCK)):
            stream = self._block(nonce + (first + number).to_bytes(4))
            parts.append(bytes(a ^ b for a, b in zip(text[at : at + BLOCK], stream, strict=False)))
        return b"".join(parts)

    def tag(self, nonce: bytes, aad: bytes, ciphertext: bytes) -> bytes:
        state = 0
        lengths = (len(aad) * 8).to_bytes(8) + (len(ciphertext) * 8).to_bytes(8)
        for part in (aad, ciphertext, lengths):
            for at in range(0, len(part), BLOCK):
                state = self._times_hash_key(state ^ int.from_bytes(part[at : at + BLOCK].ljust(BLOCK, b"\0")))
        return self.counted(nonce, 1, state.to_bytes(BLOCK))

    def _times_hash_key(self, factor: int) -> int:
        product, value = 0, self._hash_key
        for bit in range(127, -1, -1):
            if factor >> bit & 1:
                product ^= value
            value = value >> 1 ^ (_POLYNOMIAL if value & 1 else 0)
        return product

    def _block(self, block: bytes) -> bytes:
        state = bytes(a ^ b for a, b in zip(block, self._round_keys[0], strict=True))
        for number, round_key in enumerate(self._round_keys[1:], start=1):
            state = bytes(_SBOX[state[(i + 4 * (i % 4)) % BLOCK]] for i in range(BLOCK))  # substituted, rows shifted
            if number < len(self._round_keys) - 1:
                state = b"".join(_mixed(state[i : i + 4]) for i in range(0, BLOCK, 4))
            state = bytes(a ^ b for a, b in zip(state, round_key, strict=True))
        return state


def _mixed(column: bytes) -> bytes:
    return bytes(
        _doubled(column[i])
        ^ _doubled(column[(i + 1) % 4])
        ^ column[(i + 1) % 4]
        ^ column[(i + 2) % 4]
        ^ column[(i + 3) % 4]
        for i in range(4)
    )


def _doubled(value: int) -> int:
    return (value << 1 ^ (0x1B if value & 0x80 else 0)) & 0xFF


def _round_keys(key: bytes) -> list[bytes]:
    words = [key[i : i + 4] for i in range(0, 32, 4)]
    factor = 1
    while len(words) < 60:
        word = words[-1]
        if len(words) % 8 == 0:
            word = bytes(_SBOX[each] for each in word[1:] + word[:1])
            word = bytes([word[0] ^ factor]) + word[1:]
            factor = _doubled(factor)
        elif len(words) % 8 == 4:
            word = bytes(_SBOX[each] for each in word)
        words.append(bytes(a ^ b for a, b in zip(word, words[-8], strict=True)))
    return [b"".join(words[i : i + 4]) for i in range(0, 60, 4)]


def _made_sbox() -> bytes:
    """The table of substitutions: the inverse in the field, and then an affine map."""
    box = bytearray(256)
    p = q = 1
    while True:
        p ^= _doubled(p)  # times 3
        q ^= q << 1
        q ^= q << 2
        q ^= q << 4
        q &= 0xFF
        if q & 0x80:
            q ^= 0x09  # divided by 3
        turned = q ^ _turned(q, 1) ^ _turned(q, 2) ^ _turned(q, 3) ^ _turned(q, 4)
        box[p] = turned ^ 0x63
        if p == 1:
            break
    box[0] = 0x63
    return bytes(box)


def _turned(value: int, count: int) -> int:
    return (value << count | value >> (8 - count)) & 0xFF


_SBOX: Final = _made_sbox()
