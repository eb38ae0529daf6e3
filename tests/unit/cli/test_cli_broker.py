from __future__ import annotations

import io
from typing import TYPE_CHECKING

from keylane.broker.scram import has_password
from keylane.broker.users import read_users
from keylane.cli.main import main

if TYPE_CHECKING:
    from pathlib import Path

    import pytest


def stdin(monkeypatch: pytest.MonkeyPatch, text: str, *, is_terminal: bool = False) -> None:
    stream = io.StringIO(text)
    monkeypatch.setattr(stream, "isatty", lambda: is_terminal, raising=False)
    monkeypatch.setattr("sys.stdin", stream)


def test_users_are_managed_without_a_password_on_the_command_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    file = str(tmp_path / "users.json")
    for name, password, says in (
        ("alice", "wonder land \n", "alice: added"),
        ("bob", "builder", "bob: added"),
        ("alice", "looking-glass\n", "alice: has a new password"),
    ):
        stdin(monkeypatch, password)
        assert main(["broker", "users", "add", file, name]) == 0
        assert capsys.readouterr().out == f"{says}\n"
    assert main(["broker", "users", "list", file]) == 0
    assert capsys.readouterr().out == "alice\nbob\n"
    assert main(["broker", "users", "remove", file, "bob"]) == 0
    users = read_users(tmp_path / "users.json")
    assert list(users) == ["alice"]
    assert has_password("SCRAM-SHA-512", users["alice"]["SCRAM-SHA-512"], "looking-glass")


def test_a_password_is_typed_twice(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "users.json"
    typed = iter(["one", "two", "one", "one"])
    monkeypatch.setattr("getpass.getpass", lambda _: next(typed))
    stdin(monkeypatch, "", is_terminal=True)
    assert main(["broker", "users", "add", str(file), "alice"]) == 2
    assert "the two passwords differ" in capsys.readouterr().err
    assert not file.exists()
    assert main(["broker", "users", "add", str(file), "alice"]) == 0
    assert has_password("SCRAM-SHA-256", read_users(file)["alice"]["SCRAM-SHA-256"], "one")


def test_an_empty_password_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    stdin(monkeypatch, "\n")
    assert main(["broker", "users", "add", str(tmp_path / "users.json"), "alice"]) == 2
    assert "the password is empty" in capsys.readouterr().err
