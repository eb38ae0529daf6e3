"""`EmbeddedBroker`: keylane's broker inside a test, on a thread of its own, in a folder that goes with it.

The idea: the real broker (its storage, its coordinator, its handlers) on an event loop that only this thread runs, so
that synchronous and asynchronous tests of any client can use it. Nothing is synced to the disk, because nothing of it
is to outlive the test; everything else is as in `keylane broker`.
"""

from __future__ import annotations

import asyncio
import shutil
import tempfile
import threading
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self, TypeVar

from keylane.broker.config import parse_config
from keylane.broker.security import secure
from keylane.broker.topics import check_topic_name
from keylane.broker.users import add_user
from keylane.errors import PeerError, UsageError
from keylane.storage.filesystem import OsAppendFile, OsFileSystem
from keylane.testing.clock import MovableClock
from keylane.testing.faults import Disconnect, Fault, Faults

if TYPE_CHECKING:
    from collections.abc import Coroutine, Mapping, Sequence
    from datetime import timedelta
    from types import TracebackType

    from keylane.broker.node import Node
    from keylane.broker.server import BrokerServer
    from keylane.storage.filesystem import AppendFile

_T = TypeVar("_T")


class EmbeddedBroker:
    """A broker for tests: `with EmbeddedBroker(topics={"orders": 4}) as kafka: …`, or `async with`.

    Thread safety: any thread may call `create_topics`, `fault` and `clear_faults`; one thread starts and stops it, and
    moves its clock.
    """

    def __init__(
        self,
        *,
        topics: Mapping[str, int] | None = None,
        settings: Mapping[str, str] | None = None,
        users: Mapping[str, str] | None = None,
    ) -> None:
        """`topics` are made at the start, with so many partitions each. `settings` are broker options under Kafka's
        names. With `users` (name to password) clients have to authenticate (`SASL_PLAINTEXT`, unless `listeners` says
        `SASL_SSL`). Raises `UsageError`."""
        self._topics = dict(topics or {})
        self._settings = dict(settings or {})
        self._users = dict(users or {})
        self._port = 0
        self._folder: str | None = None
        self._faults = Faults()
        self._clock = MovableClock()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._thread: threading.Thread | None = None
        self._node: Node | None = None
        self._is_stopping: asyncio.Event | None = None
        if self._users and "listeners" not in self._settings:
            self._settings["listeners"] = "SASL_PLAINTEXT://127.0.0.1:0"

    @property
    def bootstrap_servers(self) -> str:
        """`127.0.0.1:PORT`, once it runs; the same after a stop and another start."""
        if not self._port:
            raise UsageError("the broker was not started yet: use it in a `with` block")
        return f"127.0.0.1:{self._port}"

    def start(self) -> None:
        """Returns when clients can connect. Raises `UsageError` for wrong settings, and `PeerError`."""
        if self._thread is not None:
            raise UsageError("the broker runs already")
        if self._folder is None:
            self._folder = tempfile.mkdtemp(prefix="keylane-broker-")
        try:
            self._start(self._folder)
        except BaseException:
            if not self._port:
                self.close()
            raise

    def stop(self) -> None:
        """Clients are disconnected; `start` brings it back with its data on the same port."""
        if self._thread is None:
            return
        assert self._loop is not None
        assert self._is_stopping is not None
        self._loop.call_soon_threadsafe(self._is_stopping.set)
        self._thread.join()
        self._thread = self._loop = self._node = None

    def close(self) -> None:
        """Stop it for good; its data goes."""
        self.stop()
        if self._folder is not None:
            shutil.rmtree(self._folder)
            self._folder = None

    def create_topics(self, topics: Mapping[str, int]) -> None:
        """Make topics with so many partitions each. Raises `UsageError` for a name that is wrong or taken."""
        self._call(self._create(topics))

    def fault(
        self,
        api: str,
        *,
        client_id: str | None = None,
        group: str | None = None,
        times: int | None = 1,
        delay_ms: int = 0,
        error: str | int | None = None,
        disconnect: Disconnect | None = None,
    ) -> Fault:
        """Let the next `times` requests of an API (None: all until `remove()`), by Kafka's name, meet a fault.

        Of the client with this `client_id` only, if one is given, and only requests that name this `group`. The request
        is answered `delay_ms` late; instead of being handled it is answered with `error`, one of Kafka's codes by name
        (`NOT_LEADER_OR_FOLLOWER`) or number; the client is disconnected `"before"` its request is handled, or
        `"after"`: then the answer is lost, and what it asked for is done. Faults are met in the order in which they
        were added. Raises `UsageError`.
        """
        return self._faults.add(
            api,
            client_id=client_id,
            group=group,
            times=times,
            delay_ms=delay_ms,
            error=error,
            disconnect=disconnect,
        )

    def clear_faults(self) -> None:
        """Remove all faults."""
        self._faults.clear()

    @property
    def now_ms(self) -> int:
        """The broker's time, in milliseconds since the epoch."""
        return self._clock.now_ms()

    def advance_clock(self, by: timedelta) -> None:
        """Let that much time pass for the broker, at once; on return everything is gone that is too old by then.

        Sessions, rebalances, transactions and locks that are due by then have ended; records, offsets, groups and
        producers beyond their retention are removed. Clients keep their own clocks: to the broker, they were silent for
        that time. It may be stopped meanwhile. Raises `UsageError`.
        """
        if self._loop is None:
            self._clock.move(by)
        else:
            self._call(self._advance(by))

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()

    async def __aenter__(self) -> Self:
        await asyncio.to_thread(self.start)
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        await asyncio.to_thread(self.close)

    def _start(self, folder: str) -> None:
        if self._users and "keylane.users.file" not in self._settings:
            path = Path(folder) / "users.json"
            for name, password in self._users.items():
                add_user(path, name, password)
            self._settings["keylane.users.file"] = str(path)
        is_up = threading.Event()
        failures: list[BaseException] = []

        def run() -> None:
            try:
                with asyncio.Runner(loop_factory=self._clock.new_loop) as runner:
                    runner.run(self._serve(f"{folder}/data", is_up))
            except BaseException as error:
                failures.append(error)
            finally:
                is_up.set()

        self._thread = threading.Thread(target=run, name="keylane-broker", daemon=True)
        self._thread.start()
        is_up.wait()
        if failures:
            self._thread.join()
            self._thread = self._loop = self._node = None
            raise failures[0]

    async def _serve(self, path: str, is_up: threading.Event) -> None:
        from keylane.broker.dispatch import load_apis
        from keylane.broker.node import Node
        from keylane.broker.server import BrokerServer
        from keylane.broker.share_letters import begin_letters

        config = parse_config(self._settings)
        listener = config.listener(None, self._port)
        security = secure(config, listener, self._clock.now_ms)
        node = await Node.open(_UnsyncedFileSystem(), path, config, self._clock.now_ms)
        try:
            self._loop, self._node, self._is_stopping = asyncio.get_running_loop(), node, asyncio.Event()
            await self._create({name: count for name, count in self._topics.items() if not node.topics.exists(name)})
            begin_letters(node)
            server = BrokerServer(node, self._faults.wrap(load_apis()), security)
            await self._listen(server, node, listener.host, listener.port)
            is_up.set()
            await self._is_stopping.wait()
            await server.stop()
        finally:
            await node.close()

    async def _listen(self, server: BrokerServer, node: Node, host: str, port: int) -> None:
        try:
            _, self._port = await server.start(host, port)
        except OSError as error:
            raise PeerError(f"cannot listen on {host}:{port}: {error.strerror or error}") from error
        node.host, node.port = node.config.advertised_address() or (host, self._port)

    async def _create(self, topics: Mapping[str, int]) -> None:
        assert self._node is not None
        for name, count in topics.items():
            check_topic_name(name)
            if count < 1:
                raise UsageError(f"topic {name!r} with {count} partitions: give at least 1")
            try:
                await self._node.topics.create(name, count)
            except FileExistsError as error:
                raise UsageError(str(error)) from None

    async def _advance(self, by: timedelta) -> None:
        assert self._node is not None
        self._clock.move(by)
        loop = asyncio.get_running_loop()
        are_awake = loop.create_future()
        loop.call_at(loop.time(), are_awake.set_result, None)  # after all timers that were due before
        await are_awake
        await self._node.check_ages()

    def _call(self, work: Coroutine[Any, Any, _T]) -> _T:
        if self._loop is None:
            work.close()
            raise UsageError("the broker does not run: use it in a `with` block")
        return asyncio.run_coroutine_threadsafe(work, self._loop).result()


class _UnsyncedFile(OsAppendFile):
    def sync(self) -> None:
        """Nothing: the folder is a test's."""


class _UnsyncedFileSystem(OsFileSystem):
    """The operating system's, without its durability."""

    def open_append(self, path: str) -> AppendFile:
        return _UnsyncedFile(path, self._full_disk)

    def _sync_fd(self, fd: int) -> None:
        """Nothing."""

    def sync_dir(self, path: str) -> None:
        """Nothing."""

    def sync_all(self, files: Sequence[str], folders: Sequence[str]) -> None:
        """Nothing."""
