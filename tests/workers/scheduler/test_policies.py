"""What the configuration may name is what the scheduler has."""

from typing import get_args

import pytest

from segue.cluster.config.engine import EngineConfig
from segue.workers.scheduler.chunking import CHUNKING, ChunkingPolicy
from segue.workers.scheduler.policies import CAPACITY_POLICIES, capacity_policy


def names(field: str) -> list[str]:
    return sorted(get_args(EngineConfig.model_fields[field].annotation))


def test_every_configurable_policy_exists_and_the_other_way_round() -> None:
    assert names("capacity_scheduler_policy") == sorted(CAPACITY_POLICIES)
    # Without chunks a prompt could wait for ever beside generations: only for rehearsals.
    assert names("context_chunking_policy") == sorted({*CHUNKING} - {ChunkingPolicy.NO_CHUNKING})
    assert all(policy.name == name for name, policy in CAPACITY_POLICIES.items())


def test_expectations_go_with_policies_that_promise() -> None:
    for name in ("guaranteed_no_evict", "static_batch"):
        assert not capacity_policy(name).pauses
        assert capacity_policy(name, "learned").pauses and capacity_policy(name, 7).pauses
    with pytest.raises(ValueError, match="expects nothing"):
        capacity_policy("max_utilization", 7)
