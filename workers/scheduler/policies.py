"""The one place that knows every capacity policy by name."""

from segue.workers.scheduler.capacity import CapacityPolicy, CapacityPolicyName
from segue.workers.scheduler.capacity_guaranteed_no_evict import GuaranteedNoEvict
from segue.workers.scheduler.capacity_max_utilization import MaxUtilization
from segue.workers.scheduler.capacity_static_batch import StaticBatch

CAPACITY_POLICIES: dict[CapacityPolicyName, CapacityPolicy] = {
    policy.name: policy for policy in (GuaranteedNoEvict(), MaxUtilization(), StaticBatch())
}
