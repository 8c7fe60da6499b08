"""Block keys: equal for equal content, different for any difference, the same in every process."""

import dataclasses
import hashlib
import struct
import subprocess
import sys
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from segue.cluster.block_hash import KeyScope, block_keys, child_key, root_key

SCOPE = KeyScope("rev", "float32", 16, "theta=10000")
TOKENS = st.lists(st.integers(0, 2**32 - 1), max_size=40)


def keys(tokens: list[int], block_size: int = 4, scope: KeyScope = SCOPE) -> list[bytes]:
    return list(block_keys(root_key(scope), tokens, block_size))


@given(TOKENS, st.integers(1, 8))
def test_keys_are_the_documented_chain(tokens: list[int], block_size: int) -> None:
    parent, chain = root_key(SCOPE), []
    for at in range(len(tokens) // block_size):
        block = tokens[at * block_size : (at + 1) * block_size]
        parent = hashlib.sha256(parent + struct.pack(f"<{block_size}I", *block)).digest()
        chain.append(parent)
    assert keys(tokens, block_size) == chain


@given(TOKENS, TOKENS)
def test_keys_are_shared_exactly_as_far_as_the_tokens(left: list[int], right: list[int]) -> None:
    common = next(
        (i for i, (a, b) in enumerate(zip(left, right, strict=False)) if a != b),
        min(len(left), len(right)),
    )
    for index, (a, b) in enumerate(zip(keys(left), keys(right), strict=False)):
        assert (a == b) == ((index + 1) * 4 <= common)


@given(TOKENS, TOKENS)
def test_a_key_never_depends_on_later_tokens(tokens: list[int], more: list[int]) -> None:
    assert keys(tokens + more)[: len(tokens) // 4] == keys(tokens)


@pytest.mark.parametrize("field", [field.name for field in dataclasses.fields(KeyScope)])
def test_every_part_of_the_scope_counts(field: str) -> None:
    change: dict[str, Any] = {field: 17 if field == "block_size" else "other"}
    assert root_key(dataclasses.replace(SCOPE, **change)) != root_key(SCOPE)


def test_absent_and_empty_differ_and_neighbours_do_not_run_together() -> None:
    variants = [
        SCOPE,
        dataclasses.replace(SCOPE, adapter=""),
        dataclasses.replace(SCOPE, salt=""),
        dataclasses.replace(SCOPE, adapter="ab", salt="c"),
        dataclasses.replace(SCOPE, adapter="a", salt="bc"),
        dataclasses.replace(SCOPE, adapter="absent"),
    ]
    assert len({root_key(scope) for scope in variants}) == len(variants)


def test_another_process_with_another_hash_seed_agrees() -> None:
    program = (
        "from segue.cluster.block_hash import *;"
        "s = KeyScope('rev', 'float32', 16, 'theta=10000');"
        "print(child_key(root_key(s), [1, 2, 3]).hex())"
    )
    run = subprocess.run(
        [sys.executable, "-c", program],
        env={"PYTHONHASHSEED": "12345"},
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
    )
    assert run.stdout.strip() == child_key(root_key(SCOPE), [1, 2, 3]).hex()


@pytest.mark.parametrize("token", [-1, 2**32])
def test_what_is_no_token_id_is_refused(token: int) -> None:
    with pytest.raises(OverflowError):
        child_key(root_key(SCOPE), [token])
