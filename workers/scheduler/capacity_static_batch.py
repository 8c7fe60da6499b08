"""STATIC_BATCH: a batch is filled, then closed until its last generation ends."""

from segue.workers.scheduler.capacity import CapacityDecision, CapacityPolicyName, CapacityView
from segue.workers.scheduler.capacity_guaranteed_no_evict import GuaranteedNoEvict
from segue.workers.scheduler.plan import Decision, Reason


class StaticBatch(GuaranteedNoEvict):
    """Open as long as nobody generates, so contexts and landing sequences join one batch."""

    name = CapacityPolicyName.STATIC_BATCH
    delays_for_reuse = False

    def decide(self, view: CapacityView) -> CapacityDecision:
        if view.num_generating and not self.may_pause(view.growing, view.cache):
            held = [Decision(s.attempt, Reason.BATCH_CLOSED) for s in view.waiting[:1]]
            return CapacityDecision(held=held)
        return super().decide(view)
