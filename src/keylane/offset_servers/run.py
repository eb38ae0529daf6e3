"""An offset server as a process: its arguments, its start, the line that says it is ready, and its end."""

from __future__ import annotations

import asyncio
import sys
from contextlib import ExitStack
from dataclasses import replace
from typing import TYPE_CHECKING, NamedTuple

from keylane.broker.config import kafka_name, parse_config
from keylane.broker.run import allow_many_files, collect_less_often, leave_hypothesis_out, told_to_stop
from keylane.broker.security import secure
from keylane.errors import UsageError
from keylane.kafka.admin import Admin
from keylane.kafka.login import Login, login_of
from keylane.offset_servers.topic import prepare
from keylane.storage.filesystem import now_ms
from keylane.telling import logger_of

if TYPE_CHECKING:
    from collections.abc import Mapping

    from keylane.broker.config import BrokerConfig, Listener

logger = logger_of("keylane.offsets")

DEFAULT_LISTENER = "PLAINTEXT://127.0.0.1:9192"
PARTITIONS = kafka_name("offsets_topic_num_partitions")


class Arguments(NamedTuple):
    """Of `keylane offsets serve`."""

    log: Mapping[str, str]
    """librdkafka's settings for the log's cluster."""
    servers: Mapping[str, str] | None
    """The same for the other servers."""
    listen: str | None
    """`HOST:PORT`, or `PROTOCOL://HOST:PORT`."""
    advertise: str | None
    """`HOST:PORT`."""
    settings: Mapping[str, str]
    """Under Kafka's names, as those of the embedded broker."""
    topic: str
    group: str
    is_replicated: bool
    """Whether the topic must be safe from the loss of a node."""
    until_stdin_ends: bool
    metrics_port: int | None = None
    """Where `/metrics` is served, with `/healthz` and `/readyz`; 0: a free port. None: nowhere."""
    metrics_host: str = "127.0.0.1"


def config_of(arguments: Arguments) -> BrokerConfig:
    """Raises `UsageError`."""
    settings = dict(arguments.settings)
    for name, value in (("listeners", arguments.listen), ("advertised.listeners", arguments.advertise)):
        if value is not None and name in settings:
            raise UsageError(f"{name} is set, and so is --{'listen' if name == 'listeners' else 'advertise'}: give one")
    if arguments.listen is not None:
        settings["listeners"] = arguments.listen if "://" in arguments.listen else f"PLAINTEXT://{arguments.listen}"
    settings.setdefault("listeners", DEFAULT_LISTENER)
    if arguments.advertise is not None:
        protocol = settings["listeners"].partition("://")[0]
        settings["advertised.listeners"] = f"{protocol}://{arguments.advertise}"
    config = parse_config(settings)
    if config.listener().port == 0:
        raise UsageError(f"listeners={config.listener()}: give a port: the next ones are for the log's brokers")
    return config


def login_at_servers(settings: Mapping[str, str] | None, listener: Listener) -> Login | None:
    """How a server logs in at the others, which listen as it does; None where it cannot. Raises `UsageError`."""
    if settings is None:
        if listener.has_tls or listener.has_sasl:
            logger.warning(
                "requests for groups of other servers are not forwarded: %s needs --servers-config for that", listener
            )
            return None
        return Login()
    login = login_of(settings)
    if (login.tls is not None, login.mechanism is not None) != (listener.has_tls, listener.has_sasl):
        protocol = settings.get("security.protocol", "plaintext")
        raise UsageError(
            f"--servers-config says security.protocol={protocol}, and the servers listen with {listener.protocol}: "
            f"give security.protocol={listener.protocol.lower()}"
        )
    return login


def serve(arguments: Arguments) -> None:
    """Serve until a signal. Raises `UsageError` and `PeerError`."""
    config = config_of(arguments)
    leave_hypothesis_out()
    asyncio.run(_serve(arguments, config))


async def _serve(arguments: Arguments, config: BrokerConfig) -> None:
    stop = told_to_stop(until_stdin_ends=arguments.until_stdin_ends)
    failures: list[Exception] = []

    def fail(error: Exception) -> None:
        failures.append(error)
        stop.set()

    allow_many_files()

    from keylane.offset_servers.serving import OffsetServer, Places

    if arguments.metrics_port is not None:
        from keylane.offset_servers.pages import serve_metrics  # needs the extra `metrics`: told before anything begins

    listener = config.listener()
    security = secure(config, listener, now_ms)
    servers = login_at_servers(arguments.servers, listener)
    collect_less_often()
    partitions = config.offsets_topic_num_partitions if PARTITIONS in arguments.settings else None
    admin = Admin(arguments.log)
    topic = await asyncio.to_thread(prepare, admin, arguments.topic, partitions, is_replicated=arguments.is_replicated)
    config = replace(
        config,
        offsets_topic_num_partitions=topic.partitions,
        message_max_bytes=min(config.message_max_bytes, topic.max_message_bytes),
    )
    listen = (listener.host, listener.port)
    places = Places(listen, config.advertised_address() or listen)
    server = OffsetServer(config, security, places, topic, arguments.log, servers, arguments.group, fail)
    with ExitStack() as pages:
        try:
            await server.start()
            host, port = places.advertised
            log = f"{topic.name}: {topic.partitions} partitions"
            sys.stdout.write(f"keylane offset server ready on {host}:{port} ({log})\n")
            if arguments.metrics_port is not None:
                where = arguments.metrics_host
                served = pages.enter_context(serve_metrics(server.state, arguments.metrics_port, where))
                sys.stdout.write(f"metrics at http://{where}:{served.port}/metrics\n")
            sys.stdout.flush()
            await stop.wait()
        finally:
            await server.stop()
    if failures:
        raise failures[0]
