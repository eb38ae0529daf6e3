"""TLS and SASL of keylane's own connections: the settings, and the exchange of RFC 7677."""

from __future__ import annotations

import ssl
from typing import Any

import pytest

from keylane.errors import UsageError
from keylane.kafka.login import Login, LoginError, exchange, login_of

SASL = {"security.protocol": "SASL_PLAINTEXT", "sasl.username": "user", "sasl.password": "pencil"}
SCRAM = Login(None, "SCRAM-SHA-256", "user", "pencil")
NONCE = "rOprNGfwEbeRWgbNEkqO"
CHALLENGE = b"r=rOprNGfwEbeRWgbNEkqO%hvYDpWUa2RaTCAfuxFIlj)hNlF$k0,s=W22ZaJ0SNY7soEsUEjb6gQ==,i=4096"


def test_the_example_of_the_rfc() -> None:
    messages = exchange(SCRAM, NONCE)
    assert next(messages) == b"n,,n=user,r=rOprNGfwEbeRWgbNEkqO"
    assert messages.send(CHALLENGE) == (
        b"c=biws,r=rOprNGfwEbeRWgbNEkqO%hvYDpWUa2RaTCAfuxFIlj)hNlF$k0,p=dHzbZapWIk4jUhN+Ute9ytag9zjfMHgsqmmiz7AndVQ="
    )
    with pytest.raises(StopIteration):
        messages.send(b"v=6rriTRBi23WpRR/wtup+mMhUZUn/dB5nLTJRsjl95G4=")


@pytest.mark.parametrize(
    "answer",
    [
        b"",
        b"\xff",
        b"e=other-error",
        CHALLENGE.replace(b"r=r", b"r=x"),
        CHALLENGE.replace(b"4096", b"0"),
        CHALLENGE + b"9" * 9,
    ],
)
def test_an_answer_that_is_none(answer: bytes) -> None:
    messages = exchange(SCRAM, NONCE)
    next(messages)
    with pytest.raises(LoginError, match="SCRAM-SHA-256 answer is none"):
        messages.send(answer)


@pytest.mark.parametrize("answer", [b"v=AAAA", b"", b"v=\xff", "v=ä".encode()])
def test_a_broker_that_does_not_know_the_password(answer: bytes) -> None:
    messages = exchange(SCRAM, NONCE)
    next(messages)
    messages.send(CHALLENGE)
    with pytest.raises(LoginError, match="does not know the user's password"):
        messages.send(answer)


def test_certificates_are_asked_for_what_librdkafka_asks(monkeypatch: pytest.MonkeyPatch) -> None:
    """The default of Python 3.13 refuses a CA without a key identifier."""
    default = ssl.create_default_context

    def of_python_313(**options: Any) -> ssl.SSLContext:
        context = default(**options)
        context.verify_flags |= ssl.VERIFY_X509_STRICT
        return context

    monkeypatch.setattr(ssl, "create_default_context", of_python_313)
    tls = login_of({"security.protocol": "ssl"}).tls
    assert tls is not None
    assert not tls.verify_flags & ssl.VERIFY_X509_STRICT


def test_settings() -> None:
    assert login_of({"bootstrap.servers": "a:1", "client.id": "x"}) == Login()
    assert login_of(SASL | {"sasl.mechanisms": "PLAIN"}) == Login(None, "PLAIN", "user", "pencil")
    assert list(exchange(Login(None, "PLAIN", "user", "pencil"))) == [b"\0user\0pencil"]
    tls = login_of({"security.protocol": "ssl", "ssl.endpoint.identification.algorithm": "none"}).tls
    assert tls is not None
    assert (tls.check_hostname, tls.verify_mode) == (False, ssl.CERT_REQUIRED)
    tls = login_of({"security.protocol": "SSL", "enable.ssl.certificate.verification": False}).tls
    assert tls is not None
    assert tls.verify_mode is ssl.CERT_NONE


@pytest.mark.parametrize(
    ("settings", "says"),
    [
        ({"security.protocol": "tls"}, "security.protocol=tls: give one of plaintext, ssl"),
        (SASL | {"sasl.mechanisms": "GSSAPI"}, "sasl.mechanisms=GSSAPI: give one of PLAIN"),
        (SASL | {"sasl.mechanism": "PLAIN", "sasl.password": ""}, "sasl.username or sasl.password is missing"),
        ({"ssl.ca.pem": "…"}, "ssl.ca.pem is not known here"),
        ({"security.protocol": "ssl", "ssl.ca.location": "/nowhere"}, "ssl.ca.location=/nowhere"),
    ],
)
def test_wrong_settings(settings: dict[str, str], says: str) -> None:
    with pytest.raises(UsageError, match=says):
        login_of(settings)
