"""The transfer benchmark moves what it says, and its figures have their keys."""

import importlib.util

import pytest

from segue.bench import transfer_bench

pytestmark = pytest.mark.skipif(
    not any(importlib.util.find_spec(name) for name in ("nixl", "nixl_cu12")),
    reason="NIXL is not installed",
)


def test_the_figures_have_their_keys(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(transfer_bench, "NUM_BLOCKS", (1, 2))
    figures = transfer_bench.measure(rounds=1)
    assert list(figures) == ["pair", "block_bytes", "blocks"]
    pair, blocks = figures["pair"], figures["blocks"]
    assert isinstance(pair, dict) and pair["transport"] in ("shm", "tcp") and pair["measured"]
    assert isinstance(blocks, dict) and list(blocks) == ["1", "2"]
    for found in blocks.values():
        ways = ("raw", "prepared", "read", "checked")  # a wrong byte would have failed `checked`
        assert {f"{way}_us" for way in (*ways, "describe", "name")} <= found.keys()
        assert all(found[f"{way}_gb_per_s"] > 0 for way in ways)
    assert "blocks  checked" in capsys.readouterr().out
