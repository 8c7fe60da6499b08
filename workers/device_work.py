"""What a device does behind the CPU: copies between two steps, and the end of what it was given."""

from collections.abc import Callable
from typing import Protocol

import torch


class DeviceWork(Protocol):
    """Of the one thread that gives the device its work."""

    def copy(self, copies: Callable[[], None]) -> None:
        """Carry out `copies` behind all that was computed before, and before what comes next.

        When it returns, they are done.
        """
        ...

    def finish(self) -> None:
        """Return when the device has done all that it was given."""
        ...


class HostWork:
    """A CPU has done its work when the call returns."""

    def copy(self, copies: Callable[[], None]) -> None:
        copies()

    def finish(self) -> None:
        pass


class CudaWork:
    """Copies run on a stream of their own, so that later work can be given before they end."""

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._copies = torch.cuda.Stream(device)  # type: ignore[no-untyped-call]

    def copy(self, copies: Callable[[], None]) -> None:
        computing = torch.cuda.current_stream(self._device)
        self._copies.wait_stream(computing)
        with torch.cuda.stream(self._copies):
            copies()
        computing.wait_stream(self._copies)
        self._copies.synchronize()

    def finish(self) -> None:
        end = torch.cuda.Event()  # type: ignore[no-untyped-call]
        end.record(torch.cuda.current_stream(self._device))
        end.synchronize()


def open_device_work(device: torch.device) -> DeviceWork:
    return CudaWork(device) if device.type == "cuda" else HostWork()
