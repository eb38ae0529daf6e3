"""Outside suites and tools: tests of kafka-python, of librdkafka and of franz-go; kcat.

Sources come through ordinary registries, pinned: kafka-python's from PyPI, librdkafka's from the npm package that
brings them, franz-go's as a Go module. What is excluded is what docs/supported-apis.md does not list, by a piece of the
test's name.
"""

from __future__ import annotations

import contextlib
import itertools
import json
import os
import re
import shutil
import subprocess
import sys
import xml.etree.ElementTree as ElementTree
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from queue import SimpleQueue
from types import MappingProxyType
from typing import TYPE_CHECKING

import peers
from archives import unpack

from compat.members import FRANZ, HERE
from compat.results import Outcome, check

if TYPE_CHECKING:
    from collections.abc import Mapping

KAFKA_PYTHON_VERSION = "3.0.12"
KAFKA_PYTHON_CODECS = ("lz4==4.4.5", "python-snappy==0.7.3", "cramjam==2.14.0")
"""Without them its tests of these codecs are skipped."""
LIBRDKAFKA = "node-rdkafka@3.6.1"
LIBRDKAFKA_VERSION = "2.12.0"
"""What it brings, with its tests."""
KAFKA_VERSION = "4.3"
"""What kafka-python makes of the versions that are offered; its tests choose by it which features they try."""
KAFKA_PYTHON_SETTINGS = {"node.id": "0", "num.partitions": "4", "group.min.session.timeout.ms": "1"}
"""What its tests start their own brokers with."""
LIBRDKAFKA_BROKER = "3.9.0"
FRANZ_GO_VERSION = FRANZ
FRANZ_GO_TESTS = (
    "^Test(GroupETL|TxnEtl|ShareGroup|848|Issue|Consume|Pause|AddRemove|DirectPartition|Pooling|GroupSimple|Ping|Process"
    "|HookPollStart|UnknownGroup)"
)
"""Those that speak to a broker, some of which do not."""
FRANZ_GO_RECORDS = 20_000
"""In each of its chains of groups, of half a million."""
SUITE_TIMEOUT_S = 1_200
TEST_TIMEOUT_S = 120
TESTS_AT_ONCE = 3
"""They mostly wait; the suite itself runs five at once."""
OUTPUT = "output.log"

NO_ACLS = "no ACLs (SECURITY_DISABLED)"
NO_QUOTAS = "no client quotas, no SCRAM API (users: keylane broker users)"
ONE_NODE = "one node: no replicas to move or to choose from"
NO_KERBEROS = "it changes the broker's sasl.kerberos.min.time.before.relogin: GSSAPI is not offered"
OLDER_GROUPS = "it is for brokers whose groups have no configs, older than 4.0"
NEEDS_SCRIPTS = "it calls Apache Kafka's shell scripts"

KAFKA_PYTHON_EXCLUDED = {
    "acl": NO_ACLS,
    "user_scram": NO_QUOTAS,
    "quota": NO_QUOTAS,
    "alter_replica_log_dirs": ONE_NODE,
    "test_ssl_": "it starts brokers of its own (TLS: tests/integration/test_security_clients.py)",
    "test_legacy_kafka_client_ssl": "it starts brokers of its own (TLS: tests/integration/test_security_clients.py)",
}
LIBRDKAFKA_EXCLUDED = {
    "_mock": "it runs against librdkafka's own imitation of a broker",
    "8000_idle": "it is for use by hand, and never ends",
    "ACL": NO_ACLS,
    "acl": NO_ACLS,
    "user_scram": NO_QUOTAS,
    "fetch_from_follower": ONE_NODE,
    "0115_producer_auth": NO_ACLS,
    "0119_consumer_auth": NO_ACLS,
    "0016_client_swname": NEEDS_SCRIPTS,
    "0077_compaction": NEEDS_SCRIPTS + " (here: tests/integration/test_compaction_clients.py)",
    "0109_auto_create_topics": NEEDS_SCRIPTS,
    "0092_mixed_msgver": "Produce: message formats 0 and 1",
}
ADMIN = "0081_admin"
ADMIN_PARTS = {
    "CreateTopics": None,
    "DeleteTopics": None,
    "CreatePartitions": None,
    "DescribeTopics": None,
    "DescribeConfigs": None,
    "DescribeConfigs_groups": OLDER_GROUPS,
    "AlterConfigs": NO_KERBEROS,
    "IncrementalAlterConfigs": NO_KERBEROS,
    "DeleteRecords": None,
    "ListOffsets": None,
    "ListConsumerGroups": None,
    "DescribeConsumerGroups": None,
    "DescribeConsumerGroups_with_authorized_ops": None,
    "DeleteGroups": None,
    "ListConsumerGroupOffsets": None,
    "AlterConsumerGroupOffsets": None,
    "DeleteConsumerGroupOffsets": None,
    "DescribeCluster": None,
    "CreateAcls": NO_ACLS,
    "DescribeAcls": NO_ACLS,
    "DeleteAcls": NO_ACLS,
    "UserScramCredentials": NO_QUOTAS,
    "unclean_destroy": None,
}
"""The parts of this one test, and why some are left out; it ends with the first that fails."""
LIBRDKAFKA_SAYS = {
    "replication factor 3": "CreateTopics: replication (factor 1 or -1 only)",
    "KAFKA_PATH and BROKERS must be set": NEEDS_SCRIPTS,
}
"""What a test that fails for it has printed."""


