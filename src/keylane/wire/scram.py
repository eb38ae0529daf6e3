"""What both sides of SCRAM (RFC 5802, RFC 7677) compute: the keys of a password, and what is signed with them. Pure.

As in Kafka, passwords are taken as UTF-8 without SASLprep.
"""

from __future__ import annotations

import hashlib
import hmac
from typing import NamedTuple

HASHES = {"SCRAM-SHA-256": "sha256", "SCRAM-SHA-512": "sha512"}
"""Mechanism to hashlib's name."""


class Keys(NamedTuple):
    """Of one password."""

    client: bytes
    """Whoever has it can log in."""
    stored: bytes
    """Checks a client's proof."""
    server: bytes
    """Proves that the server knows the password."""

    def __repr__(self) -> str:
        return "Keys(…)"


def keys_of(mechanism: str, password: str, salt: bytes, iterations: int) -> Keys:
    """Milliseconds of processor time: that is its purpose."""
    name = HASHES[mechanism]
    salted = hashlib.pbkdf2_hmac(name, password.encode(), salt, iterations)
    client = hmac.digest(salted, b"Client Key", name)
    return Keys(client, stored_key(mechanism, client), hmac.digest(salted, b"Server Key", name))


def stored_key(mechanism: str, client_key: bytes) -> bytes:
    return hashlib.new(HASHES[mechanism], client_key).digest()


def signature(mechanism: str, key: bytes, messages: bytes) -> bytes:
    """Of the messages of an exchange, as AuthMessage joins them."""
    return hmac.digest(key, messages, HASHES[mechanism])


def xor(one: bytes, other: bytes) -> bytes:
    """Of two that are equally long: a client's key and its signature make the proof, the proof and the signature the
    key."""
    return bytes(a ^ b for a, b in zip(one, other, strict=True))
