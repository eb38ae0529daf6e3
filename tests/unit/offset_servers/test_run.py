"""How a server logs in at the others follows from how it listens, and from what it is given."""

from __future__ import annotations

import pytest

from keylane.broker.config import Listener
from keylane.errors import UsageError
from keylane.kafka.login import Login
from keylane.offset_servers.run import login_at_servers

SASL = {"security.protocol": "sasl_plaintext", "sasl.mechanism": "PLAIN", "sasl.username": "u", "sasl.password": "p"}


def test_without_tls_and_sasl_nothing_has_to_be_said() -> None:
    assert login_at_servers(None, Listener("PLAINTEXT", "h", 1)) == Login()
    assert login_at_servers({}, Listener("PLAINTEXT", "h", 1)) == Login()


def test_a_server_that_is_not_told_how_to_log_in_forwards_nothing_and_says_so(caplog: pytest.LogCaptureFixture) -> None:
    assert login_at_servers(None, Listener("SASL_PLAINTEXT", "h", 1)) is None
    assert "SASL_PLAINTEXT://h:1 needs --servers-config" in caplog.text


def test_the_protocol_is_the_listeners() -> None:
    login = login_at_servers(SASL, Listener("SASL_PLAINTEXT", "h", 1))
    assert login is not None
    assert login.username == "u"
    for settings, protocol in ((SASL, "PLAINTEXT"), (SASL, "SASL_SSL"), ({}, "SSL")):
        with pytest.raises(UsageError, match=f"listen with {protocol}: give security.protocol={protocol.lower()}"):
            login_at_servers(settings, Listener(protocol, "h", 1))
