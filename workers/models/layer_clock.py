"""Tells, while a step is computed, for how many layers its keys and values are in the cache.

A host has done what it was given when the call returns. A GPU runs behind: an event in its stream
marks the end of each group, and only an event that has come to pass is told. The thread that gives
the GPU its work would wait for the end of the step anyway, so it is also the one that waits for
the events: a group is told while those behind it are computed.
"""

from collections import deque
from collections.abc import Callable
from functools import partial
from typing import Protocol

import torch

from segue.cluster.errors import ConfigurationError

Tell = Callable[[int], None]
DEFAULT_GROUPS = 2


class LayerClock(Protocol):
    """Of one step."""

    def passed(self, num_layers: int) -> None:
        """The device has been given the work of the first `num_layers` layers."""
        ...

    def finish(self) -> None:
        """The device has been given the whole step: tell what is still to be told."""
        ...


class DeviceEvent(Protocol):
    def query(self) -> bool:
        """Whether the device has come to this point."""
        ...

    def synchronize(self) -> None:
        """Wait until it has."""
        ...


def group_ends(num_layers: int, num_groups: int | None) -> tuple[int, ...]:
    """Behind how many layers each group ends; groups are as equal as can be. One is none: a step
    is then told when it is done. The last of several is told before the logits are computed.
    None: two, of what has two layers."""
    if num_groups is None:
        num_groups = min(DEFAULT_GROUPS, num_layers)
    if not 1 <= num_groups <= num_layers:
        raise ConfigurationError(
            f"transfer.layer_groups ({num_groups}) must be from 1 to the {num_layers} layers of "
            "the model",
            param="transfer.layer_groups",
        )
    if num_groups == 1:
        return ()
    return tuple(number * num_layers // num_groups for number in range(1, num_groups + 1))


def open_clock(device: torch.device, ends: tuple[int, ...], tell: Tell) -> LayerClock:
    if device.type == "cuda":
        return EventLayerClock(ends, tell, partial(_event_now, device))
    return HostLayerClock(ends, tell)


def _event_now(device: torch.device) -> torch.cuda.Event:
    event = torch.cuda.Event()  # type: ignore[no-untyped-call]
    event.record(torch.cuda.current_stream(device))
    return event


class HostLayerClock:
    def __init__(self, ends: tuple[int, ...], tell: Tell) -> None:
        self._ends = ends
        self._tell = tell

    def passed(self, num_layers: int) -> None:
        if num_layers in self._ends:
            self._tell(num_layers)

    def finish(self) -> None:
        """Everything has been told."""


class EventLayerClock:
    """`record` puts an event behind all that the device was given so far."""

    def __init__(
        self, ends: tuple[int, ...], tell: Tell, record: Callable[[], DeviceEvent]
    ) -> None:
        self._ends = ends
        self._tell = tell
        self._record = record
        self._awaited: deque[tuple[int, DeviceEvent]] = deque()

    def passed(self, num_layers: int) -> None:
        if num_layers in self._ends:
            self._awaited.append((num_layers, self._record()))
        self._tell_newest()

    def finish(self) -> None:
        while self._awaited:
            self._awaited[0][1].synchronize()
            self._tell_newest()

    def _tell_newest(self) -> None:
        """Of several groups that are done by now, the last one says it all."""
        newest = 0
        while self._awaited and self._awaited[0][1].query():
            newest, _ = self._awaited.popleft()
        if newest:
            self._tell(newest)
