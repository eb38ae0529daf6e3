"""Frames that no client sends: the broker bears them, does not grow, and serves others meanwhile.

A failure names its seed: `PYTHONPATH=tests python -m kit.fuzz --seed N --frames M` does it again.
"""

from __future__ import annotations

import random
from itertools import islice
from typing import TYPE_CHECKING

import pytest

from kit.fuzz import CHUNK_FRAMES, MAX_FRAME_BYTES, Fuzz, run

if TYPE_CHECKING:
    from pathlib import Path

FRAMES = 4_000
SOAK_FRAMES = 1_000_000
MAX_GROWTH_MB = 48
"""From the first tenth of the frames to the last: what handlers remember of requests is bounded by 32 MB, and some
damaged requests name groups and transactions that did not exist before."""


def test_a_seed_gives_the_same_frames_again() -> None:
    first, again, other = (list(islice(Fuzz(seed).chunks(), 30)) for seed in (5, 5, 6))
    assert first == again
    assert first != other
    for frames, _ in first:
        assert 1 <= len(frames) <= CHUNK_FRAMES
        for frame in frames:
            assert int.from_bytes(frame[:4], "big") == len(frame) - 4 <= MAX_FRAME_BYTES


def fuzz(frames: int, folder: Path) -> None:
    result = run(random.SystemRandom().randrange(2**32), frames, folder)
    print(result)  # noqa: T201 - the figures of a soak
    assert result.frames >= frames
    assert result.served > 0
    assert result.resident_mb[-1] - result.resident_mb[0] <= MAX_GROWTH_MB, result


@pytest.mark.full
def test_thousands_of_frames(tmp_path: Path) -> None:
    fuzz(FRAMES, tmp_path)


@pytest.mark.soak
def test_a_million_frames(tmp_path: Path) -> None:
    fuzz(SOAK_FRAMES, tmp_path)
