"""`spark-submit` as docs/clusters.md tells users to type it."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

PAGE = Path(__file__).parents[2] / "docs" / "clusters.md"


def command_of(page_has: str) -> list[str]:
    """The page's command for the master that begins so, with PySpark's own program, up to the user's `app.py`."""
    import pyspark

    found = re.search(
        rf"^```sh\n(spark-submit --master {page_has}.*?) app\.py\n```$", PAGE.read_text(), re.MULTILINE | re.DOTALL
    )
    assert found is not None, PAGE
    program, *arguments = shlex.split(found[1].replace("\\\n", " "))
    return [str(Path(pyspark.__file__).parent / "bin" / program), *arguments]
