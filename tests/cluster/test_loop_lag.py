"""An event loop that is kept from its work is late, and says by how much."""

import asyncio
import time

from segue.cluster.loop_lag import INTERVAL_S, LoopLag


async def test_a_blocked_loop_is_late() -> None:
    lag = LoopLag()
    assert lag.seconds == 0.0
    lag.start()
    try:
        time.sleep(INTERVAL_S + 0.4)  # noqa: ASYNC251 that is the fault
        assert lag.seconds >= 0.35, "it is told while it lasts"
        await asyncio.sleep(INTERVAL_S / 2)
        assert lag.seconds >= 0.35, "and remembered"
    finally:
        lag.stop()
    assert lag.seconds == 0.0
