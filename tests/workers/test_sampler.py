"""The sampler: exact distributions, the filters' edges, and rows that ignore their neighbours."""

import itertools

import numpy as np
import numpy.typing as npt
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from segue.cluster.counter_rng import uniform
from segue.cluster.request import SamplingParams
from segue.workers.sampler import InvalidLogits, SamplingRow, sample

torch.set_num_threads(1)

GREEDY = SamplingParams(temperature=0.0)
VOCABULARY = 12_000


def logits_of(*rows: list[float]) -> torch.Tensor:
    return torch.tensor(rows, dtype=torch.float32)


def exact_distribution(
    logits: list[float], params: SamplingParams, forbidden: frozenset[int] = frozenset()
) -> npt.NDArray[np.float64]:
    """The documented rules, one after the other, over the whole vocabulary."""
    scaled = np.asarray(logits, np.float32).astype(np.float64)
    scaled[list(forbidden)] = -np.inf
    order = np.lexsort((np.arange(len(scaled)), -scaled))
    weights = np.exp((scaled - scaled.max()) / params.temperature)
    kept = order[: params.top_k or None]
    cumulative = np.cumsum(weights[kept]) / weights[kept].sum()
    kept = kept[: int(np.count_nonzero(cumulative < params.top_p)) + 1]
    kept = kept[weights[kept] >= params.min_p]
    distribution = np.zeros(len(scaled))
    distribution[kept] = weights[kept] / weights[kept].sum()
    return distribution


def exact_draw(logits: list[float], spec: SamplingRow) -> int:
    """Invert the exact distribution in the documented order."""
    distribution = exact_distribution(logits, spec.params, spec.forbidden)
    order = np.lexsort((np.arange(len(logits)), -distribution))
    cumulative = np.cumsum(distribution[order])
    point = uniform(spec.params.seed, spec.position)
    return int(order[np.searchsorted(cumulative, point, side="right")])


def random_logits(rows: int, spread: float = 3.0) -> torch.Tensor:
    generator = torch.Generator().manual_seed(11)
    return torch.randn(rows, VOCABULARY, generator=generator) * spread


def test_greedy_takes_the_lowest_index_of_the_maximum() -> None:
    logits = logits_of([0, 3, 3, 1], [5, 5, 5, 5], [-2, -1, -3, -1])
    assert sample(logits, [SamplingRow(GREEDY, 0)] * 3) == [1, 0, 1]


def test_forbidden_tokens_are_never_drawn() -> None:
    logits = logits_of([0, 9, 8, 7])
    assert sample(logits, [SamplingRow(GREEDY, 0, frozenset({1, 2, 999}))]) == [3]
    for params in (SamplingParams(), SamplingParams(top_k=2), SamplingParams(top_k=3, top_p=0.99)):
        spec = [SamplingRow(params, position, frozenset({1})) for position in range(200)]
        drawn = sample(logits.expand(200, -1), spec)
        assert 1 not in drawn
    assert logits.tolist() == [[0, 9, 8, 7]], "the caller's logits are left alone"


@pytest.mark.parametrize("bad", [float("nan"), float("inf"), float("-inf")])
def test_bad_logits_name_their_rows(bad: float) -> None:
    logits = random_logits(4)
    logits[1, 17] = bad
    logits[3, VOCABULARY - 1] = bad
    specs = [SamplingRow(GREEDY, 0), *[SamplingRow(SamplingParams(), 0)] * 3]
    with pytest.raises(InvalidLogits) as raised:
        sample(logits, specs)
    assert raised.value.rows == (1, 3)
    assert isinstance(raised.value, ValueError)
    assert len(sample(logits[[0, 2]], [specs[0], specs[2]])) == 2


def test_a_row_that_forbids_everything_is_bad() -> None:
    with pytest.raises(InvalidLogits) as raised:
        sample(logits_of([1, 2], [1, 2]), [SamplingRow(GREEDY, 0, frozenset({0, 1}))] * 2)
    assert raised.value.rows == (0, 1)


def test_shapes_must_agree() -> None:
    assert sample(torch.zeros(0, 5), []) == []
    with pytest.raises(ValueError, match="2 specs"):
        sample(logits_of([1, 2]), [SamplingRow(GREEDY, 0)] * 2)


PARAMS = [
    SamplingParams(temperature=1.0),
    SamplingParams(temperature=0.7, top_k=5),
    SamplingParams(temperature=1.5, top_p=0.8),
    SamplingParams(temperature=1.0, min_p=0.1),
    SamplingParams(temperature=1.2, top_k=9, top_p=0.9, min_p=0.05),
]


