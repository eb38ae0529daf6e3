"""The authority and the certificates of the brokers are exchanged under a member, and so are the member's files."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from typing import TYPE_CHECKING, Any

import pytest

import keylane as kl
from keylane.broker.process import BrokerProcess
from keylane.errors import ExchangedCertificatesError
from keylane.kafka.admin import Admin
from keylane.kafka.bulk import BulkProducer
from keylane.kafka.certificates import CertificateWatch
from kit.processes import Started
from kit.stage import until

if TYPE_CHECKING:
    from pathlib import Path

    from conftest import Certificates

TIMEOUT_S = 60
PIPELINE = """
import keylane as kl
pipeline = kl.Pipeline(kafka={kafka!r}, topics=["orders"], handler=lambda record: None, offset_reset="earliest")
"""


def put(folder: Path, authority: str, certificate: str, key: str) -> None:
    """Under names that stay, as a secret of Kubernetes is exchanged."""
    for name, file in (("ca.pem", authority), ("cert.pem", certificate), ("key.pem", key)):
        shutil.copy(file, folder / name)


@pytest.mark.full
def test_a_member_returns_by_itself_after_the_authority_was_exchanged(
    tmp_path: Path, certificates: Certificates
) -> None:
    put(tmp_path, certificates.authority, certificates.certificate, certificates.key)
    files = {
        "ssl.ca.location": str(tmp_path / "ca.pem"),
        "ssl.certificate.location": str(tmp_path / "cert.pem"),
        "ssl.key.location": str(tmp_path / "key.pem"),
    }
    client = {"security.protocol": "SSL"} | files
    settings = {"listeners": "SSL://127.0.0.1:0", "ssl.client.auth": "required"} | files
    with BrokerProcess(tmp_path / "data", settings=settings) as broker:
        places = {"bootstrap.servers": broker.bootstrap} | client

        def committed() -> int:
            found = Admin(places).committed_offsets("g").get(("orders", 0))
            return 0 if found is None else found.offset

        def produce() -> None:
            with BulkProducer(broker.bootstrap, client) as producer:
                producer.produce(kl.Output("orders", value=b"order"))

        Admin(places).create_topics({"orders": 1})
        produce()
        kafka = places | {"group.id": "g", "session.timeout.ms": 6_000}
        (tmp_path / "app.py").write_text(PIPELINE.format(kafka=kafka))
        command = [sys.executable, "-m", "keylane", "run", "app.py", "--json", "--progress-interval", "0.5"]
        pipes: dict[str, Any] = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
        with Started(command, cwd=tmp_path, text=True, **pipes) as running:
            until(lambda: committed() == 1, "it runs")
            broker.kill()
            put(
                tmp_path,
                certificates.strangers_authority,
                certificates.strangers_certificate,
                certificates.strangers_key,
            )
            broker.start()
            produce()
            until(lambda: committed() == 2, "it goes on with others", TIMEOUT_S)
            running.terminate()
            out, told = running.communicate(timeout=TIMEOUT_S)
    assert running.returncode == 0, told
    assert "as they are now, and refuse what they were: it starts again" in told
    summary = json.loads(out.splitlines()[-1])
    assert (summary["processed"], summary["lag"]) == (2, 0)


def test_only_files_that_were_exchanged_end_a_consumer_and_only_if_brokers_take_them(
    tmp_path: Path, certificates: Certificates
) -> None:
    told: list[BaseException] = []
    authority = tmp_path / "ca.pem"
    shutil.copy(certificates.authority, authority)
    settings = {
        "listeners": "SSL://127.0.0.1:0",
        "ssl.certificate.location": certificates.strangers_certificate,
        "ssl.key.location": certificates.strangers_key,
    }
    with BrokerProcess(tmp_path / "data", settings=settings) as broker:
        kafka = {
            "bootstrap.servers": broker.bootstrap,
            "security.protocol": "SSL",
            "ssl.ca.location": str(authority),
        }
        watch = CertificateWatch(kafka, "m", told.append)
        assert not watch.look(), "nothing was exchanged"
        authority.write_text("no certificate")
        assert not watch.look(), "half of it"
        shutil.copy(certificates.strangers_authority, authority)
        assert watch.look()
    assert [type(one) for one in told] == [ExchangedCertificatesError]
