"""TLS and SASL of keylane's own connections: the settings, and the exchange of RFC 7677."""

from __future__ import annotations

import ssl
import time
from typing import Any

import pytest

from keylane.errors import UsageError
from keylane.kafka.login import Login, LoginError, exchange, login_of
from keylane.kafka.token_function import TokenFunction

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


TOKENS = {"security.protocol": "SASL_PLAINTEXT", "sasl.mechanisms": "OAUTHBEARER"}


def test_a_token_serves_until_it_nears_its_end() -> None:
    """The form is that of RFC 7628."""
    ends_s = [time.time() + 60, time.time(), time.time()]
    configs = []

    def token(config: object) -> tuple[Any, ...]:
        configs.append(config)
        return f"t{len(ends_s)}", ends_s.pop(0), "user", {"logicalCluster": "lkc-1"}

    login = login_of(TOKENS | {"oauth_cb": token, "sasl.oauthbearer.config": "scope=x"})
    assert repr(login) == "Login(OAUTHBEARER, '')"
    first = b"n,,\1auth=Bearer t3\1logicalCluster=lkc-1\1\1"
    assert [list(exchange(login)) for _ in range(2)] == [[first]] * 2
    assert configs == ["scope=x"]

    login = login_of(TOKENS | {"oauth_cb": token})
    assert [next(exchange(login))[16:18] for _ in range(2)] == [b"t2", b"t1"]
    assert configs == ["scope=x", None, None]


def test_a_token_that_there_is_not_or_that_is_not_taken() -> None:
    messages = exchange(login_of(TOKENS | {"oauth_cb": lambda _: ("t", time.time() + 60)}))
    next(messages)
    with pytest.raises(LoginError, match=r'does not take the token: \{"status":"invalid_token"\}'):
        messages.send(b'{"status":"invalid_token"}')
    with pytest.raises(LoginError, match="oauth_cb=json:loads gave no token: JSONDecodeError"):
        next(exchange(login_of(TOKENS | {"oauth_cb": TokenFunction("json:loads"), "sasl.oauthbearer.config": ""})))
    with pytest.raises(LoginError, match="oauth_cb gave no token: TypeError"):
        next(exchange(login_of(TOKENS | {"oauth_cb": lambda _: None})))


def test_a_token_that_has_ended_on_its_way_goes_for_a_new_one() -> None:
    """The broker's clock, or a busy machine: its last fifth was too little."""
    made = iter(("first", "second"))
    login = login_of(TOKENS | {"oauth_cb": lambda _: (next(made), time.time() + 60)})
    assert list(exchange(login))
    again = exchange(login)
    next(again)
    with pytest.raises(ConnectionError, match="does not take the token"):
        again.send(b'{"status":"invalid_token"}')
    new = exchange(login)
    assert b"second" in next(new)
    with pytest.raises(LoginError):
        new.send(b'{"status":"invalid_token"}')


def test_who_gives_tokens_may_be_away_later() -> None:
    """As by librdkafka, which asks again."""
    given = iter((time.time(), None, time.time() + 60))  # the second time it fails

    def token(_: object) -> tuple[str, float]:
        if (ends_s := next(given)) is None:
            raise TimeoutError("the service of tokens")
        return "token", ends_s

    login = login_of(TOKENS | {"oauth_cb": token})
    assert list(exchange(login))
    with pytest.raises(ConnectionError, match="oauth_cb gave no token: TimeoutError: the service of tokens"):
        next(exchange(login))
    assert list(exchange(login))


@pytest.mark.parametrize(
    ("settings", "says"),
    [
        (TOKENS | {"sasl.oauthbearer.method": "oidc", "sasl.oauthbearer.scope": "x"}, "oauth_cb is missing: keylane's"),
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
