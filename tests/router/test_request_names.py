"""The names that clients know lead to the requests that are written, and only while they are."""

import pytest

from segue.cluster.errors import InvalidRequest
from segue.router.request_names import RequestNames


def test_by_whatever_name_it_is_known() -> None:
    names = RequestNames()
    names.add("mine", ["a-0"])
    for name in ("a-0", "mine", "cmpl-mine", "chatcmpl-mine"):
        assert names.find(name, {"a-0", "b-0"}) == "a-0"
    names.remove("mine", ["a-0"])
    with pytest.raises(InvalidRequest, match="no request 'mine' is running .* has 2"):
        names.find("mine", {"a-0", "b-0"})


def test_several_are_listed_and_ended_ones_are_not_meant() -> None:
    names = RequestNames()
    names.add("mine", ["a-0", "a-1"])
    names.add("mine", ["b-0"])  # another client chose the same
    with pytest.raises(InvalidRequest, match="written as a-0, a-1, b-0: name one"):
        names.find("mine", {"a-0", "a-1", "b-0"})
    assert names.find("mine", {"a-1"}) == "a-1"
    names.remove("mine", ["a-0", "a-1"])
    names.remove("never", ["x"])
    assert names.find("mine", {"a-0", "b-0"}) == "b-0"
