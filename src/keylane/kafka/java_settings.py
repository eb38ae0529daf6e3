"""Settings by the names of Kafka's Java clients, as librdkafka's: what Spark users write after `kafka.`.

The idea: most names are the same in both. A few have another name, a few say nothing here, and the rest is refused with
what to write instead; a setting is never ignored in silence because librdkafka refuses names that it does not know.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from keylane.errors import UsageError
from keylane.telling import shown

if TYPE_CHECKING:
    from collections.abc import Mapping

RENAMED = {
    "fetch.max.wait.ms": "fetch.wait.max.ms",
    "max.request.size": "message.max.bytes",
    "receive.buffer.bytes": "socket.receive.buffer.bytes",
    "send.buffer.bytes": "socket.send.buffer.bytes",
    "socket.connection.setup.timeout.max.ms": "socket.connection.setup.timeout.ms",
    "ssl.truststore.certificates": "ssl.ca.pem",
    "ssl.keystore.certificate.chain": "ssl.certificate.pem",
    "ssl.keystore.key": "ssl.key.pem",
}

WITHOUT_MEANING = frozenset({"max.poll.records", "buffer.memory", "max.block.ms", "exclude.internal.topics"})
"""Sizes of the Java client's own buffers: taken, and of no effect."""

REFUSED = {
    "ssl.keystore.location": "give PEM files: kafka.ssl.certificate.location and kafka.ssl.key.location",
    "ssl.truststore.password": "give a PEM file: kafka.ssl.ca.location",
    "ssl.keystore.password": "give PEM files: kafka.ssl.certificate.location and kafka.ssl.key.location",
    "sasl.login.callback.handler.class": "Java classes cannot be called here",
    "sasl.client.callback.handler.class": "Java classes cannot be called here",
}

_JAAS = re.compile(r"(?P<module>[\w.]+)\s+required\b(?P<options>.*?);?\s*", re.DOTALL)
_JAAS_OPTION = re.compile(r"""([\w.]+)\s*=\s*(?:"((?:[^"\\]|\\.)*)"|'([^']*)'|([^\s;]+))""")
_WITH_PASSWORD = ("PlainLoginModule", "ScramLoginModule")


def translate(java: Mapping[str, str]) -> dict[str, str]:
    """The same settings for librdkafka. Raises `UsageError` for those that have no counterpart."""
    settings: dict[str, str] = {}
    for name, value in java.items():
        if name in WITHOUT_MEANING:
            continue
        if name in REFUSED:
            raise UsageError(f"kafka.{name}={shown(name, value)} is of the Java client only: {REFUSED[name]}")
        if name == "sasl.jaas.config":
            settings |= _jaas(value)
        elif name == "ssl.truststore.location":
            settings["ssl.ca.location"] = _pem(value, java.get("ssl.truststore.type", ""))
        elif name in ("ssl.truststore.type", "ssl.keystore.type"):
            if value.upper() != "PEM":
                raise UsageError(f"kafka.{name}={value!r}: Java key stores cannot be read here; convert it to PEM")
        else:
            settings[RENAMED.get(name, name)] = value
    return settings


def _pem(location: str, kind: str) -> str:
    if kind.upper() == "PEM" or (not kind and location.endswith((".pem", ".crt", ".cer"))):
        return location
    raise UsageError(
        f"kafka.ssl.truststore.location={location!r}: Java key stores cannot be read here; convert it to PEM and set "
        "kafka.ssl.ca.location"
    )


def _jaas(text: str) -> dict[str, str]:
    """User name and password of `org.apache.kafka…PlainLoginModule required username="…" password="…";`."""
    found = _JAAS.fullmatch(text.strip())
    if found is None or not found["module"].endswith(_WITH_PASSWORD):
        raise UsageError(
            "kafka.sasl.jaas.config: only PlainLoginModule and ScramLoginModule are translated; set librdkafka's "
            "kafka.sasl.* settings instead"
        )
    options = {name: _unescaped(a) if a else b or c for name, a, b, c in _JAAS_OPTION.findall(found["options"])}
    if not {"username", "password"} <= options.keys():
        raise UsageError("kafka.sasl.jaas.config names no username and password")
    return {"sasl.username": options["username"], "sasl.password": options["password"]}


def _unescaped(quoted: str) -> str:
    return re.sub(r"\\(.)", r"\1", quoted)
