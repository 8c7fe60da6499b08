"""Of a head nothing but the offer of another protocol is taken out."""

from hypothesis import given
from hypothesis import strategies as st

from segue.router.no_upgrade import head_without_upgrade


@given(
    st.lists(
        st.tuples(
            st.sampled_from([b"connection", b"upgrade", b"http2-settings", b"x", b"te"]),
            st.lists(
                st.sampled_from([b"upgrade", b"Upgrade", b"keep-alive", b"HTTP2-Settings", b"h2c"]),
                max_size=4,
            ).map(b" , ".join),
        )
    )
)
def test_nothing_but_the_offer_is_taken_out(headers: list[tuple[bytes, bytes]]) -> None:
    head = head_without_upgrade(b"POST", b"/x?y=z", "1.1", headers)
    first, *lines = head.removesuffix(b"\r\n\r\n").split(b"\r\n")
    assert first == b"POST /x?y=z HTTP/1.1"
    left = [(name, value) for name, _, value in (line.partition(b": ") for line in lines)]
    others = {b"connection", b"upgrade", b"http2-settings"}
    assert [h for h in left if h[0] not in others] == [h for h in headers if h[0] not in others]
    kept = [
        token.strip()
        for name, value in left
        if name == b"connection"
        for token in value.split(b",")
    ]
    assert not {token.lower() for token in kept} & {b"upgrade", b"http2-settings"}
    assert not [name for name, _ in left if name in (b"upgrade", b"http2-settings")]
