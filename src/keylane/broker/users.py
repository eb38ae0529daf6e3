"""The users file: who may connect, and SCRAM credentials of theirs. No password is in it, nor can one be read from it.

A line with a checksum (files of the first keylanes have none), so that no altered credential is compared, and a JSON
object: `{"alice": {"SCRAM-SHA-256": "salt=…,stored_key=…,server_key=…,iterations=8192", …}, …}`; the text of a
credential is what Apache Kafka keeps of its users. The file is its owner's alone (mode 0600), is replaced as a whole,
and is read again when it has changed, so that a user added to a running broker can connect at once.
"""

from __future__ import annotations

import base64
import hmac
import json
import os
import secrets
import stat
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from keylane.broker.scram import Credential, credential_of
from keylane.errors import DataFolderError, UsageError
from keylane.foreign_json import has_shape, read_object
from keylane.storage.sealed import seal, unseal
from keylane.wire.scram import HASHES

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

ITERATIONS = 8_192
"""Kafka takes 4,096 to 16,384."""
SALT_BYTES = 24
MAX_NAME_CHARACTERS = 255
KIND = "users"

Users = dict[str, dict[str, Credential]]
"""By name, by mechanism."""


class UsersFile:
    """Credentials for a running broker. Raises `UsageError` for a file that cannot be read or that others can read."""

    def __init__(self, path: str) -> None:
        self._path = Path(path)
        self._secret = secrets.token_bytes(32)
        self._seen: tuple[int, int, int] | None = None
        self._users: Users = {}
        self.names()

    def names(self) -> list[str]:
        """Of all users, sorted."""
        self._refresh()
        return sorted(self._users)

    def credential(self, mechanism: str, user: str) -> Credential:
        """The user's; for a name that is unknown one that fits no password, the same one each time, so that nobody
        learns by asking which names there are."""
        self._refresh()
        found = self._users.get(user)
        if found is not None:
            return found[mechanism]
        salt = hmac.digest(self._secret, f"{mechanism} {user}".encode(), "sha256")[:SALT_BYTES]
        nothing = secrets.token_bytes(64)
        return Credential(salt, nothing[: 32 if mechanism == "SCRAM-SHA-256" else 64], nothing, ITERATIONS)

    def _refresh(self) -> None:
        try:
            found = self._path.stat()
        except OSError as error:
            raise UsageError(
                f"keylane.users.file={self._path}: {error.strerror}; make it with `keylane broker users add`"
            ) from None
        seen = (found.st_ino, found.st_size, found.st_mtime_ns)
        if seen != self._seen:
            self._users = read_users(self._path)
            self._seen = seen


def read_users(path: Path) -> Users:
    """All users of a file. Raises `UsageError`."""
    try:
        mode = stat.S_IMODE(path.stat().st_mode)
        data = path.read_bytes()
    except OSError as error:
        raise UsageError(f"users file {path}: {error.strerror}") from None
    if mode & 0o077:
        raise UsageError(f"users file {path}: others may read or write it (mode {mode:04o}); run: chmod 600 {path}")
    try:
        return users_of(data if data.startswith(b"{") else unseal(data, str(path), KIND))
    except DataFolderError as error:
        raise UsageError(f"users file {error}") from None
    except UsageError as error:
        raise UsageError(
            f"users file {path}: it does not hold users with a credential for {' and '.join(HASHES)}: {error}"
        ) from None


def users_of(data: bytes) -> Users:
    """All users of a file's JSON. Raises `UsageError`, for whatever bytes."""
    rows = read_object(data)
    if not has_shape(rows, dict[str, dict[str, str]]):
        raise UsageError("it is no table of texts")
    return {name: {mechanism: _credential(name, mechanism, row) for mechanism in HASHES} for name, row in rows.items()}


def add_user(path: Path, name: str, password: str) -> bool:
    """Add a user, or give one a new password; whether the name is new. Raises `UsageError`."""
    if not 0 < len(name) <= MAX_NAME_CHARACTERS or not name.isprintable():
        raise UsageError(f"user name {name!r}: give 1 to {MAX_NAME_CHARACTERS} printable characters")
    if not password or "\0" in password:
        raise UsageError("the password is empty or holds a NUL character: give another one")
    with _changing(path) as users:
        is_new = name not in users
        users[name] = {
            mechanism: credential_of(mechanism, password, secrets.token_bytes(SALT_BYTES), ITERATIONS)
            for mechanism in HASHES
        }
    return is_new


def remove_user(path: Path, name: str) -> None:
    """Connections that the user has stay until they are to authenticate again. Raises `UsageError`."""
    with _changing(path) as users:
        if name not in users:
            raise UsageError(f"users file {path}: there is no user {name!r}")
        del users[name]


@contextmanager
def _changing(path: Path) -> Iterator[Users]:
    """The users, to be changed in the block; then the file is replaced. Its temporary file keeps others out."""
    temporary = path.with_name(path.name + ".tmp")
    try:
        fd = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    except FileExistsError:
        raise UsageError(f"{temporary} is there: another command changes the users; else remove that file") from None
    except OSError as error:
        raise UsageError(f"users file {path}: {error.strerror}: {error.filename}") from None
    try:
        with os.fdopen(fd, "wb") as file:
            users = read_users(path) if path.exists() else {}
            yield users
            rows = {
                name: {mechanism: _credential_text(one) for mechanism, one in row.items()}
                for name, row in users.items()
            }
            file.write(seal(KIND, json.dumps(rows, indent=1, sort_keys=True).encode()))
            file.flush()
            os.fsync(file.fileno())
        temporary.rename(path)
    except BaseException:
        temporary.unlink()
        raise


def _credential_text(credential: Credential) -> str:
    salt, stored_key, server_key = (base64.b64encode(value).decode() for value in credential[:3])
    return f"salt={salt},stored_key={stored_key},server_key={server_key},iterations={credential.iterations}"


def _credential(name: str, mechanism: str, row: Mapping[str, str]) -> Credential:
    """Raises `UsageError`. What it holds is not shown: it is a secret."""
    try:
        fields = dict(piece.split("=", 1) for piece in row[mechanism].split(","))
        salt, stored_key, server_key = (
            base64.b64decode(fields[one], validate=True) for one in ("salt", "stored_key", "server_key")
        )
        return Credential(salt, stored_key, server_key, int(fields["iterations"]))
    except (ValueError, KeyError):
        raise UsageError(f"{mechanism} of {name!r} is missing, or no credential") from None