def download(command: list[str], folder: Path) -> Path:
    """Run a registry's client in a new folder there, unpack the archive that it fetched, and return where."""
    folder = folder / "source"
    folder.mkdir()
    subprocess.run(command, cwd=folder, check=True, capture_output=True, stdin=subprocess.DEVNULL)
    (archive,) = [path for path in folder.iterdir() if path.suffix in (".gz", ".tgz")]
    unpack(archive, folder)
    archive.unlink()
    return next(path for path in folder.iterdir() if path.is_dir())


def excluded(name: str, by: dict[str, str]) -> str | None:
    return next((why for piece, why in by.items() if piece in name), None)


def kafka_python_tests(bootstrap: str, folder: str) -> list[Outcome]:
    """kafka-python's own integration tests. Its archive lacks one module of theirs, which starts brokers."""
    pip = [sys.executable, "-m", "pip", "download", "-q", "--no-deps", "--no-binary", ":all:"]
    source = download([*pip, f"kafka-python=={KAFKA_PYTHON_VERSION}"], Path(folder))
    (source / "test" / "__init__.py").touch()
    (source / "test" / "service.py").write_text(
        "class SpawnedService: ...\n"
        "class ExternalService:\n"
        "    def __init__(self, host, port): self.host, self.port = host, port\n"
        "    def open(self): ...\n"
        "    def close(self): ...\n"
    )
    report = Path(folder, "report.xml")
    codecs = Path(folder, "codecs")
    pip = [sys.executable, "-m", "pip", "install", "-q", "--no-deps", "--target", str(codecs), *KAFKA_PYTHON_CODECS]
    subprocess.run(pip, check=True, capture_output=True)
    told = {"KAFKA_URI": f"kafka://{bootstrap}", "KAFKA_VERSION": KAFKA_VERSION, "KAFKA_ROOT": "."}
    told["PYTHONPATH"] = f".:{codecs}"
    options = ["-o", "addopts=", "-p", "no:cacheprovider", "--tb=native", "-q", f"--junitxml={report}"]
    subprocess.run(
        [sys.executable, "-m", "pytest", *options, "test/integration"],
        cwd=source, env=os.environ | told, capture_output=True, timeout=SUITE_TIMEOUT_S, check=False,
    )  # fmt: skip
    return [_case(case) for case in ElementTree.parse(report).iter("testcase")]


def _case(case: ElementTree.Element) -> Outcome:
    name = case.get("name", "?")
    why = excluded(name, KAFKA_PYTHON_EXCLUDED)
    if why is not None:
        return Outcome(name, "excluded", why)
    skipped = case.find("skipped")
    if skipped is not None:
        return Outcome(name, "excluded", f"skipped by the suite itself: {skipped.get('message', '')[:120]}")
    for failure in (*case.findall("failure"), *case.findall("error")):
        return Outcome(name, "failed", " ".join(failure.get("message", "").split())[:200])
    return Outcome(name, "passed")


