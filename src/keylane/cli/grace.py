"""Whether a stop has the time that it takes before SIGKILL: options of the pipeline beside those of its pods. Pure."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from keylane.consumer.closing import FINAL_COMMIT_S

if TYPE_CHECKING:
    from collections.abc import Mapping

    from keylane.pipeline import Pipeline

AWAY_S = 30.0
"""What closing may take beyond the drain while brokers are away: the last commit, outputs, the group."""

EXECUTORS_GRACE = "spark.kubernetes.executor.terminationGracePeriodSeconds"
"""From Spark 4.1 on, whatever the pod template says; before, the template's holds."""

EXECUTORS_GRACE_S = 30.0
"""Spark's default."""

UNITS_S = {"ms": 0.001, "s": 1.0, "m": 60.0, "min": 60.0, "h": 3600.0, "d": 86400.0, "": 1.0}


def short_grace(pipeline: Pipeline, grace_s: float | None, spark: str | None, conf: Mapping[str, str]) -> list[str]:
    """A sentence for each grace that is too short; `grace_s` is this process's, None where nobody has told it."""
    drain_s = max(pipeline.drain_timeout_ms, pipeline.revoke_timeout_ms) / 1000
    found = []
    needed_s = drain_s + AWAY_S
    if grace_s is not None and grace_s < needed_s:
        found.append(
            f"--grace {grace_s:g}: a stop takes up to {needed_s:g} s (drain_timeout_ms={pipeline.drain_timeout_ms}, "
            f"revoke_timeout_ms={pipeline.revoke_timeout_ms}, and {AWAY_S:g} s while brokers are away), and what "
            "SIGKILL ends runs again: raise terminationGracePeriodSeconds, or lower these"
        )
    if spark is not None and spark.startswith("k8s://"):
        needed_s = drain_s + FINAL_COMMIT_S
        has_s = seconds_of(conf.get(EXECUTORS_GRACE), EXECUTORS_GRACE_S)
        if has_s < needed_s:
            found.append(
                f"{EXECUTORS_GRACE}={has_s:g}s: a lane takes up to {needed_s:g} s to drain and commit, and what "
                f"SIGKILL ends runs again: give --conf {EXECUTORS_GRACE}={needed_s + 5:g}s or more"
            )
    return found


def seconds_of(text: str | None, default_s: float) -> float:
    """A time of Spark's, such as 75 or 75s; the default for one that Spark refuses by itself."""
    found = re.fullmatch(r"(\d+)\s*([a-z]*)", (text or "").strip())
    if found is None or found[2] not in UNITS_S:
        return default_s
    return int(found[1]) * UNITS_S[found[2]]
