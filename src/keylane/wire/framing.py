"""Requests out of a stream of bytes: a signed 32-bit size, then that many bytes. Pure: bytes in, frames out."""

from __future__ import annotations

from keylane.errors import PeerError

SIZE_BYTES = 4
MIN_FRAME_BYTES = 10
"""API key, version, correlation id, and the length of the client id."""


TLS_HANDSHAKE = 0x1603
"""How a TLS client begins: record type 22, version 3."""


class FrameError(PeerError):
    """The stream holds no request frames, or one that is larger than allowed; nothing after it can be read."""


class FrameReader:
    """Collects what arrives and gives whole frames, each as bytes of its own."""

    def __init__(self, max_frame_bytes: int) -> None:
        self.max_frame_bytes = max_frame_bytes
        self._parts: list[bytes] = []
        self._size = 0
        self._wanted = SIZE_BYTES
        """Bytes at which the next frame may be whole: a large frame is joined once, not at every arrival."""

    @property
    def arriving(self) -> int:
        """Bytes of the request that has begun to arrive, all of it; 0 between two requests."""
        return self._wanted - SIZE_BYTES

    def feed(self, data: bytes) -> list[bytes]:
        """The frames that `data` completes. Raises `FrameError`."""
        if not self._parts and self._is_one_frame(data):
            return [data[SIZE_BYTES:]]
        self._parts.append(data)
        self._size += len(data)
        if self._size < self._wanted:
            return []
        buffer = data if len(self._parts) == 1 else b"".join(self._parts)
        frames = []
        position = 0
        while (left := len(buffer) - position) >= SIZE_BYTES:
            size = int.from_bytes(buffer[position : position + SIZE_BYTES], "big", signed=True)
            if not MIN_FRAME_BYTES <= size <= self.max_frame_bytes:
                hint = ": the client speaks TLS, and this listener does not" if size >> 16 == TLS_HANDSHAKE else ""
                raise FrameError(
                    f"a request of {size} bytes: the limit is {self.max_frame_bytes} (socket.request.max.bytes), "
                    f"and no request is shorter than {MIN_FRAME_BYTES}{hint}"
                )
            if left < SIZE_BYTES + size:
                self._wanted = SIZE_BYTES + size
                break
            frames.append(buffer[position + SIZE_BYTES : position + SIZE_BYTES + size])
            position += SIZE_BYTES + size
        else:
            self._wanted = SIZE_BYTES
        rest = buffer[position:] if position else buffer
        self._parts = [rest] if rest else []
        self._size = len(rest)
        return frames

    def _is_one_frame(self, data: bytes) -> bool:
        """What a client that waits for each answer sends."""
        size = len(data) - SIZE_BYTES
        return MIN_FRAME_BYTES <= size <= self.max_frame_bytes and data.startswith(size.to_bytes(SIZE_BYTES, "big"))