def franz_go_tests(bootstrap: str, folder: str) -> list[Outcome]:
    """Its client's own tests: a group is a chain of members that come and go, under each balancer and each protocol."""
    told = {"KGO_SEEDS": bootstrap, "KGO_TEST_RF": "1", "KGO_TEST_RECORDS": str(FRANZ_GO_RECORDS)}
    options = ["-json", "-count=1", f"-timeout={SUITE_TIMEOUT_S}s", "-run", FRANZ_GO_TESTS]
    log = Path(folder, "franz-go.json")
    with log.open("wb") as output:
        subprocess.run(
            ["go", "test", *options, "github.com/twmb/franz-go/pkg/kgo"],
            cwd=HERE / "go", env=os.environ | told | {"KGO_LOG_LEVEL": "none"}, stdout=output, check=False,
        )  # fmt: skip
    events = [json.loads(line) for line in log.read_text().splitlines()]
    said: dict[str, str] = {}
    for event in events:
        if event["Action"] == "output":
            said[event.get("Test", "")] = said.get(event.get("Test", ""), "") + event["Output"]
    ended = {event["Test"]: event["Action"] for event in events if "Test" in event}
    parts = [name for name in ended if not any(other.startswith(f"{name}/") for other in ended)]
    assert parts, said.get("", "it said nothing")[-300:]
    return [go_outcome(name, ended[name], said.get(name, "")) for name in parts]


def go_outcome(name: str, action: str, said: str) -> Outcome:
    words = " ".join(line.strip() for line in said.splitlines() if not line.lstrip().startswith(("===", "---")))
    if action == "pass":
        return Outcome(name, "passed")
    if action == "skip":
        return Outcome(name, "excluded", f"skipped by the suite itself: {words[:120]}")
    return Outcome(name, "failed", words[:300] or "no end")


def librdkafka_missing() -> str | None:
    for tool in ("npm", "gcc", "g++", "make"):
        if shutil.which(tool) is None:
            return f"{tool} is not on the PATH"
    return None


def librdkafka_tests(bootstrap: str, folder: str) -> list[Outcome]:
    """librdkafka's test-runner."""
    built = peers.cached("compat-librdkafka", [], _build_librdkafka, LIBRDKAFKA.encode()) / "librdkafka"
    return run_librdkafka(Path(shutil.copytree(built, Path(folder, "librdkafka"))) / "tests", bootstrap)


def _build_librdkafka(folder: Path) -> None:
    """From source (some minutes)."""
    package = download(["npm", "pack", "--silent", LIBRDKAFKA], folder)
    source = Path(shutil.move(package / "deps" / "librdkafka", folder))
    shutil.rmtree(folder / "source")
    log = folder / "build.log"
    with log.open("wb") as output:
        for command in (
            ["./configure", "--disable-gssapi", "--disable-curl"],
            ["make", "-j2", "-C", "src"],
            ["make", "-j2", "-C", "src-cpp"],
            ["make", "-j2", "-C", "tests", "test-runner"],
        ):
            subprocess.run(command, cwd=source, stdout=output, stderr=output, check=True)


def run_librdkafka(tests: Path, bootstrap: str) -> list[Outcome]:
    """All tests that need a broker, in the suite's own quick mode; each number in a process of its own, so that one
    that hangs takes no other with it."""
    (tests / "test.conf").write_text(f"bootstrap.servers={bootstrap}\n")
    names = sorted(_run_librdkafka(tests, "0003"))
    numbers = [list(group) for _, group in itertools.groupby(names, lambda name: name[:4])]
    folders: SimpleQueue[Path] = SimpleQueue()  # tests write reports and files into theirs
    for each in range(TESTS_AT_ONCE):
        folders.put(Path(shutil.copytree(tests, tests.with_name(f"tests-{each}"))))

    def run(names: list[str]) -> list[Outcome]:
        folder = folders.get()
        try:
            return _admin_parts(folder) if names == [ADMIN] else _librdkafka_number(folder, names)
        finally:
            folders.put(folder)

    with ThreadPoolExecutor(TESTS_AT_ONCE) as pool:
        return [outcome for outcomes in pool.map(run, numbers) for outcome in outcomes]


def _librdkafka_number(tests: Path, names: list[str]) -> list[Outcome]:
    """The tests of one number, which the runner knows only as a whole; those that need no broker are left out."""
    why_not = {name: why for name in names if (why := excluded(name, LIBRDKAFKA_EXCLUDED)) is not None}
    states = {} if len(why_not) == len(names) else _run_librdkafka(tests, names[0][:4])
    found = [Outcome(name, "excluded", why) for name, why in why_not.items()]
    for name in (name for name in names if name not in why_not):
        state = states.get(name, f"no report within {TEST_TIMEOUT_S} s")
        if state == "PASSED":
            found.append(Outcome(name, "passed"))
        elif state != "SKIPPED":  # that is what local tests are
            found.append(_not_passed(name, state, (tests / OUTPUT).read_text(errors="replace")))
    return found


