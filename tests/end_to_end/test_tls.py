"""A fleet under mutual TLS: gateway, controller and workers all call each other by certificate."""

from pathlib import Path

from certificates import authority
from local_fleet import local_fleet

from segue.cluster.config.file import parse_config


async def test_a_prompt_is_handed_over_under_tls(bundled_model: Path, tmp_path: Path) -> None:
    tls = authority(tmp_path / "ca").certificate("node").model_dump()
    pools = {role: {"role": role} for role in ("prefill", "decode")}
    config = parse_config(
        {"pools": pools, "model": {"max_model_len": 256}, "control": {"tls": tls}}
    )
    async with local_fleet(config, bundled_model) as fleet:
        answer = await fleet.ask(list(range(100, 164)), 8)
        assert len(answer.tokens) == 8
        statuses = {status.role: status for status in await fleet.settled()}
    assert statuses["decode"].counters["kv_bytes_read"] > 0
