"""What /proc says of processes that a test starts and ends."""

from __future__ import annotations

import os
import signal
import subprocess

from kit.processes import of_session, parent


def test_a_session_outlives_the_process_that_began_it() -> None:
    leader = subprocess.Popen(
        ["sh", "-c", "sleep 60 & echo $!; exec sleep 60"], stdout=subprocess.PIPE, start_new_session=True, text=True
    )
    assert leader.stdout is not None
    child = int(leader.stdout.readline())
    try:
        assert of_session(leader.pid) == {leader.pid, child}
        assert parent(child) == leader.pid
        leader.kill()
        leader.wait()
        assert of_session(leader.pid) == {child}
    finally:
        os.killpg(leader.pid, signal.SIGKILL)
        leader.wait()
        leader.stdout.close()
