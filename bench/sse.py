"""Server-sent events from raw bytes: whatever the cuts between reads, the same payloads."""

MAX_EVENT_BYTES = 2**20


class EventReader:
    """Collects bytes and hands out the `data` of each event that is complete."""

    def __init__(self) -> None:
        self._tail = b""
        self._data: list[bytes] = []
        self._held_bytes = 0

    def feed(self, piece: bytes) -> list[bytes]:
        """Return the payloads `piece` completes. Raises ValueError if an event grows too long."""
        *lines, self._tail = (self._tail + piece).split(b"\n")
        if len(self._tail) + self._held_bytes > MAX_EVENT_BYTES:
            raise ValueError(f"an event of more than {MAX_EVENT_BYTES} bytes")
        return [payload for line in lines if (payload := self._line(line)) is not None]

    def _line(self, line: bytes) -> bytes | None:
        line = line.removesuffix(b"\r")
        if line.startswith(b"data:"):
            value = line[5:].removeprefix(b" ")
            self._data.append(value)
            self._held_bytes += len(value)
            return None
        if line or not self._data:  # another field, a comment, or an empty event
            return None
        payload = b"\n".join(self._data)
        self._data, self._held_bytes = [], 0
        return payload
