"""`keylane.wire.versions`: schemas are loaded when they are first needed, by any thread."""

from __future__ import annotations

import subprocess
import sys

IN_TWO_THREADS = """
import threading
from keylane.wire.versions import request_type, response_type

failures = []

def load(at, found, api, version):
    at.wait()
    try:
        found(api, version)
    except Exception as error:
        failures.append(f"{found.__name__}({api}, {version}): {error}")

for api in ("describe_configs", "find_coordinator", "heartbeat", "join_group", "list_offsets", "metadata",
            "offset_commit", "offset_fetch", "produce"):
    for version in (3, 4):
        at = threading.Barrier(2)
        both = [(at, found, api, version) for found in (request_type, response_type)]
        threads = [threading.Thread(target=load, args=arguments) for arguments in both]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
print(*failures, sep="\\n", end="")
"""


def test_two_threads_load_the_same_schema_for_the_first_time() -> None:
    done = subprocess.run([sys.executable, "-c", IN_TWO_THREADS], capture_output=True, text=True, check=True)
    assert done.stdout == ""
