"""Server-sent events: the cuts between reads never matter, and nothing grows without end."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from segue.bench.sse import MAX_EVENT_BYTES, EventReader

LINE = st.text(st.characters(codec="utf-8", exclude_characters="\r\n"), min_size=1).map(str.encode)
EVENT = st.lists(LINE, min_size=1, max_size=3)


@given(st.lists(EVENT), st.sampled_from([b"\n", b"\r\n"]), st.data())
def test_events_survive_any_cut(
    events: list[list[bytes]], newline: bytes, data: st.DataObject
) -> None:
    wire = b": a comment" + newline * 2
    for event in events:
        wire += b"event: x" + newline
        wire += b"".join(b"data: " + line + newline for line in event) + newline
    cuts = sorted(data.draw(st.lists(st.integers(0, len(wire)), max_size=9)))
    reader, seen = EventReader(), []
    for start, end in zip([0, *cuts], [*cuts, len(wire)], strict=True):
        seen += reader.feed(wire[start:end])
    assert seen == [b"\n".join(event) for event in events]


def test_an_event_is_told_only_when_complete() -> None:
    reader = EventReader()
    assert reader.feed(b"data:one\n") == []
    assert reader.feed(b"\ndata: tw") == [b"one"]
    assert reader.feed(b"o\n\n") == [b"two"]


@pytest.mark.parametrize("piece", [b"x" * 1024, b"data: " + b"x" * 1024 + b"\n"])
def test_an_endless_event_is_refused(piece: bytes) -> None:
    reader = EventReader()
    with pytest.raises(ValueError, match="more than"):
        for _ in range(2 * MAX_EVENT_BYTES // len(piece)):
            reader.feed(piece)
