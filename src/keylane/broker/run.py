"""A broker as a process: its arguments, its start, the line that says it is ready, and its end.

`keylane broker` and `python -m keylane.broker` both come here. Nothing heavy is imported, because a broker has to be
ready within half a second of its start.
"""

from __future__ import annotations

import asyncio
import contextlib
import gc
import logging
import os
import resource
import signal
import sys
from asyncio.sslproto import SSLProtocol
from pathlib import Path
from typing import TYPE_CHECKING

from keylane.broker.config import DEFAULT_HOST, DEFAULT_PORT, BrokerConfig, parse_config, parse_properties
from keylane.errors import ERROR_PREFIX, DataFolderError, KeylaneError, PeerError, UsageError
from keylane.telling import logger_of

if TYPE_CHECKING:
    import argparse
    from collections.abc import Iterator

    from keylane.broker.node import Node

TLS_BUFFER_BYTES = 64 * 1024
"""That asyncio keeps for each connection with TLS, an idle one too: of its 256 KiB ten thousand take 3 GB."""
EXIT_FAILURE = 1
EXIT_USAGE = 2

logger = logger_of("keylane.broker")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The arguments of a broker, with `run` as `func`."""
    parser.add_argument("--data-dir", metavar="DIR", help="where all data is kept; made when it is missing (required)")
    parser.add_argument(
        "--ephemeral",
        action="store_true",
        help="in place of --data-dir: a new folder in the system's temporary one, removed when the broker stops",
    )
    where = "default: the one of the option listeners, else"
    parser.add_argument("--host", help=f"address to listen on ({where} {DEFAULT_HOST})")
    parser.add_argument("--port", type=int, help=f"port to listen on; 0 takes a free one ({where} {DEFAULT_PORT})")
    parser.add_argument("--config", metavar="FILE", help="properties file with options under Kafka's names")
    parser.add_argument(
        "--set",
        action="append",
        default=[],
        metavar="NAME=VALUE",
        dest="settings",
        help="one option under Kafka's name, such as num.partitions=8; may be repeated, and wins over --config",
    )
    parser.add_argument(
        "--until-stdin-ends",
        action="store_true",
        help="stop when standard input ends: for a program that must not leave its broker behind",
    )
    parser.add_argument(
        "--print-bootstrap",
        action="store_true",
        help="print HOST:PORT alone when it is ready, for bootstrap.servers of a program that starts it",
    )
    parser.set_defaults(func=run)


def run(arguments: argparse.Namespace) -> int:
    """Run a broker until it is told to stop; the exit code of the process."""
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(name)s: %(message)s", stream=sys.stderr)
    try:
        if arguments.data_dir is not None and arguments.ephemeral:
            raise UsageError(f"--data-dir {arguments.data_dir} and --ephemeral: give one of them")
        if arguments.data_dir is None and not arguments.ephemeral:
            raise UsageError("--data-dir is missing: give the folder where all data is kept, or --ephemeral for none")
        config = parse_config(settings_of(arguments))
        if not 0 <= (arguments.port or 0) < 65_536:
            raise UsageError(f"--port {arguments.port}: give a number from 0 (a free port) to 65535")
        leave_hypothesis_out()
        with _data_folder(arguments) as path:
            SSLProtocol.max_size = TLS_BUFFER_BYTES
            asyncio.run(_serve(arguments, path, config))
    except KeylaneError as error:
        sys.stderr.write(f"{ERROR_PREFIX}{error}\n")
        return EXIT_USAGE if isinstance(error, UsageError) else EXIT_FAILURE
    except KeyboardInterrupt:  # before the signal handlers were there
        return 128 + signal.SIGINT
    return 0


@contextlib.contextmanager
def _data_folder(arguments: argparse.Namespace) -> Iterator[str]:
    """The folder's path. Raises `DataFolderError`."""
    if arguments.data_dir is not None:
        yield str(Path(arguments.data_dir).absolute())
        return
    import tempfile

    try:
        folder = tempfile.TemporaryDirectory(prefix="keylane-broker-")
    except OSError as error:
        raise DataFolderError(f"--ephemeral: no temporary folder can be made: {error}") from error
    with folder as path:
        yield f"{path}/data"


