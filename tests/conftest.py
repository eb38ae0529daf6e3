"""Rules for every test: no process is left behind, and with KEYLANE_NO_SKIPS=1 a skip is a failure."""

from __future__ import annotations

import datetime
import gc
import ipaddress
import logging
import os
import re
import signal
import threading
import urllib.request
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import hypothesis
import pytest
from xdist.scheduler import LoadFileScheduling

from kit.examples import IS_QUICK, examples
from kit.jvms import java_options
from kit.no_pandas import hide_pandas
from kit.once import leave_out_what_has_passed
from kit.processes import children, words

if TYPE_CHECKING:
    from collections.abc import Generator, Iterator
    from pathlib import Path

ROWS = (
    "tests/spark/test_acknowledged.py",
    "tests/spark/test_exactly_once",
    "tests/spark/test_nothing_is_told.py",
    "tests/spark/test_offset_servers.py",
    "tests/spark/test_older_checkpoints.py",
    "tests/spark/test_parallel_map",
    "tests/spark/test_structured_",
)
"""About half of Spark's tests, by the time that they take."""
GROUPS = (*([] if IS_QUICK else [ROWS]), ("tests/spark/test_",), ("tests/interop/",))
"""Files whose tests share what is dear to start: a JVM with a warm Spark, or two in `make test-full`, where one worker
would be busy for longer than all others; and an Apache Kafka."""
CONTRACT = "tests/spark/test_contract"
"""In no group: what is not for the soak runs without Spark."""
SLOW = ("tests/spark/", "tests/integration/", "tests/crash/", "tests/property/")
"""What takes longest first, after the groups."""
FAILED = pytest.StashKey[bool]()
"""Whether the test has failed."""
LOOKS = ("FORCE_COLOR", "NO_COLOR", "TERM")
"""Variables by which rich and others decide on colours and bars."""
LOOPBACK = ("localhost", "127.0.0.1", "::1")
LEAVING_S = 200
"""Longer than a member whose broker has gone takes to give up to leave its group."""


def group_of(nodeid: str) -> int:
    """Which of `GROUPS`; behind them all for a test that is in none."""
    groups = () if nodeid.startswith(CONTRACT) else GROUPS
    return next((number for number, files in enumerate(groups) if nodeid.startswith(files)), len(GROUPS))


class OneOfEach(LoadFileScheduling):  # type: ignore[misc] # xdist has no types
    """A file's tests stay with one worker of `pytest -n`. So do all tests of a group: a worker has one JVM, and it
    takes half a minute of two busy cores to be up and warm."""

    def _split_scope(self, nodeid: str) -> str:
        number = group_of(nodeid)
        return f"group {number}" if number < len(GROUPS) else str(super()._split_scope(nodeid))


def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> OneOfEach:
    return OneOfEach(config, log)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """What takes longest comes first."""
    items.sort(key=lambda item: (group_of(item.nodeid), [not item.nodeid.startswith(one) for one in SLOW]))


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Generator[None, object, object]:
    """What is collected stays until the end: the garbage collector need not look through it, now or later."""
    gc.disable()
    try:
        return (yield)
    finally:
        gc.freeze()
        gc.enable()


def pytest_configure(config: pytest.Config) -> None:
    """A shell that starts the tests in the background leaves SIGINT ignored; Ctrl-C is part of what is tested.
    Processes that tests start, Spark's workers among them, find the test kit and `sitecustomize`, which hides pandas
    from them too; JVMs are light."""
    leave_out_what_has_passed(config)
    hide_pandas()
    signal.signal(signal.SIGINT, signal.default_int_handler)
    tests = str(config.rootpath / "tests")
    os.environ["PYTHONPATH"] = os.pathsep.join([tests, *filter(None, [os.environ.get("PYTHONPATH")])])
    os.environ.setdefault("JAVA_TOOL_OPTIONS", java_options(config.rootpath / "build" / "spark-classes.jsa"))


def pytest_sessionstart() -> None:
    """What a user has set for programs at large is not for those that tests start and read. After pytest has taken its
    own colours from it."""
    for name in LOOKS:
        os.environ.pop(name, None)
    proxies = urllib.request.getproxies_environment()
    if proxies:
        bypassing = ",".join(filter(None, [proxies.get("no"), *LOOPBACK]))
        os.environ |= {"no_proxy": bypassing, "NO_PROXY": bypassing}


# How long an example takes is the machine's affair, and not the code's.
hypothesis.settings.register_profile("keylane", deadline=None, max_examples=examples(100))
hypothesis.settings.load_profile("keylane")
if os.environ.get("KEYLANE_FIRST_EXAMPLE") == "1":
    # The first example that fails is enough for a mutant: the smallest one can take minutes to find. Examples are the
    # same in each run: a mutant that lives is no matter of luck.
    hypothesis.settings.register_profile(
        "first example",
        deadline=None,
        derandomize=True,
        phases=[hypothesis.Phase.explicit, hypothesis.Phase.generate],
    )
    hypothesis.settings.load_profile("first example")


