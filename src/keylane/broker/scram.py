"""SCRAM's server side (RFC 5802, RFC 7677), pure: messages in, messages out, no clock, no file, no randomness.

The idea: of a password only `Credential` is kept. From it a server can check a client's proof and prove itself, but
cannot log in as the client, and finding the password takes `iterations` hashes for each guess.

As in Kafka, names are taken as UTF-8 without SASLprep, there is no channel binding, and the authorization
id must be empty or the user's own name.
"""

from __future__ import annotations

import base64
import binascii
import hmac
from typing import TYPE_CHECKING, NamedTuple

from keylane.errors import InternalError, PeerError
from keylane.wire.scram import keys_of, signature, stored_key, xor

if TYPE_CHECKING:
    from collections.abc import Callable

NO_CHANNEL_BINDING = "n,,"


class AuthenticationError(PeerError):
    """A client did not show who it is. The text goes to the client: it never says which part was wrong."""


class Credential(NamedTuple):
    """What a server keeps of a password."""

    salt: bytes
    stored_key: bytes
    server_key: bytes
    iterations: int

    def __repr__(self) -> str:
        return f"Credential(iterations={self.iterations})"


def credential_of(mechanism: str, password: str, salt: bytes, iterations: int) -> Credential:
    """Milliseconds of processor time: that is its purpose."""
    keys = keys_of(mechanism, password, salt, iterations)
    return Credential(salt, keys.stored, keys.server, iterations)


def has_password(mechanism: str, credential: Credential, password: str) -> bool:
    """Whether the credential was made of this password."""
    made = credential_of(mechanism, password, credential.salt, credential.iterations)
    return hmac.compare_digest(made.stored_key, credential.stored_key)


class ScramServer:
    """One exchange: `first`, then `final`. Both raise `AuthenticationError`."""

    def __init__(self, mechanism: str, credential_for: Callable[[str], Credential], nonce: str) -> None:
        """`credential_for` gives a credential for any name, one that nobody has a password for when it is unknown;
        `nonce` is printable ASCII without commas, never used before."""
        self.user = ""
        self._mechanism = mechanism
        self._credential_for = credential_for
        self._nonce = nonce
        self._credential: Credential | None = None
        self._header = NO_CHANNEL_BINDING
        self._messages = ""
        """Of the exchange so far, as AuthMessage joins them."""

    def first(self, message: bytes) -> bytes:
        """`n,,n=user,r=nonce` in, `r=nonce,s=salt,i=iterations` out."""
        binding, _, rest = _text(message).partition(",")
        authorization, _, bare = rest.partition(",")
        if binding not in ("n", "y"):
            raise AuthenticationError("channel binding is not offered: send n or y in the GS2 header")
        fields = _fields(bare)
        self.user, client_nonce = _name(fields.get("n", "")), fields.get("r", "")
        if "m" in fields or not self.user or not client_nonce:
            raise AuthenticationError("the first SCRAM message names no user or nonce, or a mandatory extension")
        if authorization and _name(authorization.removeprefix("a=")) != self.user:
            raise AuthenticationError("nobody may act for another user")
        self._nonce = client_nonce + self._nonce
        self._credential = self._credential_for(self.user)
        salt = base64.b64encode(self._credential.salt).decode()
        answer = f"r={self._nonce},s={salt},i={self._credential.iterations}"
        self._header = f"{binding},{authorization},"
        self._messages = f"{bare},{answer}"
        return answer.encode()

    def final(self, message: bytes) -> bytes:
        """`c=header,r=nonce,p=proof` in, `v=signature` out."""
        if self._credential is None:
            raise InternalError("the last SCRAM message was taken before the first")
        text = _text(message)
        without_proof, _, proof_text = text.rpartition(",p=")
        fields = _fields(without_proof)
        if fields.get("r") != self._nonce or _bytes(fields.get("c", "")) != self._header.encode():
            raise AuthenticationError("the last SCRAM message does not belong to the first")
        auth_message = f"{self._messages},{without_proof}".encode()
        signed = signature(self._mechanism, self._credential.stored_key, auth_message)
        proof = _bytes(proof_text)
        if len(proof) != len(signed):
            raise AuthenticationError("invalid credentials")
        client_key = xor(proof, signed)
        if not hmac.compare_digest(stored_key(self._mechanism, client_key), self._credential.stored_key):
            raise AuthenticationError("invalid credentials")
        answer = signature(self._mechanism, self._credential.server_key, auth_message)
        return b"v=" + base64.b64encode(answer)


def _text(message: bytes) -> str:
    try:
        return message.decode()
    except UnicodeDecodeError:
        raise AuthenticationError("a SCRAM message is not UTF-8") from None


def _fields(text: str) -> dict[str, str]:
    """`n=a,r=b` -> {"n": "a", "r": "b"}."""
    return {piece[:1]: piece[2:] for piece in text.split(",") if piece[1:2] == "="}


def _name(escaped: str) -> str:
    """RFC 5802's saslname: `=2C` is a comma, `=3D` an equals sign, and no other `=` stands in it."""
    if "=" in escaped.replace("=2C", "").replace("=3D", ""):
        raise AuthenticationError("a user name with an '=' that is not =2C or =3D")
    return escaped.replace("=2C", ",").replace("=3D", "=")


def _bytes(text: str) -> bytes:
    try:
        return base64.b64decode(text, validate=True)
    except (binascii.Error, ValueError):
        raise AuthenticationError("a SCRAM message holds something else than base64") from None
