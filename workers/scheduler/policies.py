"""The one place that knows every capacity policy, and every expectation, by name."""

from segue.cluster.worker_status import UsualAnswer
from segue.workers.scheduler.capacity import CapacityPolicy, CapacityPolicyName
from segue.workers.scheduler.capacity_guaranteed_no_evict import GuaranteedNoEvict
from segue.workers.scheduler.capacity_max_utilization import MaxUtilization
from segue.workers.scheduler.capacity_static_batch import StaticBatch
from segue.workers.scheduler.expected_output import FixedOutput, LearnedOutput

CAPACITY_POLICIES: dict[CapacityPolicyName, type[CapacityPolicy]] = {
    policy.name: policy for policy in (GuaranteedNoEvict, MaxUtilization, StaticBatch)
}


def capacity_policy(
    name: str, expected_output: str | int = "full", heard: UsualAnswer | None = None
) -> CapacityPolicy:
    """As the configuration names them. Raises ValueError if they do not go together.

    `heard`: what one that learns believes until it knows better.
    """
    wanted = CapacityPolicyName(name)
    if wanted is CapacityPolicyName.MAX_UTILIZATION:
        if expected_output != "full":
            raise ValueError(f"{name} expects nothing of answers")
        return MaxUtilization()
    kind = StaticBatch if wanted is CapacityPolicyName.STATIC_BATCH else GuaranteedNoEvict
    if expected_output == "full":
        return kind()
    if expected_output == "learned":
        return kind(LearnedOutput(heard))
    return kind(FixedOutput(int(expected_output)))
