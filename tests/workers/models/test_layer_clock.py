"""When layers are told: on a host as they are passed, on a GPU when their event has come."""

from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from tiny_model import write_tiny_llama

from segue.cluster.errors import ConfigurationError
from segue.workers.batch import PackedBatch, SequenceSlice
from segue.workers.model_runner import ModelRunner
from segue.workers.models.layer_clock import EventLayerClock, HostLayerClock, group_ends


@given(num_layers=st.integers(1, 200), data=st.data())
def test_groups_are_as_equal_as_can_be(num_layers: int, data: st.DataObject) -> None:
    num_groups = data.draw(st.integers(1, num_layers))
    bounds = [0, *group_ends(num_layers, num_groups)]
    sizes = [stop - first for first, stop in zip(bounds, bounds[1:], strict=False)]
    assert len(sizes) == (num_groups if num_groups > 1 else 0)
    assert sum(sizes) == (num_layers if sizes else 0)
    assert not sizes or 1 <= min(sizes) <= max(sizes) <= min(sizes) + 1


def test_two_groups_are_the_default_where_there_are_two_layers() -> None:
    assert [group_ends(num_layers, None) for num_layers in (1, 2, 30)] == [(), (1, 2), (15, 30)]


@pytest.mark.parametrize("num_groups", [0, 4])
def test_more_groups_than_layers_are_refused_by_name(num_groups: int) -> None:
    with pytest.raises(ConfigurationError, match=r"transfer.layer_groups \(\d\).* 3 layers"):
        group_ends(3, num_groups)


def test_a_host_tells_at_once() -> None:
    told: list[int] = []
    clock = HostLayerClock((2, 4), told.append)
    for number in range(1, 7):
        clock.passed(number)
        assert told == [end for end in (2, 4) if end <= number]
    clock.finish()
    assert told == [2, 4]


class Device:
    """Comes to events one by one: when it is waited for, or as `comes_to` says."""

    def __init__(self) -> None:
        self.recorded: list[FakeEvent] = []
        self.waits = 0

    def record(self) -> "FakeEvent":
        event = FakeEvent(self)
        self.recorded.append(event)
        return event

    def comes_to(self, number: int) -> None:
        for event in self.recorded[:number]:
            event.has_come = True


class FakeEvent:
    def __init__(self, device: Device) -> None:
        self._device = device
        self.has_come = False

    def query(self) -> bool:
        return self.has_come

    def synchronize(self) -> None:
        self._device.waits += 1
        self._device.comes_to(self._device.recorded.index(self) + 1)


def test_a_gpu_that_is_behind_is_waited_for_group_by_group() -> None:
    told: list[int] = []
    device = Device()
    clock = EventLayerClock((2, 4), told.append, device.record)
    for number in range(1, 7):
        clock.passed(number)
    assert told == [], "no event has come: the layers may still change"
    assert len(device.recorded) == 2
    clock.finish()
    assert (told, device.waits) == ([2, 4], 2)


def test_a_gpu_that_keeps_up_is_told_of_early() -> None:
    told: list[int] = []
    device = Device()
    clock = EventLayerClock((2, 4), told.append, device.record)
    clock.passed(2)
    clock.passed(3)
    assert told == []
    device.comes_to(1)
    clock.passed(4)
    assert told == [2]
    clock.finish()
    assert (told, device.waits) == ([2, 4], 1)


def test_of_several_events_that_have_come_the_last_is_told() -> None:
    told: list[int] = []
    device = Device()
    clock = EventLayerClock((2, 4), told.append, device.record)
    clock.passed(2)
    clock.passed(4)
    device.comes_to(2)
    clock.finish()
    assert (told, device.waits) == ([4], 1)


def runner_of(folder: Path, layer_groups: int, kv_cache_dtype: str = "auto") -> ModelRunner:
    write_tiny_llama(folder, num_hidden_layers=5)
    runner = ModelRunner(
        folder,
        load_format="dummy",
        dtype="float32",
        device="cpu",
        num_blocks=12,
        block_size=4,
        kv_cache_dtype=kv_cache_dtype,
        layer_groups=layer_groups,
    )
    runner.kv_cache.view(torch.uint8).fill_(0xFF)
    return runner


def ask(
    runner: ModelRunner, ids: list[int], start: int, on_layers: Callable[[int], None] | None
) -> torch.Tensor:
    piece = SequenceSlice(ids, start, [3, 1, 9, 0], True)
    return runner.execute(PackedBatch((piece,), 1), on_layers)


@pytest.mark.parametrize("stored", ["auto", "int8"])
def test_what_is_told_does_not_change_any_more_and_the_rest_is_not_there(
    tmp_path: Path, stored: str
) -> None:
    runner = runner_of(tmp_path, 3, stored)
    ask(runner, list(range(6)), 0, None)
    layers = runner.kv_cache.view(torch.uint8).reshape(12, 5, -1).transpose(0, 1)
    before, seen = layers.clone(), list[tuple[int, torch.Tensor]]()
    logits = ask(runner, list(range(6, 15)), 6, lambda told: seen.append((told, layers.clone())))
    assert [told for told, _ in seen] == [1, 3, 5]
    for told, then in seen:
        assert torch.equal(then[:told], layers[:told])
        for layer in range(told):
            assert not torch.equal(then[layer], before[layer])
        assert torch.equal(then[told:], before[told:])
    again = ask(runner_of(tmp_path, 1, stored), list(range(15)), 0, None)
    torch.testing.assert_close(logits, again, atol=0.02, rtol=0.02)


def test_one_group_tells_nothing(tmp_path: Path) -> None:
    told: list[int] = []
    ask(runner_of(tmp_path, 1), list(range(6)), 0, told.append)
    assert told == []


def test_a_runner_refuses_more_groups_than_layers(tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match="layer_groups"):
        runner_of(tmp_path, 6)