@pytest.fixture(autouse=True)
def logging_as_before() -> Iterator[None]:
    """The command line takes over the logger `keylane`; the next test finds it as it was."""
    logger = logging.getLogger("keylane")
    level, propagate, handlers = logger.level, logger.propagate, list(logger.handlers)
    yield
    logger.setLevel(level)
    logger.propagate = propagate
    logger.handlers[:] = handlers


@pytest.fixture(scope="session", autouse=True)
def small_journals_are_loaded_at_the_start() -> Iterator[None]:
    """A coordinator that was started serves, however long the machine stood still meanwhile."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("keylane.coordinator.coordinator.START_WAIT_S", 60.0)
        yield


@pytest.fixture(scope="module", autouse=True)
def no_process_left(request: pytest.FixtureRequest) -> Iterator[None]:
    """Every module ends with the children it began with; a JVM that the whole run shares is the one exception."""
    before = children()
    yield
    new = {pid: words(pid)[:4] for pid in children() - before}
    left = {pid: command for pid, command in new.items() if not any(b"java" in word for word in command)}
    assert not left, f"{request.node.name} left processes behind: {left}"


@pytest.fixture(autouse=True)
def no_thread_left(request: pytest.FixtureRequest) -> Iterator[None]:
    """Every test that passes ends with the threads of keylane that it began with: a member whose broker has gone may
    take its session to leave, and would log into another test's output."""
    before = set(threading.enumerate())
    yield
    if request.node.stash.get(FAILED, False):
        return
    pooled = re.compile(r"_\d+")  # an embedded broker's that other tests use as well
    began = [one for one in set(threading.enumerate()) - before if "keylane" in one.name]
    left = [one for one in began if not pooled.search(one.name)]
    for thread in left:
        thread.join(LEAVING_S)
    alive = [one.name for one in left if one.is_alive()]
    assert not alive, f"threads are left behind: {alive}"


@dataclass(frozen=True)
class Certificates:
    """PEM files for 127.0.0.1 and localhost, and those of an authority that nobody trusts."""

    authority: str
    certificate: str
    """Of the broker, and good for a client too."""
    key: str
    strangers_authority: str
    strangers_certificate: str
    strangers_key: str


@pytest.fixture(scope="session")
def certificates(tmp_path_factory: pytest.TempPathFactory) -> Certificates:
    folder = tmp_path_factory.mktemp("certificates")
    return Certificates(*make_certificate(folder, "ours"), *make_certificate(folder, "strangers"))


def make_certificate(folder: Path, name: str) -> tuple[str, str, str]:
    """Files: an authority's certificate, one that it has signed for this machine, and that one's key."""
    from cryptography import x509
    from cryptography.hazmat.primitives import hashes, serialization
    from cryptography.hazmat.primitives.asymmetric import ec

    def sign(subject: str, key: ec.EllipticCurvePrivateKey, issuer: str, by: ec.EllipticCurvePrivateKey) -> bytes:
        now = datetime.datetime.now(datetime.UTC)
        builder = x509.CertificateBuilder(
            x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, issuer)]),
            x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, subject)]),
            key.public_key(),
            x509.random_serial_number(),
            now - datetime.timedelta(hours=1),
            now + datetime.timedelta(days=1),
        )
        names = x509.SubjectAlternativeName(
            [x509.DNSName("localhost"), x509.IPAddress(ipaddress.ip_address("127.0.0.1"))]
        )
        is_authority = subject == issuer
        builder = builder.add_extension(x509.BasicConstraints(ca=is_authority, path_length=None), critical=True)
        builder = builder.add_extension(names, critical=False)
        return builder.sign(by, hashes.SHA256()).public_bytes(serialization.Encoding.PEM)

    authority_key, key = (ec.generate_private_key(ec.SECP256R1()) for _ in range(2))
    contents = {
        f"{name}-authority.pem": sign(f"{name} authority", authority_key, f"{name} authority", authority_key),
        f"{name}.pem": sign(f"{name} broker", key, f"{name} authority", authority_key),
        f"{name}.key": key.private_bytes(
            serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
        ),
    }
    for file, content in contents.items():
        (folder / file).write_bytes(content)
    authority, certificate, key_file = (str(folder / file) for file in contents)
    return authority, certificate, key_file


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """`make test-full` counts a skip as a failure, with the skip's reason."""
    report = yield
    item.stash[FAILED] = report.failed
    if report.skipped and os.environ.get("KEYLANE_NO_SKIPS") == "1" and not hasattr(report, "wasxfail"):
        report.outcome = "failed"
        report.longrepr = f"skipped, which test-full does not allow: {report.longrepr}"
    return report
