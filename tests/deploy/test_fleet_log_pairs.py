"""What the operator is told of pairs of workers that exchange no KV."""

import logging
from dataclasses import replace

import pytest

from segue.cluster.config.pool import Role
from segue.cluster.fleet import FleetView, WorkerState, WorkerView
from segue.cluster.identity import Peer, WorkerIdentity
from segue.cluster.worker_status import PairReport, WorkerStatus
from segue.deploy.fleet_log import FleetLog
from segue.router.generation import Readiness


def worker(role: Role) -> WorkerView:
    identity = WorkerIdentity(f"{role}-0", "0123456789abcdef")
    status = WorkerStatus(identity, role)
    peer = Peer(identity, "127.0.0.1:7")
    return WorkerView(identity, role, role, WorkerState.READY, peer=peer, pid=7, status=status)


def test_a_refused_pair_is_told_once_and_its_return_too(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    log = FleetLog(lambda: Readiness(True), "here")
    prefill, decode = worker("prefill"), worker("decode")
    assert decode.status is not None
    pair = PairReport(prefill.identity, "tcp", "", True, 0.5, 1.0, refusal="tcp is not rdma")
    refusing = replace(decode, status=replace(decode.status, pairs=(pair,)))
    for sequence, reader in enumerate((decode, refusing, refusing, decode, decode)):
        log.observe(FleetView(sequence, "c", (prefill, reader)))
    told = [record.getMessage() for record in caplog.records if "decode-0 ready" not in record.msg]
    assert told.count("preflight failed: tcp is not rdma") == 1
    assert told.count("decode-0@01234567 reads KV from prefill-0@01234567 again") == 1
    assert told[-1].endswith("again")


def test_a_dead_worker_refuses_nobody(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    log = FleetLog(lambda: Readiness(True), "here")
    prefill, decode = worker("prefill"), worker("decode")
    pair = PairReport(prefill.identity, "tcp", "", True, 0.5, 1.0, refusal="tcp is not rdma")
    dead = replace(
        decode,
        state=WorkerState.DEAD,
        status=WorkerStatus(decode.identity, "decode", pairs=(pair,)),
    )
    log.observe(FleetView(1, "c", (prefill, dead)))
    assert "preflight failed" not in caplog.text
