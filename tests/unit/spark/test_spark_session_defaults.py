"""What a session is started with on which master."""

import pytest

pytest.importorskip("pyspark", reason="pyspark is not installed")
from keylane.spark.session import defaults

UNIX_SOCKET = "spark.python.unix.domain.socket.enabled"


def test_python_workers_on_yarn_talk_by_tcp() -> None:
    """A container's folder for temporary files has a path that is too long for a Unix socket."""
    assert UNIX_SOCKET not in defaults("yarn")
    assert all(
        defaults(master)[UNIX_SOCKET] == "true" for master in ("local[4]", "spark://one:7077", "k8s://https://a")
    )


def test_only_a_local_session_is_bound_to_loopback() -> None:
    assert defaults("local[2]")["spark.driver.host"] == "127.0.0.1"
    assert "spark.driver.host" not in defaults("yarn")
