"""The KV-cache that an engine is configured to have, and the longest sequence it must hold."""

import pytest

from segue.cluster.config.engine import EngineConfig
from segue.cluster.errors import ConfigurationError
from segue.workers.kvcache.sizing import BlockSize, check_longest_sequence, num_kv_blocks


def test_blocks_are_what_is_asked_for_or_what_fits() -> None:
    block = BlockSize(16, 100)
    assert num_kv_blocks(EngineConfig(num_kv_blocks=7), block, 1) == 7
    for budget, blocks in ((100, 1), (299, 2), (300, 3)):
        assert num_kv_blocks(EngineConfig(), block, budget) == blocks
    assert num_kv_blocks(EngineConfig(max_kv_tokens=17), block, 1000) == 2
    with pytest.raises(ConfigurationError, match="no room for one block"):
        num_kv_blocks(EngineConfig(), block, 99)


@pytest.mark.parametrize(("longest", "fits"), [(31, True), (32, True), (33, False)])
def test_the_longest_sequence_is_checked_at_the_boundary(longest: int, fits: bool) -> None:
    if fits:
        check_longest_sequence(longest, 16, 2, 100)
        return
    with pytest.raises(ConfigurationError, match=r"\(33\) needs 3 KV blocks.* 300 bytes") as told:
        check_longest_sequence(longest, 16, 2, 100)
    assert "has 2 (room for 32 tokens)" in told.value.message
