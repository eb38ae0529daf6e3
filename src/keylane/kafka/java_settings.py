"""Settings by the names of Kafka's Java clients, as librdkafka's: what Spark users write after `kafka.`.

The idea: most names are the same in both. A few have another name, a few say nothing here, and the rest is refused with
what to write instead; a setting is never ignored in silence because librdkafka refuses names that it does not know.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

from keylane.errors import UsageError
from keylane.kafka import token_function
from keylane.kafka.token_function import TokenFunction
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

WITHOUT_MEANING = frozenset(
    {
        "max.poll.records", "buffer.memory", "max.block.ms", "exclude.internal.topics", "default.api.timeout.ms",
        "metric.reporters", "metrics.recording.level", "metrics.num.samples", "metrics.sample.window.ms",
        "leave.group.on.close", "metadata.max.idle.ms", "partitioner.adaptive.partitioning.enable",
        "partitioner.availability.timeout.ms", "ssl.secure.random.implementation", "ssl.trustmanager.algorithm",
        "ssl.keymanager.algorithm", "ssl.provider", "security.providers", "auto.include.jmx.reporter",
    }
)  # fmt: skip
"""Of the Java client's own buffers, calls, metrics and libraries: taken, and of no effect on what is read or written.
"""

OF_ANOTHER_CLIENT = {
    "schema.registry.url": "give it to what reads the values: keylane.schema, or your deserializer",
    "basic.auth.credentials.source": "give it to what reads the values: keylane.schema, or your deserializer",
    "basic.auth.user.info": "give it to what reads the values: keylane.schema, or your deserializer",
    "consumer.cache.timeout": "it is of Spark's own connector: leave it out",
}
"""What Java's client reads over, and would do nothing here either."""

ASSIGNORS = {"Range": "range", "RoundRobin": "roundrobin", "CooperativeSticky": "cooperative-sticky"}
"""Java's classes of assignors by what is before `Assignor`, and librdkafka's names."""

TOKENS = "for tokens, set kafka.sasl.mechanism=OAUTHBEARER and name a function by kafka.oauth_cb=module:function"

REFUSED = {
    "partitioner.class": "keys are placed as Java's clients place them; give rows a column partition for another place",
    "partitioner.ignore.keys": "keys are placed as Java's clients place them; give rows no key, or a column partition",
    "ssl.keystore.location": "give PEM files: kafka.ssl.certificate.location and kafka.ssl.key.location",
    "ssl.truststore.password": "give a PEM file: kafka.ssl.ca.location",
    "ssl.keystore.password": "give PEM files: kafka.ssl.certificate.location and kafka.ssl.key.location",
    "sasl.login.callback.handler.class": f"Java classes cannot be called here; {TOKENS}",
    "sasl.client.callback.handler.class": "Java classes cannot be called here",
}

_JAAS = re.compile(r"(?P<module>[\w.]+)\s+required\b(?P<options>.*?);?\s*", re.DOTALL)
_JAAS_OPTION = re.compile(r"""([\w.]+)\s*=\s*(?:"((?:[^"\\]|\\.)*)"|'([^']*)'|([^\s;]+))""")
_WITH_PASSWORD = ("PlainLoginModule", "ScramLoginModule")
_OTHER_MODULES = {
    "OAuthBearerLoginModule": "set kafka.sasl.oauthbearer.method=oidc, kafka.sasl.oauthbearer.token.endpoint.url, "
    "kafka.sasl.oauthbearer.client.id and kafka.sasl.oauthbearer.client.secret; "
    f"for tokens by a function of yours, {TOKENS}",
    "Krb5LoginModule": "set kafka.sasl.kerberos.keytab, kafka.sasl.kerberos.principal and "
    "kafka.sasl.kerberos.service.name",
    "IAMLoginModule": TOKENS,
}
"""Modules of JAAS whose settings have other names here."""


def translate(java: Mapping[str, str]) -> dict[str, Any]:
    """The same settings for librdkafka: texts, and the function that `oauth_cb` names. Raises `UsageError` for those
    that have no counterpart."""
    settings: dict[str, Any] = {}
    for name, value in java.items():
        if name in WITHOUT_MEANING or (name == "ssl.cipher.suites" and not value.strip()):
            continue
        if name in REFUSED:
            raise UsageError(f"kafka.{name}={shown(name, value)} is of the Java client only: {REFUSED[name]}")
        if name in OF_ANOTHER_CLIENT:
            raise UsageError(f"kafka.{name}={shown(name, value)} is no setting of a client: {OF_ANOTHER_CLIENT[name]}")
        settings |= _translated(name, value, java)
    return settings


def _translated(name: str, value: str, java: Mapping[str, str]) -> dict[str, Any]:
    match name:
        case token_function.SETTING:
            return {name: TokenFunction(value)}
        case "sasl.jaas.config":
            return _jaas(value)
        case "sasl.mechanism" | "sasl.mechanisms" if value.strip() == "AWS_MSK_IAM":
            raise UsageError(f"kafka.{name}={value!r} is of the Java client only: {TOKENS}")
        case "ssl.endpoint.identification.algorithm":
            return {name: value.strip().lower() or "none"}
        case "partition.assignment.strategy":
            return {name: ",".join(map(_assignor, value.split(",")))}
        case "max.request.size":
            return {"message.max.bytes": value}
        case "ssl.protocol" | "ssl.enabled.protocols":
            _check_tls(name, value)
            return {}
        case "ssl.truststore.location":
            return {"ssl.ca.location": _pem(value, java.get("ssl.truststore.type", ""))}
        case "ssl.truststore.type" | "ssl.keystore.type":
            if value.upper() != "PEM":
                raise UsageError(f"kafka.{name}={value!r}: Java key stores cannot be read here; convert it to PEM")
            return {}
    return {RENAMED.get(name, name): value}


def _assignor(name: str) -> str:
    """Of a class, `org.apache.kafka.clients.consumer.RangeAssignor`, or a name of librdkafka's own."""
    short = name.strip().rpartition(".")[2]
    if short in ASSIGNORS.values():
        return short
    if (found := ASSIGNORS.get(short.removesuffix("Assignor"))) is None:
        raise UsageError(
            f"kafka.partition.assignment.strategy={name.strip()!r} is of the Java client only: give "
            f"{', '.join(ASSIGNORS.values())}"
        )
    return found


def _check_tls(name: str, value: str) -> None:
    """OpenSSL takes the newest version that the broker has, from 1.2 on. Raises `UsageError` for older ones alone."""
    versions = {one.strip() for one in value.split(",")}
    if not versions & {"TLS", "TLSv1.2", "TLSv1.3"}:
        raise UsageError(f"kafka.{name}={value!r}: TLS 1.2 and 1.3 are spoken here: leave it out, or add TLSv1.2")


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
    module = "" if found is None else found["module"].rpartition(".")[2]
    if way_out := _OTHER_MODULES.get(module):
        raise UsageError(f"kafka.sasl.jaas.config: {module} is of the Java client only: {way_out}")
    if found is None or not module.endswith(_WITH_PASSWORD):
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
