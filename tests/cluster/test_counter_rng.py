"""The counter-based generator: published vectors, range, and independence of its inputs."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from segue.cluster.counter_rng import Words4, philox4x32, uniform

ALL_ONES = 0xFFFFFFFF
INT64 = st.integers(min_value=0, max_value=2**64 - 1)


@pytest.mark.parametrize(
    ("counter", "key", "expected"),
    [
        ((0, 0, 0, 0), (0, 0), (0x6627E8D5, 0xE169C58D, 0xBC57AC4C, 0x9B00DBD8)),
        (
            (ALL_ONES,) * 4,
            (ALL_ONES,) * 2,
            (0x408F276D, 0x41C83B0E, 0xA20BC7C6, 0x6D5451FD),
        ),
        (  # the first digits of pi
            (0x243F6A88, 0x85A308D3, 0x13198A2E, 0x03707344),
            (0xA4093822, 0x299F31D0),
            (0xD16CFE09, 0x94FDCCEB, 0x5001E420, 0x24126EA1),
        ),
    ],
)
def test_known_answers_of_random123(
    counter: Words4, key: tuple[int, int], expected: Words4
) -> None:
    assert philox4x32(counter, key) == expected


def test_uniform_is_built_from_the_first_two_words() -> None:
    expected = ((0x6627E8D5 >> 5) * 2**26 + (0xE169C58D >> 6)) / 2**53
    assert uniform(0, 0) == expected


@given(seed=INT64, position=INT64, stream=INT64)
def test_uniform_is_in_range_and_repeatable(seed: int, position: int, stream: int) -> None:
    value = uniform(seed, position, stream)
    assert 0.0 <= value < 1.0
    assert uniform(seed, position, stream) == value


@pytest.mark.parametrize("bit", [0, 31, 32, 63])
def test_every_input_bit_matters(bit: int) -> None:
    values = {
        uniform(0, 0, 0),
        uniform(1 << bit, 0, 0),
        uniform(0, 1 << bit, 0),
        uniform(0, 0, 1 << bit),
    }
    assert len(values) == 4


def test_negative_seed_counts_modulo_two_to_the_64() -> None:
    assert uniform(-1, 5) == uniform(2**64 - 1, 5)


def test_uniform_fills_the_interval_evenly() -> None:
    """Chi-square over 64 cells; 63 degrees of freedom, 0.999 quantile 103.4."""
    draws, cells = 20_000, 64
    counts = [0] * cells
    for position in range(draws):
        counts[int(uniform(42, position) * cells)] += 1
    expected = draws / cells
    assert sum((count - expected) ** 2 / expected for count in counts) < 103.4