@pytest.mark.parametrize("params", PARAMS, ids=str)
def test_frequencies_follow_the_exact_distribution(params: SamplingParams) -> None:
    """Chi-square with a fixed seed; 3.5 sigma above its mean is the limit."""
    draws = 6000
    logits = [1.0, 0.2, 2.5, -1.0, 2.5, 0.0, 1.7, -0.3, 0.9, -2.0, 1.1, 0.4]
    specs = [SamplingRow(params, position) for position in range(draws)]
    tokens = sample(torch.tensor(logits).expand(draws, -1), specs)
    counts = np.bincount(tokens, minlength=len(logits))
    expected = exact_distribution(logits, params) * draws
    possible = expected > 0
    assert counts[~possible].sum() == 0
    freedom = int(possible.sum()) - 1
    statistic = float(((counts - expected)[possible] ** 2 / expected[possible]).sum())
    assert statistic < freedom + 3.5 * (2 * freedom) ** 0.5


@settings(deadline=None, max_examples=200)
@given(
    logits=st.lists(st.sampled_from([-3.0, -1.0, 0.0, 0.5, 2.0, 2.25]), min_size=1, max_size=40),
    temperature=st.sampled_from([0.3, 1.0, 2.0]),
    top_k=st.integers(0, 45),
    top_p=st.sampled_from([0.05, 0.5, 0.9, 1.0]),
    min_p=st.sampled_from([0.0, 0.07, 0.4, 1.0]),
    seed=st.integers(0, 2**64 - 1),
    position=st.integers(0, 10_000),
)
def test_each_draw_is_the_exact_inverse(
    logits: list[float],
    temperature: float,
    top_k: int,
    top_p: float,
    min_p: float,
    seed: int,
    position: int,
) -> None:
    """Many ties: also the order among equal tokens is fixed."""
    params = SamplingParams(temperature, top_p, top_k, min_p, seed)
    spec = SamplingRow(params, position)
    assert sample(torch.tensor([logits]), [spec]) == [exact_draw(logits, spec)]


@pytest.mark.parametrize("spread", [0.05, 1.0, 4.0])
@pytest.mark.parametrize(
    "params",
    [
        SamplingParams(),
        SamplingParams(top_p=0.9),
        SamplingParams(min_p=0.02),
        SamplingParams(top_p=0.95, min_p=0.001, temperature=0.8),
        SamplingParams(top_k=300, top_p=0.9),
    ],
    ids=str,
)
def test_prefixes_of_the_order_give_the_same_draws_as_all_of_it(
    params: SamplingParams, spread: float
) -> None:
    """Flat rows need the whole order, peaked ones a prefix: both are the exact inverse."""
    logits = random_logits(1, spread)
    values = logits[0].tolist()
    for position in range(8):
        spec = SamplingRow(params, position)
        assert sample(logits, [spec]) == [exact_draw(values, spec)]


def test_rows_ignore_their_neighbours() -> None:
    logits = random_logits(5)
    specs = [
        SamplingRow(GREEDY, 4),
        SamplingRow(SamplingParams(seed=3), 9),
        SamplingRow(SamplingParams(top_k=40, seed=3), 9, frozenset({1})),
        SamplingRow(SamplingParams(top_p=0.9, temperature=0.6, seed=5), 10),
        SamplingRow(SamplingParams(min_p=0.01, temperature=1.4, seed=2**63), 11),
    ]
    alone = [sample(logits[[row]], [spec])[0] for row, spec in enumerate(specs)]
    for order in itertools.permutations(range(5)):
        together = sample(logits[list(order)], [specs[row] for row in order])
        assert together == [alone[row] for row in order]


def test_seed_and_position_alone_decide() -> None:
    logits = torch.zeros(1, 1000)
    specs = [SamplingRow(SamplingParams(seed=s), p) for s in range(5) for p in range(5)]
    drawn = [sample(logits, [spec])[0] for spec in specs]
    assert drawn == [sample(logits, [spec])[0] for spec in specs]
    assert len(set(drawn)) > 20


def test_extreme_temperatures() -> None:
    logits = logits_of([1.0, 2.0, 0.5])
    tiny = [SamplingRow(SamplingParams(temperature=1e-300, seed=s), 0) for s in range(20)]
    assert set(sample(logits.expand(20, -1), tiny)) == {1}
    huge = [SamplingRow(SamplingParams(temperature=1e6, seed=s), 0) for s in range(50)]
    assert set(sample(logits.expand(50, -1), huge)) == {0, 1, 2}
