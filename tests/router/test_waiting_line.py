"""A line by arrival: whoever comes, leaves or gives up, exactly one is first, and hears of it."""

import asyncio

from hypothesis import given
from hypothesis import strategies as st

from segue.router.waiting_line import Place, WaitingLine


@given(st.lists(st.tuples(st.booleans(), st.integers(0, 5))))
def test_the_first_is_who_arrived_first_of_those_that_are_left(
    acts: list[tuple[bool, int]],
) -> None:
    line, standing = WaitingLine(), list[Place]()
    for joins, number in acts:
        if joins:
            standing.append(line.join(float(number)))
        elif standing:
            line.leave(standing.pop(number % len(standing)))
        assert len(line) == len(standing)
        firsts = [place for place in standing if line.is_first(place)]
        assert firsts == ([min(standing)] if standing else [])


async def test_who_becomes_the_first_is_woken() -> None:
    line = WaitingLine()
    first, second, third = (line.join(arrived) for arrived in (1.0, 2.0, 3.0))
    line.leave(second)  # it gave up
    waiting = asyncio.create_task(third.wait(10.0))
    await asyncio.sleep(0)
    assert not waiting.done()
    line.leave(first)
    async with asyncio.timeout(5):
        await waiting
    assert line.is_first(third)
