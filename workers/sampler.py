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

# How many of the likeliest tokens are looked at before the whole vocabulary is sorted.
PREFIX_TOKENS = (256, 4096)

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
    for row, spec in enumerate(specs):
        if spec.forbidden:
            tokens[row] = _sample_row(_mask(logits[row], spec.forbidden), spec)
        elif spec.params.temperature > 0:
            tokens[row] = _sample_row(logits[row], spec)
    return tokens


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


def _mask(row: torch.Tensor, forbidden: frozenset[int]) -> torch.Tensor:
    tokens = [token for token in forbidden if 0 <= token < row.shape[0]]
    return row.index_fill(0, torch.tensor(tokens, device=row.device), -torch.inf)


def _sample_row(row: torch.Tensor, spec: SamplingRow) -> int:
    params = spec.params
    if params.temperature <= 0:
        return _argmax(row[None])[0]
    point = uniform(params.seed, spec.position)
    vocabulary = row.shape[0]
    if 0 < params.top_k < vocabulary:
        return _draw_complete(_largest(row, params.top_k, params.temperature), params, point)
    mass = _mass(row, params.temperature)
    for count in PREFIX_TOKENS:
        if count < vocabulary:
            token = _draw_from_prefix(_largest(row, count, params.temperature), mass, params, point)
            if token is not None:
                return token
    return _draw_complete(_largest(row, vocabulary, params.temperature), params, point)


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
    if params.top_p < 1.0 or params.min_p > 0.0 or cumulative[-1] <= point * mass:
        return None
    return int(ranking.ids[np.searchsorted(cumulative, point * mass, side="right")])


def _num_nucleus(cumulative: Floats, mass: float) -> int:
    """How many tokens it takes to reach `mass`, the one that crosses it included."""
    return min(int(np.searchsorted(cumulative, mass, side="left")) + 1, len(cumulative))


def _num_likely(ranking: _Ranking, min_p: float) -> int:
    # Tokens of weight 0 (forbidden, or underflown) are not likely whatever min_p is.
    return int(np.count_nonzero((ranking.weights >= min_p) & (ranking.weights > 0.0)))


def _invert(ranking: _Ranking, cumulative: Floats, kept: int, point: float) -> int:
    target = point * float(cumulative[kept - 1])
    return int(ranking.ids[min(int(np.searchsorted(cumulative, target, side="right")), kept - 1)])


def _mass(row: torch.Tensor, temperature: float) -> float:
    return float(((row - row.amax()) / temperature).exp_().sum(dtype=torch.float64))


def _largest(row: torch.Tensor, count: int, temperature: float) -> _Ranking:
    """The `count` likeliest tokens."""
    vocabulary = row.shape[0]
    if count < vocabulary:
        top_values, top_ids = row.topk(count + 1)
        if bool(top_values[-2] == top_values[-1]):
            # Which of the equal ones topk chose is up to it: collect them all.
            top_ids = (row >= top_values[-1]).nonzero()[:, 0]
            top_values = row[top_ids]
        ids, values = top_ids.cpu().numpy(), top_values.cpu().numpy()
    else:
        ids, values = np.arange(vocabulary), row.cpu().numpy()
    order = np.lexsort((ids, -values))[:count]
    ranked = values[order].astype(np.float64)
    with np.errstate(over="ignore"):  # a tiny temperature: all weights but the first become 0
        weights = np.exp((ranked - ranked[0]) / temperature)
    return _Ranking(ids[order], weights)