def collect_less_often() -> None:
    """What a broker lets go of is freed by its reference counts; looking for cycles as often as Python does by default
    took a fifth of its time under thousands of small requests, and a third of the replay of new groups. What a request
    of many items makes is looked through in pieces: 250,000 objects at once hold everybody up for 75 ms."""
    gc.freeze()
    gc.set_threshold(10_000, 5, 2_000)


async def _freeze_when_loaded(node: Node) -> None:
    """Never look for cycles in what was loaded: with millions of groups that takes seconds."""
    with contextlib.suppress(DataFolderError):  # `Node` was told
        await node.coordinator.loaded()
        gc.freeze()


def leave_hypothesis_out() -> None:
    """kio registers its types with hypothesis wherever that is installed: 0.2 s that a broker does not need."""
    sys.modules.setdefault("hypothesis", None)  # type: ignore[arg-type]


def settings_of(arguments: argparse.Namespace) -> dict[str, str]:
    """What `--config` and `--set` say, under Kafka's names. Raises `UsageError`."""
    settings = {}
    if arguments.config is not None:
        try:
            text = Path(arguments.config).read_text()
        except (OSError, UnicodeDecodeError) as error:
            raise UsageError(f"--config {arguments.config}: {error}") from error
        settings = parse_properties(text, arguments.config)
    for text in arguments.settings:
        name, separator, value = text.partition("=")
        if not separator:
            raise UsageError(f"--set {text}: give NAME=VALUE, such as num.partitions=8")
        settings[name.strip()] = value.strip()
    return settings


async def _serve(arguments: argparse.Namespace, path: str, config: BrokerConfig) -> None:
    stop = told_to_stop(until_stdin_ends=arguments.until_stdin_ends)
    failures: list[DataFolderError] = []

    def fail(error: DataFolderError) -> None:
        failures.append(error)
        stop.set()

    allow_many_files()

    from keylane.broker.dispatch import load_apis
    from keylane.broker.node import Node
    from keylane.broker.security import secure
    from keylane.broker.server import BrokerServer
    from keylane.broker.share_letters import begin_letters
    from keylane.storage.filesystem import OsFileSystem, now_ms

    listener = config.listener(arguments.host, arguments.port)
    security = secure(config, listener, now_ms)
    collect_less_often()
    try:
        os.makedirs(os.path.dirname(path), exist_ok=True)  # noqa: PTH103, PTH120 - nothing runs yet that could wait
        node = await Node.open(OsFileSystem(), path, config, now_ms, fail)
    except OSError as error:
        raise DataFolderError(f"{path}: {error.strerror or error}: give a --data-dir that can be written") from error
    try:
        begin_letters(node)
        server = BrokerServer(node, load_apis(), security)
        try:
            host, port = await server.start(listener.host, listener.port)
        except OSError as error:
            raise PeerError(
                f"cannot listen on {listener.host}:{listener.port}: {error.strerror or error}; "
                "give another --port (0 takes a free one)"
            ) from error
        node.host, node.port = config.advertised_address() or (host, port)
        loop = asyncio.get_running_loop()
        beside = [loop.create_task(work) for work in (_freeze_when_loaded(node), node.backup_points.watch())]
        if arguments.print_bootstrap:
            sys.stdout.write(f"{node.host}:{node.port}\n")
        else:
            sys.stdout.write(f"keylane broker ready on {host}:{port} (data {path})\n")
        sys.stdout.flush()
        await stop.wait()
        for task in beside:
            task.cancel()
        await asyncio.wait(beside)
        await server.stop()
        if failures:
            raise failures[0]
    finally:
        await node.close()


def allow_many_files() -> None:
    """Every partition in use holds a file open: take as many as the system allows."""
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))


def told_to_stop(*, until_stdin_ends: bool) -> asyncio.Event:
    """Set by SIGTERM, by SIGINT, and on request by the end of standard input. In the event loop's thread. Raises
    `UsageError` for a standard input that cannot be watched."""
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop.set)
    if until_stdin_ends:
        _watch_stdin(loop, stop)
    return stop


def _watch_stdin(loop: asyncio.AbstractEventLoop, stop: asyncio.Event) -> None:
    fd = 0

    def readable() -> None:
        if not os.read(fd, 4_096):
            loop.remove_reader(fd)
            stop.set()

    try:
        loop.add_reader(fd, readable)
    except OSError as error:  # a file, /dev/null, or nothing at all
        raise UsageError(f"--until-stdin-ends needs a pipe or a terminal as standard input: {error}") from error
