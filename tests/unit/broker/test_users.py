from __future__ import annotations

import json
from contextlib import suppress
from typing import TYPE_CHECKING

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from keylane.broker.scram import has_password
from keylane.broker.users import UsersFile, add_user, read_users, remove_user, users_of
from keylane.errors import UsageError

if TYPE_CHECKING:
    from pathlib import Path


def test_a_user_is_added_changed_and_removed_and_the_file_holds_no_password(tmp_path: Path) -> None:
    path = tmp_path / "users.json"
    assert add_user(path, "alice", "wonderland")
    assert not add_user(path, "alice", "looking-glass")
    assert add_user(path, "bob, the second=", "builder")
    assert path.stat().st_mode & 0o777 == 0o600
    assert "looking" not in path.read_text()
    users = read_users(path)
    assert sorted(users) == ["alice", "bob, the second="]
    for mechanism, credential in users["alice"].items():
        assert has_password(mechanism, credential, "looking-glass")
        assert not has_password(mechanism, credential, "wonderland")
    remove_user(path, "alice")
    assert list(read_users(path)) == ["bob, the second="]
    assert [file.name for file in tmp_path.iterdir()] == ["users.json"]


def test_a_running_broker_sees_changes_at_once(tmp_path: Path) -> None:
    path = tmp_path / "users.json"
    add_user(path, "alice", "wonderland")
    users = UsersFile(str(path))
    first = users.credential("SCRAM-SHA-512", "bob")
    assert not has_password("SCRAM-SHA-512", first, "builder")
    assert users.credential("SCRAM-SHA-512", "bob").salt == first.salt, "nobody learns that there is no bob"
    assert users.credential("SCRAM-SHA-256", "bob").salt != first.salt, "as with who is there"
    add_user(path, "bob", "builder")
    assert users.names() == ["alice", "bob"]
    assert has_password("SCRAM-SHA-512", users.credential("SCRAM-SHA-512", "bob"), "builder")


@pytest.mark.parametrize(
    ("content", "says"),
    [
        ("{", "does not hold users"),
        ("[1]", "not a keylane users file"),
        ('{"alice": {}}', "does not hold users"),
        ('{"alice": {"SCRAM-SHA-256": "salt=!", "SCRAM-SHA-512": "x"}}', "does not hold users"),
    ],
)
def test_what_is_no_users_file_is_named(tmp_path: Path, content: str, says: str) -> None:
    path = tmp_path / "users.json"
    path.write_text(content)
    path.chmod(0o600)
    with pytest.raises(UsageError, match=says):
        read_users(path)
    with pytest.raises(UsageError, match=says):
        add_user(path, "bob", "builder")
    assert path.read_text() == content
    assert len(list(tmp_path.iterdir())) == 1


def test_refusals(tmp_path: Path) -> None:
    path = tmp_path / "users.json"
    with pytest.raises(UsageError, match="No such file or directory; make it with `keylane broker users add`"):
        UsersFile(str(path))
    for name, password in (("", "x"), ("a\nb", "x"), ("a" * 256, "x"), ("alice", ""), ("alice", "a\0b")):
        with pytest.raises(UsageError, match="give"):
            add_user(path, name, password)
    add_user(path, "alice", "wonderland")
    with pytest.raises(UsageError, match="there is no user 'bob'"):
        remove_user(path, "bob")
    path.chmod(0o640)
    with pytest.raises(UsageError, match=r"mode 0640\); run: chmod 600"):
        UsersFile(str(path))
    path.chmod(0o600)
    path.with_name("users.json.tmp").touch()
    with pytest.raises(UsageError, match="another command changes the users"):
        add_user(path, "bob", "builder")
    with pytest.raises(UsageError, match="No such file or directory"):
        add_user(tmp_path / "nowhere" / "users.json", "bob", "builder")


def test_no_altered_byte_is_believed_and_a_file_without_a_checksum_is_read(tmp_path: Path) -> None:
    path = tmp_path / "users.json"
    add_user(path, "alice", "wonderland")
    sound = path.read_bytes()
    users = read_users(path)
    for position in range(len(sound)):
        for mask in (1 << position % 8, 0xFF):
            path.write_bytes(sound[:position] + bytes([sound[position] ^ mask]) + sound[position + 1 :])
            with pytest.raises(UsageError, match=str(path)):
                read_users(path)
    path.write_bytes(sound.partition(b"\n")[2])
    assert read_users(path) == users
    remove_user(path, "alice")
    assert path.read_bytes().startswith(b"keylane users 1 ")


TEXTS = st.text(max_size=5) | st.sampled_from(["salt=AA==,stored_key=AA==,server_key=AA==,iterations=8192", "salt=A"])
ANY_JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | TEXTS,
    lambda inner: (
        st.lists(inner, max_size=2)
        | st.dictionaries(TEXTS | st.sampled_from(["SCRAM-SHA-256", "SCRAM-SHA-512"]), inner, max_size=3)
    ),
    max_leaves=6,
)


@given(st.binary(max_size=60) | ANY_JSON.map(lambda value: json.dumps(value).encode()))
@example(b'{"alice":' + b"[" * 100_000)
@example(b'{"alice": {"SCRAM-SHA-256": "iterations=' + b"9" * 10_000 + b'"}}')
@example(b'{"\\ud800": {}}')
def test_whatever_a_users_file_holds_it_is_read_or_refused(data: bytes) -> None:
    with suppress(UsageError):
        users = users_of(data)
        assert all(row.keys() == {"SCRAM-SHA-256", "SCRAM-SHA-512"} for row in users.values())
