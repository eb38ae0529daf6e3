"""Whose the processors' time was."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest
from processors import Times, taken_by_others, times


def test_what_is_neither_idle_nor_own_was_taken_by_others() -> None:
    before = Times(total=1_000, idle=400, own=100)
    assert taken_by_others(before, Times(total=1_200, idle=450, own=150)) == 0.5
    assert taken_by_others(before, Times(total=1_200, idle=450, own=260)) == 0  # counters are not read at one moment
    assert taken_by_others(before, before) is None
    assert taken_by_others(None, before) is None


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="the counters are Linux's")
def test_what_a_child_used_is_own_also_when_it_has_ended() -> None:
    before = times()
    computing = "import time\nwhile time.process_time() < 0.3: pass"
    subprocess.run([sys.executable, "-c", computing], check=True)
    after = times()
    assert before is not None
    assert after is not None
    assert after.own - before.own >= 0.25 * os.sysconf("SC_CLK_TCK")
    assert after.total > before.total
