"""The settings of librdkafka that are written often: for the name that may be meant when it does not know one.

The idea: librdkafka tells no list of its settings. One that is missing here is only not suggested.
"""

from __future__ import annotations

import re

from keylane.kafka.settings import CONSUMER_ONLY, PRODUCER_ONLY
from keylane.telling import did_you_mean

OF_BOTH = (
    "allow.auto.create.topics",
    "bootstrap.servers",
    "broker.address.family",
    "broker.address.ttl",
    "client.dns.lookup",
    "client.id",
    "client.rack",
    "connections.max.idle.ms",
    "debug",
    "enable.ssl.certificate.verification",
    "log_level",
    "max.in.flight.requests.per.connection",
    "message.max.bytes",
    "metadata.max.age.ms",
    "offsets.servers",
    "receive.message.max.bytes",
    "reconnect.backoff.max.ms",
    "reconnect.backoff.ms",
    "retry.backoff.max.ms",
    "retry.backoff.ms",
    "sasl.mechanism",
    "sasl.mechanisms",
    "sasl.oauthbearer.client.id",
    "sasl.oauthbearer.client.secret",
    "sasl.oauthbearer.method",
    "sasl.oauthbearer.scope",
    "sasl.oauthbearer.token.endpoint.url",
    "sasl.password",
    "sasl.username",
    "security.protocol",
    "socket.connection.setup.timeout.ms",
    "socket.keepalive.enable",
    "socket.nagle.disable",
    "socket.timeout.ms",
    "ssl.ca.location",
    "ssl.ca.pem",
    "ssl.certificate.location",
    "ssl.certificate.pem",
    "ssl.cipher.suites",
    "ssl.endpoint.identification.algorithm",
    "ssl.key.location",
    "ssl.key.password",
    "ssl.key.pem",
    "ssl.keystore.location",
    "ssl.keystore.password",
    "statistics.interval.ms",
    "stats_cb",
    "topic.metadata.propagation.max.ms",
    "topic.metadata.refresh.interval.ms",
)

_UNKNOWN = re.compile(r'No such configuration property: "([^"]*)"')


def meant(text: str) -> str:
    """What to add to librdkafka's text about a setting that it does not know."""
    found = _UNKNOWN.search(text)
    hint = did_you_mean(found[1], [*OF_BOTH, *CONSUMER_ONLY, *PRODUCER_ONLY]) if found else ""
    return f"; {hint}" if hint else ""
