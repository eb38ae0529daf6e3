"""The environment as an archive on a standalone cluster: what the page docs/clusters.md says to run, and an executor is
killed meanwhile. The executors' Python has its packages from nowhere else.
"""

from __future__ import annotations

import os
import signal
from typing import TYPE_CHECKING, Any

import pytest

from keylane.kafka.bulk import read_to_end
from keylane.spark.java import find_java, launch_home
from kit.cluster import StandaloneCluster
from kit.outputs import covered
from kit.processes import parent, words
from kit.submit import command_of

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

RECORDS = 3_000
MIDDLE = 600
PATIENCE_S = 300
"""For what takes some seconds on an idle machine."""


def values_of(work: Any, topic: str) -> list[bytes]:
    return [one.value or b"" for some in read_to_end(work.servers, topic) for one in some]


@pytest.mark.soak
def test_an_executor_is_killed_and_the_next_one_unpacks_the_archive(
    java: None, environment: Path, drivers: Callable[..., Any], work: Any, tmp_path: Path
) -> None:
    """Lanes go on there; then all outputs go as a DataFrame from the source through `parallel_map` to the sink."""
    work.fill(RECORDS)
    rows = f"{work.output}-rows"
    work.admin.create_topics({rows: 4})
    own = {name: value for name, value in os.environ.items() if not name.startswith(("PYTHON", "PYSPARK"))}
    own |= {"JAVA_HOME": str(launch_home(find_java())), "SPARK_LOCAL_IP": "127.0.0.1"}
    with StandaloneCluster(tmp_path / "cluster") as cluster:
        submit = [cluster.url if one.startswith("spark://") else one for one in command_of("spark://")]
        submit += ["--py-files", "modules.zip", "--conf", "spark.ui.enabled=false"]
        submit += ["--conf", "spark.executor.memory=512m", "--conf", "spark.driver.memory=512m"]
        arguments = ("--lanes", "2", "--until-done", "--rows-to", rows)
        driver = drivers("-", work, own, *arguments, launcher=submit, folder=environment)
        lane = driver.until(lambda now: now["processed"] > MIDDLE and now["lanes"][0]["pid"])["lanes"][0]
        assert words(lane["pid"])[0] == b"./environment/bin/python"
        os.kill(parent(parent(lane["pid"])), signal.SIGKILL)
        known = covered(work.admin, work.group)
        assert work.left() > 0, "killed in the middle"
        ended = driver.until(lambda now: not now["active"])
        assert ended["error"] is None
        assert ended["lanes"][0]["failures"] >= 1
        assert driver.process.wait(PATIENCE_S) == 0, driver.log.read_text()[-3_000:]
    seen = work.outputs()
    assert (seen.lost, seen.foreign, seen.out_of_order("key")) == (set(), set(), [])
    assert {source for source in seen.repeated if source in known} == set()
    assert work.lag() == 0
    assert sorted(values_of(work, rows)) == sorted(value + b"!" for value in values_of(work, work.output))
