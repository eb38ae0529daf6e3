"""Java clients' settings as librdkafka's."""

from __future__ import annotations

import pytest

from keylane.errors import UsageError
from keylane.kafka.java_settings import translate


def test_most_names_are_the_same_and_a_few_are_renamed_or_dropped() -> None:
    java = {"security.protocol": "SSL", "fetch.max.wait.ms": "50", "max.poll.records": "10", "client.rack": "a"}
    assert translate(java) == {"security.protocol": "SSL", "fetch.wait.max.ms": "50", "client.rack": "a"}


@pytest.mark.parametrize("module", ["plain.PlainLoginModule", "scram.ScramLoginModule"])
def test_user_and_password_of_a_jaas_line(module: str) -> None:
    line = f'org.apache.kafka.common.security.{module} required\n username="an\\"na" password=\'p;w=1\';'
    assert translate({"sasl.jaas.config": line}) == {"sasl.username": 'an"na', "sasl.password": "p;w=1"}


@pytest.mark.parametrize(
    ("java", "says"),
    [
        (
            {"sasl.jaas.config": "com.sun.security.auth.module.Krb5LoginModule required;"},
            "kerberos.keytab",
        ),
        ({"sasl.jaas.config": "x.OAuthBearerLoginModule required;"}, "oauthbearer.method=oidc"),
        ({"sasl.jaas.config": "x.OAuthBearerLoginModule required;"}, "kafka.oauth_cb=module:function"),
        ({"sasl.jaas.config": "software.amazon.msk.auth.iam.IAMLoginModule required;"}, "kafka.oauth_cb=module"),
        ({"sasl.login.callback.handler.class": "x.IAMClientCallbackHandler"}, "kafka.oauth_cb=module:function"),
        ({"sasl.mechanism": "AWS_MSK_IAM"}, "sasl.mechanism=OAUTHBEARER and name a function by kafka.oauth_cb"),
        ({"sasl.jaas.config": "x.OtherLoginModule required;"}, "PlainLogin"),
        ({"partition.assignment.strategy": "org.acme.MyAssignor"}, "give range, roundrobin, cooperative-sticky"),
        ({"ssl.enabled.protocols": "TLSv1,TLSv1.1"}, "TLS 1.2 and 1.3 are spoken here"),
        ({"schema.registry.url": "http://x"}, "keylane.schema"),
        ({"partitioner.class": "RoundRobinPartitioner"}, "a column partition"),
        ({"sasl.jaas.config": "x.PlainLoginModule required username=anna;"}, "username and password"),
        ({"ssl.truststore.location": "/etc/trust.jks"}, "kafka.ssl.ca.location"),
        ({"ssl.truststore.type": "JKS"}, "convert it to PEM"),
        ({"ssl.keystore.location": "/etc/key.p12"}, "kafka.ssl.key.location"),
    ],
)
def test_what_is_of_the_java_client_only_is_refused_with_a_way_out(java: dict[str, str], says: str) -> None:
    with pytest.raises(UsageError, match=says):
        translate(java)


def test_a_pem_trust_store_is_a_ca_location() -> None:
    assert translate({"ssl.truststore.location": "ca.pem"}) == {"ssl.ca.location": "ca.pem"}
    java = {"ssl.truststore.location": "x", "ssl.truststore.type": "pem"}
    assert translate(java) == {"ssl.ca.location": "x"}


def test_what_people_write_for_sparks_connector_means_the_same_here() -> None:
    assert translate({"ssl.endpoint.identification.algorithm": ""}) == {"ssl.endpoint.identification.algorithm": "none"}
    assert translate({"max.request.size": "5000000"}) == {"message.max.bytes": "5000000"}
    java = "org.apache.kafka.clients.consumer.CooperativeStickyAssignor,org.apache.kafka.clients.consumer.RangeAssignor"
    assert translate({"partition.assignment.strategy": java}) == {
        "partition.assignment.strategy": "cooperative-sticky,range"
    }
    without = {"default.api.timeout.ms": "1", "ssl.enabled.protocols": "TLSv1.2,TLSv1.3", "ssl.cipher.suites": ""}
    assert translate(without) == {}
