"""Zstandard's one import: the standard library has it since Python 3.14, and `backports.zstd` is the same before."""

from __future__ import annotations

import sys

if sys.version_info >= (3, 14):
    from compression.zstd import (
        CompressionParameter,
        DecompressionParameter,
        ZstdDecompressor,
        ZstdError,
        compress,
        get_frame_size,
    )
else:
    from backports.zstd import (
        CompressionParameter,
        DecompressionParameter,
        ZstdDecompressor,
        ZstdError,
        compress,
        get_frame_size,
    )

__all__ = [
    "CompressionParameter",
    "DecompressionParameter",
    "ZstdDecompressor",
    "ZstdError",
    "compress",
    "get_frame_size",
]
