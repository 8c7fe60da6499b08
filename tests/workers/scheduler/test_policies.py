"""What the configuration may name is what the scheduler has."""

from typing import get_args

from segue.cluster.config import EngineConfig
from segue.workers.scheduler.chunking import CHUNKING
from segue.workers.scheduler.policies import CAPACITY_POLICIES


def names(field: str) -> list[str]:
    return sorted(get_args(EngineConfig.model_fields[field].annotation))


def test_every_configurable_policy_exists_and_the_other_way_round() -> None:
    assert names("capacity_scheduler_policy") == sorted(CAPACITY_POLICIES)
    assert names("context_chunking_policy") == sorted(CHUNKING)
    assert all(policy.name == name for name, policy in CAPACITY_POLICIES.items())
