"""Limits that depend on each other hold for everything that can be configured."""

from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from segue.cluster.config.control import ControlConfig
from segue.cluster.config.transfer import MAX_MOVE_S, TransferConfig
from segue.cluster.rpc.heartbeat import ORPHAN_AFTER_S, SILENCE_S
from segue.deploy.drain_command import MIGRATE_SECONDS
from segue.router.migration import ANSWER_SECONDS
from segue.workers.peer_clients import LONGEST_CALL_SECONDS
from segue.workers.peers import IDLE_SECONDS

ANSWERED_WITHIN = 5.0  # what callers add to the wait that they ask for


def greatest(section: type[Any], field: str) -> float:
    schema = section.model_json_schema()["properties"][field]
    return float(schema["maximum"])


def test_peers_are_kept_until_the_next_beats_have_named_them() -> None:
    slowest = greatest(ControlConfig, "heartbeat_s")
    assert 3 * slowest <= IDLE_SECONDS
    assert slowest + SILENCE_S < ORPHAN_AFTER_S


def test_no_call_is_longer_than_a_connection_that_closes_is_kept() -> None:
    waits = ("credit_wait_s", "read_timeout_s", "migration_wait_s", "preflight_timeout_s")
    for field in waits:
        assert greatest(TransferConfig, field) + ANSWERED_WITHIN < LONGEST_CALL_SECONDS, field


STAGE = st.floats(0.1, 600)


@given(wait=STAGE, read=STAGE, pause=STAGE)
def test_whoever_orders_a_move_waits_longer_than_its_stages_take(
    wait: float, read: float, pause: float
) -> None:
    transfer = TransferConfig(migration_wait_s=wait, read_timeout_s=read, migration_pause_s=pause)
    asked = wait + ANSWERED_WITHIN + read + ANSWERED_WITHIN + pause
    assert asked < transfer.longest_move_s <= MAX_MOVE_S
    assert transfer.longest_move_s + ANSWER_SECONDS < MIGRATE_SECONDS
