"""What is read from Ray's words, and what it is told."""

import pytest

from segue.cluster.identity import WorkerIdentity
from segue.cluster.ray_words import actor_name, identity_of, obituary, shortage


def test_an_actor_is_named_by_its_life() -> None:
    life = WorkerIdentity("decode-7", "00ff")
    assert identity_of(actor_name(life)) == life
    assert actor_name(life) != actor_name(WorkerIdentity("decode-7", "00fe"))


@pytest.mark.parametrize(
    ("needs", "told"),
    [
        ({}, ""),
        ({"CPU": 1.0}, ""),
        ({"CPU": 2.0}, "waiting for resources {CPU: 2}"),
        ({"CPU": 2.0, "GPU": 0.5}, "waiting for a node with {GPU: 0.5}"),
    ],
)
def test_what_lacks_is_told(needs: dict[str, float], told: str) -> None:
    assert shortage(needs, total={"CPU": 4.0}, free={"CPU": 1.0}) == told


def test_an_obituary_is_one_short_line() -> None:
    crashed = obituary(RuntimeError("The actor died.\nWorker unexpectedly exits with code 1"))
    assert crashed.startswith("its process died unexpectedly")
    exited = obituary(RuntimeError("gone\n  Worker exit detail: Owner's node has crashed. More"))
    assert exited == "Owner's node has crashed."
    assert len(obituary(RuntimeError("word " * 1000))) <= 300