def _admin_parts(tests: Path) -> list[Outcome]:
    found = []
    for part, why in ADMIN_PARTS.items():
        name, subtest = f"{ADMIN}: {part}", f"do_test_{part}:"
        if why is not None:
            found.append(Outcome(name, "excluded", why))
            continue
        state = _run_librdkafka(tests, ADMIN[:4], {"SUBTESTS": subtest}).get(ADMIN, f"no report in {TEST_TIMEOUT_S} s")
        said = (tests / OUTPUT).read_text(errors="replace")
        if state == "PASSED" and f"[ {subtest}" in said:
            found.append(Outcome(name, "passed"))
        else:
            found.append(_not_passed(name, state, said))
    return found


def _not_passed(name: str, state: str, said: str) -> Outcome:
    why = next((why for words, why in LIBRDKAFKA_SAYS.items() if words in said), None)
    if why is not None:
        return Outcome(name, "excluded", why)
    print(f"{name}: {state}", *said.splitlines()[-60:], sep="\n", flush=True)  # its folder does not stay
    return Outcome(name, "failed", state)


def _run_librdkafka(tests: Path, number: str, told: Mapping[str, str] = MappingProxyType({})) -> dict[str, str]:
    """The state of every test, of which those of one number were run."""
    for old in tests.glob("test_report_*.json"):
        old.unlink()
    libraries = f"{tests.parent / 'src'}:{tests.parent / 'src-cpp'}"
    with contextlib.suppress(subprocess.TimeoutExpired), (tests / OUTPUT).open("wb") as output:
        subprocess.run(
            ["./test-runner", "-L", "-Q", "-r", "-E", "-p1", "-V", LIBRDKAFKA_BROKER, number],
            cwd=tests, env={**os.environ, "LD_LIBRARY_PATH": libraries, **told}, stdout=output, stderr=output,
            timeout=TEST_TIMEOUT_S, check=False,
        )  # fmt: skip
    found = {}
    for report in tests.glob("test_report_*.json"):
        found = {test: one["state"] for test, one in json.loads(report.read_text())["tests"].items()}
    found.pop("<MAIN>", None)
    return found


def kcat_missing() -> str | None:
    return None if shutil.which("kcat") else "kcat is not on the PATH"


def kcat_says() -> str:
    """Its version, and which codecs it was built with; nothing when there is none."""
    if kcat_missing():
        return ""
    return subprocess.run(["kcat", "-V"], capture_output=True, text=True, check=True).stdout


def kcat_version() -> str:
    found = re.search(r"Version (\S+)", kcat_says())
    return found[1] if found else "any"


def kcat(bootstrap: str, _folder: str) -> list[Outcome]:
    features = kcat_says()

    def run(*arguments: str, said: str = "") -> str:
        command = ["kcat", "-b", bootstrap, *arguments]
        return subprocess.run(command, input=said, capture_output=True, text=True, timeout=60, check=True).stdout

    def round_trip() -> None:
        for codec in ("none", *(one for one in ("gzip", "snappy", "lz4", "zstd") if one in features)):
            run("-P", "-t", f"kcat-{codec}", "-z", codec, said="one\ntwo\n")
            assert run("-C", "-t", f"kcat-{codec}", "-e", "-q") == "one\ntwo\n", codec

    def metadata() -> None:
        assert "kcat-none" in run("-L")

    def offsets() -> None:
        assert "offset 2" in run("-Q", "-t", "kcat-none:0:-1")

    def keys_and_headers() -> None:
        run("-P", "-t", "kcat-keys", "-K", ":", "-H", "from=kcat", said="a:one\n")
        assert run("-C", "-t", "kcat-keys", "-e", "-q", "-f", "%k %s %h") == "a one from=kcat"

    def group() -> None:
        earliest = ("-X", "auto.offset.reset=earliest")
        assert run("-G", "kcat-group", "-c", "2", "-q", *earliest, "kcat-none") == "one\ntwo\n"
        run("-P", "-t", "kcat-none", said="three\n")
        assert run("-G", "kcat-group", "-c", "1", "-q", *earliest, "kcat-none") == "three\n"

    def transaction() -> None:
        run("-P", "-t", "kcat-transactions", "-X", "transactional.id=kcat", said="one\n")
        assert run("-C", "-t", "kcat-transactions", "-e", "-q", "-X", "isolation.level=read_committed") == "one\n"

    tests = (
        ("produce and consume", round_trip),
        ("metadata", metadata),
        ("offsets", offsets),
        ("keys and headers", keys_and_headers),
        ("a group goes on where it committed", group),
        ("a transaction", transaction),
    )
    return [check(name, test) for name, test in tests]
