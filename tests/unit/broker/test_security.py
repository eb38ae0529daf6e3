from __future__ import annotations

import ssl
from typing import TYPE_CHECKING

import pytest

from keylane.broker.config import parse_config
from keylane.broker.security import secure
from keylane.broker.sessions import SaslSession, Session
from keylane.broker.users import add_user
from keylane.errors import PeerError, UsageError

if TYPE_CHECKING:
    from pathlib import Path

    from conftest import Certificates
    from keylane.broker.security import Security


def secured(settings: dict[str, str], host: str | None = None) -> Security:
    config = parse_config(settings)
    return secure(config, config.listener(host), lambda: 0)


@pytest.mark.parametrize("host", ["127.0.0.1", "127.8.8.8", "::1", "localhost"])
def test_without_options_loopback_is_open(host: str) -> None:
    found = secured({}, host)
    assert (found.tls, found.frame_limit) == (None, None)
    assert type(found.new_session()) is Session


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "192.0.2.7"])
def test_strangers_are_refused_unless_they_are_allowed_by_name(host: str, caplog: pytest.LogCaptureFixture) -> None:
    settings = {"advertised.listeners": "PLAINTEXT://kafka:9092"}
    with pytest.raises(UsageError, match=r"can be reached by other machines.*keylane\.allow\.unauthenticated\.remote"):
        secured(settings, host)
    secured(settings | {"keylane.allow.unauthenticated.remote.clients": "true"}, host)
    assert "anyone who reaches this address may read, write and delete everything" in caplog.text


def test_with_authentication_strangers_may_come(
    tmp_path: Path, certificates: Certificates, caplog: pytest.LogCaptureFixture
) -> None:
    users = tmp_path / "users.json"
    add_user(users, "alice", "wonderland")
    tls = {"ssl.certificate.location": certificates.certificate, "ssl.key.location": certificates.key}
    sasl = {"keylane.users.file": str(users)}
    found = secured({"listeners": "SASL_SSL://192.0.2.7:9093", **tls, **sasl})
    assert isinstance(found.tls, ssl.SSLContext)
    assert isinstance(found.new_session(), SaslSession)
    assert caplog.text == ""
    secured({"listeners": "SASL_PLAINTEXT://192.0.2.7:9093", **sasl})
    assert "unencrypted, passwords of PLAIN among it" in caplog.text
    mutual = {"ssl.client.auth": "required", "ssl.ca.location": certificates.authority}
    found = secured({"listeners": "SSL://192.0.2.7:9093", **tls, **mutual})
    assert found.tls is not None
    assert found.tls.verify_mode == ssl.CERT_REQUIRED
    with pytest.raises(UsageError, match="can be reached by other machines"):
        secured({"listeners": "SSL://192.0.2.7:9093", **tls})


@pytest.mark.parametrize(
    ("settings", "says"),
    [
        ({"listeners": "SSL://:0"}, "ssl.certificate.location is missing"),
        (
            {"listeners": "SSL://:0", "ssl.certificate.location": "/nowhere"},
            "/nowhere: No such file or directory; give",
        ),
        ({"listeners": "SSL://:0", "ssl.certificate.location": __file__}, "PEM"),
        ({"ssl.certificate.location": "x"}, r"the listener is PLAINTEXT.*listeners=SSL://127\.0\.0\.1:9092"),
        ({"keylane.users.file": "x"}, r"listeners=SASL_PLAINTEXT://127\.0\.0\.1:9092"),
        ({"listeners": "SASL_PLAINTEXT://:0"}, r"keylane\.users\.file is missing"),
        ({"listeners": "SASL_PLAINTEXT://:0", "keylane.users.file": "/nowhere"}, "No such file"),
        ({"listeners": "PLAINTEXT://0.0.0.0:0"}, "say which one clients are to connect to"),
    ],
)
def test_what_is_missing_is_named(settings: dict[str, str], says: str) -> None:
    with pytest.raises(UsageError, match=says):
        secured(settings)


def test_wrong_values_are_named(tmp_path: Path, certificates: Certificates) -> None:
    tls = {
        "listeners": "SSL://:0",
        "ssl.certificate.location": certificates.certificate,
        "ssl.key.location": certificates.key,
    }
    for more, says in (
        ({"ssl.client.auth": "yes"}, "ssl.client.auth=yes: give none, requested, required"),
        ({"ssl.client.auth": "required"}, "ssl.ca.location is missing"),
        ({"ssl.ca.location": "/nowhere"}, "ssl.ca.location=/nowhere: No such file"),
        ({"ssl.key.location": certificates.strangers_key}, "KEY_VALUES_MISMATCH"),
    ):
        with pytest.raises(UsageError, match=says):
            secured(tls | more)
    users = tmp_path / "users.json"
    add_user(users, "alice", "wonderland")
    sasl = {"listeners": "SASL_PLAINTEXT://:0", "keylane.users.file": str(users)}
    with pytest.raises(UsageError, match=r"sasl\.enabled\.mechanisms=GSSAPI: give some of PLAIN"):
        secured(sasl | {"sasl.enabled.mechanisms": "GSSAPI"})
    with pytest.raises(PeerError, match=r"cannot listen on no\.such\.host\.invalid:9092"):
        secured({}, "no.such.host.invalid")
