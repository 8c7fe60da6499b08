"""Draws one token for each row of logits: a pure function of the row, its parameters, its position.

Neighbours in the batch never matter: whatever is summed is summed row by row, and the random
number comes from (seed, position) alone. Filters apply in this order, each to what the last one
left: temperature, top_k, top_p (the token that crosses the threshold stays), min_p.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch

from segue.cluster.counter_rng import uniform
from segue.cluster.errors import InternalError
from segue.cluster.request import SamplingParams

# Only tokens at most this far behind the likeliest (in units of the temperature) are sorted at
# first: with weight e**-5 they are few, and they mostly hold nearly all of the mass.
PREFIX_DEPTHS = (5.0, 10.0)

Logits = npt.NDArray[np.float32]
Floats = npt.NDArray[np.float64]
Ids = npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class SamplingRow:
    """What one row of logits is sampled with. `position` is where the new token will stand.

    `forbidden`: tokens that must not be drawn (stop tokens while min_tokens is not reached).
    """

    params: SamplingParams
    position: int
    forbidden: frozenset[int] = frozenset()


@dataclass(frozen=True, slots=True)
class _Ranking:
    """Tokens by falling probability, then by index; weights are relative to the first one's."""

    ids: Ids
    weights: Floats

    def first(self, count: int) -> "_Ranking":
        return _Ranking(self.ids[:count], self.weights[:count])


class InvalidLogits(InternalError, ValueError):
    """The logits of `rows` hold NaN or infinity, or forbid every token."""

    def __init__(self, rows: Sequence[int]) -> None:
        super().__init__(f"logits of rows {list(rows)} cannot be sampled")
        self.rows = tuple(rows)


def sample(logits: torch.Tensor, specs: Sequence[SamplingRow]) -> list[int]:
    """Draw a token for each row of `logits` (rows, vocabulary), float32.

    Raises InvalidLogits with all bad rows; the others can be sampled without them.
    """
    if logits.dim() != 2 or logits.shape[0] != len(specs):
        raise ValueError(f"{len(specs)} specs cannot sample logits of {tuple(logits.shape)}")
    if not specs:
        return []
    _check(logits, specs)
    tokens = _argmax(logits)
    special = [row for row, spec in enumerate(specs) if _needs_more_than_argmax(spec)]
    if special:
        # Without a copy on the CPU; a GPU hands over the rows it must in one transfer.
        on_cpu = logits.device.type == "cpu"
        values = (logits if on_cpu else logits[special].cpu()).detach().numpy()
        for index, row in enumerate(special):
            tokens[row] = _sample_row(values[row if on_cpu else index], specs[row])
    return tokens


def _needs_more_than_argmax(spec: SamplingRow) -> bool:
    return spec.params.temperature > 0 or bool(spec.forbidden)


def _check(logits: torch.Tensor, specs: Sequence[SamplingRow]) -> None:
    # NaN survives both reductions, so two numbers a row tell whether all are finite.
    finite = torch.isfinite(logits.amax(1)) & torch.isfinite(logits.amin(1))
    vocabulary = logits.shape[1]
    bad = [
        row
        for row, good in enumerate(finite.tolist())
        if not good or _num_allowed(specs[row], vocabulary) == 0
    ]
    if bad:
        raise InvalidLogits(bad)


def _num_allowed(spec: SamplingRow, vocabulary: int) -> int:
    if not spec.forbidden:
        return vocabulary
    return vocabulary - sum(0 <= token < vocabulary for token in spec.forbidden)


def _argmax(logits: torch.Tensor) -> list[int]:
    """The lowest index of each row's maximum."""
    if logits.device.type == "cpu":  # numpy's is an order of magnitude faster than torch's
        indices: list[int] = logits.detach().numpy().argmax(axis=1).tolist()
        return indices
    return [int(index) for index in logits.argmax(dim=1).tolist()]


def _sample_row(row: Logits, spec: SamplingRow) -> int:
    params = spec.params
    if spec.forbidden:
        row = row.copy()
        row[[token for token in spec.forbidden if 0 <= token < len(row)]] = -np.inf
    if params.temperature <= 0:
        return int(row.argmax())
    point = uniform(params.seed, spec.position)
    mass = 0.0 if params.top_k else _mass(row, params.temperature)
    for depth in PREFIX_DEPTHS:
        ranking = _rank(row, params.temperature, depth)
        if 0 < params.top_k <= len(ranking.ids):
            return _draw_complete(ranking.first(params.top_k), params, point)
        if params.top_k == 0:
            token = _draw_from_prefix(ranking, mass, params, point)
            if token is not None:
                return token
    everything = _rank(row, params.temperature, float("inf"))
    return _draw_complete(everything.first(params.top_k or len(row)), params, point)


def _draw_complete(ranking: _Ranking, params: SamplingParams, point: float) -> int:
    cumulative = np.cumsum(ranking.weights)
    kept = _num_nucleus(cumulative, params.top_p * float(cumulative[-1]))
    kept = min(kept, _num_likely(ranking, params.min_p))
    return _invert(ranking, cumulative, kept, point)


def _draw_from_prefix(
    ranking: _Ranking, mass: float, params: SamplingParams, point: float
) -> int | None:
    """Draw like _draw_complete from the head of the order and the mass of everything.

    None: the answer depends on what is behind the prefix.
    """
    cumulative = np.cumsum(ranking.weights)
    size = len(ranking.ids)
    kept = _num_likely(ranking, params.min_p)
    if params.top_p < 1.0:
        kept = min(kept, _num_nucleus(cumulative, params.top_p * mass))
    if kept < size or (params.top_p < 1.0 and cumulative[-1] >= params.top_p * mass):
        return _invert(ranking, cumulative, kept, point)
    if params.top_p == 1.0 and params.min_p == 0.0 and cumulative[-1] > point * mass:
        return int(ranking.ids[np.searchsorted(cumulative, point * mass, side="right")])
    return None


def _num_nucleus(cumulative: Floats, mass: float) -> int:
    """How many tokens it takes to reach `mass`, the one that crosses it included."""
    return min(int(np.searchsorted(cumulative, mass, side="left")) + 1, len(cumulative))


def _num_likely(ranking: _Ranking, min_p: float) -> int:
    # Tokens of weight 0 (forbidden, or underflown) are not likely whatever min_p is.
    return int(np.count_nonzero((ranking.weights >= min_p) & (ranking.weights > 0.0)))


def _invert(ranking: _Ranking, cumulative: Floats, kept: int, point: float) -> int:
    target = point * float(cumulative[kept - 1])
    return int(ranking.ids[min(int(np.searchsorted(cumulative, target, side="right")), kept - 1)])


def _mass(row: Logits, temperature: float) -> float:
    """The weight of all tokens together."""
    with np.errstate(all="ignore"):  # extreme temperatures, as in _rank
        scaled = (row - row.max()) / np.float32(temperature)
        return float(np.exp(scaled).sum(dtype=np.float64))


def _rank(row: Logits, temperature: float, depth: float) -> _Ranking:
    """All tokens whose weight is at least about e**-depth: a prefix of the whole order.

    Equal logits are all in it or all not, so that the order among them is by index everywhere.
    """
    with np.errstate(over="ignore"):  # extreme temperatures: infinitely far is far enough
        ids = np.flatnonzero(row >= row.max() - np.float32(temperature * depth))
        values = row[ids]
        order = np.argsort(-values, kind="stable")  # ids rise, so equals stay in their order
        ranked = values[order].astype(np.float64)
        weights = np.exp((ranked - ranked[0]) / temperature)
    return _Ranking(ids[order], weights)
