"""Functions of tokens that a text names."""

from __future__ import annotations

import pickle
import sys
import time
from contextlib import suppress
from typing import TYPE_CHECKING, Any

import pytest
from confluent_kafka import KafkaError, KafkaException

from keylane.errors import UsageError
from keylane.kafka.faults import client_of
from keylane.kafka.token_function import TokenFunction

if TYPE_CHECKING:
    from pathlib import Path

MODULE = """
import time

def token(config):
    return config + "!", time.time() + 60

def milliseconds(config):
    return "x", 1000 * time.time()

def text(config):
    return "x"

def wrong(config):
    raise PermissionError("no role for this pod")

not_a_function = 7
"""


@pytest.fixture(autouse=True)
def module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    file = tmp_path / "tokens_of_a_user.py"
    file.write_text(MODULE)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, "tokens_of_a_user", raising=False)
    return file


def test_a_function_is_called_by_its_name_also_where_it_has_travelled() -> None:
    function = pickle.loads(pickle.dumps(TokenFunction("tokens_of_a_user:token")))
    assert function == TokenFunction("tokens_of_a_user:token")
    assert {function: 1}[TokenFunction("tokens_of_a_user:token")] == 1
    token, ends = function("config")
    assert token == "config!"
    assert time.time() < ends < time.time() + 61


@pytest.mark.parametrize(
    ("name", "says"),
    [
        ("tokens_of_a_user", "oauth_cb='tokens_of_a_user': give the function as module:function"),
        ("no_such_module:token", r"cannot be imported on .*No module named 'no_such_module'.*--py-files"),
        ("tokens_of_a_user:tokn", r"cannot be imported on .*has no attribute 'tokn'"),
        ("tokens_of_a_user:not_a_function", "is a value of type int: name a function"),
    ],
)
def test_what_is_no_function_is_refused(name: str, says: str) -> None:
    with pytest.raises(UsageError, match=says):
        TokenFunction(name)


def test_a_process_without_the_module_says_so(module: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    travelling = pickle.dumps(TokenFunction("tokens_of_a_user:token"))
    module.unlink()
    monkeypatch.delitem(sys.modules, "tokens_of_a_user")
    with pytest.raises(UsageError, match=r"oauth_cb='tokens_of_a_user:token' cannot be imported on .*--py-files"):
        pickle.loads(travelling)


@pytest.mark.parametrize(
    ("name", "says"),
    [
        ("milliseconds", r"says that its token ends at \d+.*: give seconds, not milliseconds"),
        ("text", r"returned a value of type str: return \(token, seconds since the epoch\)"),
    ],
)
def test_what_is_no_token_with_its_end_is_refused(name: str, says: str) -> None:
    with pytest.raises(UsageError, match=says):
        TokenFunction(f"tokens_of_a_user:{name}")("")


def test_what_a_function_raised_is_logged_and_is_the_error_of_the_client(caplog: pytest.LogCaptureFixture) -> None:
    """librdkafka tells only that no token came within 10 s."""

    def make(settings: dict[str, Any]) -> None:
        with suppress(PermissionError):
            settings["oauth_cb"]("")
        raise KafkaException(KafkaError(KafkaError.SASL_AUTHENTICATION_FAILED, "OAuth token not set"))

    says = "oauth_cb=tokens_of_a_user:wrong gave no token: PermissionError: no role for this pod"
    with pytest.raises(UsageError, match=says):
        client_of(make, {"oauth_cb": TokenFunction("tokens_of_a_user:wrong")})
    assert says in caplog.text
