from __future__ import annotations

import base64
import hashlib
import hmac

import pytest
from hypothesis import given
from hypothesis import strategies as st

from keylane.broker.scram import AuthenticationError, Credential, ScramServer, credential_of, has_password
from keylane.wire.scram import HASHES

VECTORS = {
    # RFC 5802, section 5 (with SHA-1, which is not offered; the exchange is the same)
    "SCRAM-SHA-1": (
        "QSXCR+Q6sek8bf92",
        "n,,n=user,r=fyko+d2lbbFgONRv9qkxdawL",
        "3rfcNHYJY1ZVvWVs7j",
        "r=fyko+d2lbbFgONRv9qkxdawL3rfcNHYJY1ZVvWVs7j,s=QSXCR+Q6sek8bf92,i=4096",
        "c=biws,r=fyko+d2lbbFgONRv9qkxdawL3rfcNHYJY1ZVvWVs7j,p=v0X8v3Bz2T0CJGbJQyF0X+HI4Ts=",
        "v=rmF9pqV8S7suAoZWja4dJRkFsKQ=",
    ),
    # RFC 7677, section 3
    "SCRAM-SHA-256": (
        "W22ZaJ0SNY7soEsUEjb6gQ==",
        "n,,n=user,r=rOprNGfwEbeRWgbNEkqO",
        "%hvYDpWUa2RaTCAfuxFIlj)hNlF$k0",
        "r=rOprNGfwEbeRWgbNEkqO%hvYDpWUa2RaTCAfuxFIlj)hNlF$k0,s=W22ZaJ0SNY7soEsUEjb6gQ==,i=4096",
        "c=biws,r=rOprNGfwEbeRWgbNEkqO%hvYDpWUa2RaTCAfuxFIlj)hNlF$k0,p=dHzbZapWIk4jUhN+Ute9ytag9zjfMHgsqmmiz7AndVQ=",
        "v=6rriTRBi23WpRR/wtup+mMhUZUn/dB5nLTJRsjl95G4=",
    ),
}


@pytest.mark.parametrize("mechanism", VECTORS)
def test_the_rfcs_vectors(mechanism: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(HASHES, "SCRAM-SHA-1", "sha1")
    salt, client_first, nonce, server_first, client_final, server_final = VECTORS[mechanism]
    credential = credential_of(mechanism, "pencil", base64.b64decode(salt), 4_096)
    server = ScramServer(mechanism, {"user": credential}.__getitem__, nonce)
    assert server.first(client_first.encode()) == server_first.encode()
    assert server.final(client_final.encode()) == server_final.encode()
    assert server.user == "user"


class Client:
    """RFC 5802's other side, written apart from the server's."""

    def __init__(self, mechanism: str, user: str, password: str) -> None:
        self.hash = HASHES[mechanism]
        self.password = password
        self.bare = f"n={user.replace('=', '=3D').replace(',', '=2C')},r=abc"

    def first(self) -> bytes:
        return f"n,,{self.bare}".encode()

    def final(self, server_first: bytes) -> bytes:
        text = server_first.decode()
        nonce, salt, iterations = (piece[2:] for piece in text.split(","))
        salted = hashlib.pbkdf2_hmac(self.hash, self.password.encode(), base64.b64decode(salt), int(iterations))
        key = hmac.digest(salted, b"Client Key", self.hash)
        said = f"c=biws,r={nonce}"
        signature = hmac.digest(hashlib.new(self.hash, key).digest(), f"{self.bare},{text},{said}".encode(), self.hash)
        proof = bytes(a ^ b for a, b in zip(key, signature, strict=True))
        return f"{said},p={base64.b64encode(proof).decode()}".encode()


texts = st.text(st.characters(exclude_characters="\0", exclude_categories=["Cs"]), min_size=1, max_size=20)


@given(st.sampled_from(["SCRAM-SHA-256", "SCRAM-SHA-512"]), texts, texts, texts)
def test_a_client_enters_with_its_own_password_only(mechanism: str, user: str, password: str, tried: str) -> None:
    credential = credential_of(mechanism, password, b"salt", 4)
    server = ScramServer(mechanism, lambda _: credential, "xyz")
    client = Client(mechanism, user, tried)
    final = client.final(server.first(client.first()))
    assert server.user == user
    assert has_password(mechanism, credential, tried) is (password == tried)
    if password == tried:
        assert server.final(final).startswith(b"v=")
    else:
        with pytest.raises(AuthenticationError, match="invalid credentials"):
            server.final(final)


CREDENTIAL = credential_of("SCRAM-SHA-256", "pencil", b"salt", 4)


@pytest.mark.parametrize(
    "message",
    [
        b"",
        b"\xff",
        b"n,,",
        b"n,,n=,r=abc",
        b"n,,n=user,r=",
        b"n,,m=ext,n=user,r=abc",
        b"n,,n=us=2er,r=abc",
        b"n,a=admin,n=user,r=abc",
        b"p=tls-unique,,n=user,r=abc",
    ],
)
def test_first_messages_that_are_refused(message: bytes) -> None:
    with pytest.raises(AuthenticationError):
        ScramServer("SCRAM-SHA-256", lambda _: CREDENTIAL, "xyz").first(message)


@pytest.mark.parametrize(
    "change",
    [
        (b"r=abcxyz", b"r=abcxyy"),
        (b"c=biws", b"c=eSws"),
        (b"c=biws", b"c=%%%"),
        (b",p=", b",p=%%%"),
        (b",p=", b",p=AAAA"),
        (b",p=", b",q="),
        (b"c=", b"\xff"),
    ],
)
def test_last_messages_that_are_refused(change: tuple[bytes, bytes]) -> None:
    server = ScramServer("SCRAM-SHA-256", lambda _: CREDENTIAL, "xyz")
    client = Client("SCRAM-SHA-256", "user", "pencil")
    final = client.final(server.first(client.first()))
    with pytest.raises(AuthenticationError):
        server.final(final.replace(*change))


def exchange(server: ScramServer, first: bytes, final: bytes) -> None:
    server.first(first)
    server.final(final)


@given(st.binary(max_size=80), st.binary(max_size=80))
def test_any_bytes_are_refused(first: bytes, final: bytes) -> None:
    server = ScramServer("SCRAM-SHA-256", lambda _: Credential(b"s", b"k" * 32, b"v", 4_096), "xyz")
    with pytest.raises(AuthenticationError):
        exchange(server, first, final)
