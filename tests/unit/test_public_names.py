"""What `keylane` shows of itself before anything of it is used."""

from __future__ import annotations

import subprocess
import sys

import keylane


def test_dir_has_every_public_name_and_nothing_else() -> None:
    program = (
        "import sys, keylane; print(*dir(keylane)); print(*sorted(sys.modules.keys() & {'pyspark', 'confluent_kafka'}))"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    names, heavy = done.stdout.split("\n")[:2]
    shown = {name for name in names.split() if not name.startswith("__")}
    assert shown == {*keylane.__all__, "http", "schema", "spark"}
    assert heavy == "", "to look at the names imports nothing"
    assert all(hasattr(keylane, name) for name in shown)


def test_to_import_keylane_imports_its_errors_and_nothing_heavy() -> None:
    """It is what a program pays that uses one name of it; a time would fail on a busy machine."""
    program = "import sys; bare = {*sys.modules}; import keylane; print(*sorted({*sys.modules} - bare))"
    done = subprocess.run([sys.executable, "-I", "-c", program], capture_output=True, text=True, check=True)
    imported = done.stdout.split()
    own = {name for name in imported if name.partition(".")[0] == "keylane"}
    assert own == {"keylane", "keylane.errors", "keylane.version"}
    assert {name.partition(".")[0] for name in imported} - own <= sys.stdlib_module_names
    assert not {"asyncio", "inspect", "logging", "ssl", "threading"} & {*imported}
