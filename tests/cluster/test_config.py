"""The configuration: defaults, what is refused and how the refusal reads."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any, get_args

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st
from pydantic import BaseModel
from pydantic.fields import FieldInfo

from segue.cluster.config.environment import cache_folder
from segue.cluster.config.file import load_config, parse_config
from segue.cluster.config.model import BUNDLED_MODEL, ModelConfig
from segue.cluster.config.whole import SegueConfig
from segue.cluster.errors import ConfigurationError

BOTH: dict[str, Any] = {"role": "both"}
# Fields whose name, type and section say everything; any other needs a description.
SELF_EXPLAINING = {
    *("model", "gateway", "pools", "transfer", "control", "admission", "recovery"),
    *("replica", "engine", "role", "num_replicas", "host", "port", "load_format", "dtype"),
    *("overload_status", "retry_after_s", "request_timeout_s", "max_body_bytes"),
    *("num_cpus", "num_gpus", "label_selector", "device", "block_size", "num_kv_blocks"),
    *("enable_prefix_caching", "torch_threads", "lease_s", "read_timeout_s", "heartbeat_s"),
    *("start_timeout_s",),
}


def sections(model: type[BaseModel] = SegueConfig) -> Iterator[type[BaseModel]]:
    yield model
    for field in model.model_fields.values():
        for inner in (field.annotation, *get_args(field.annotation)):
            if isinstance(inner, type) and issubclass(inner, BaseModel):
                yield from sections(inner)


def every_field() -> dict[str, FieldInfo]:
    named = {s.__name__: s for s in sections()}
    return {f"{n}.{k}": f for n, s in named.items() for k, f in s.model_fields.items()}


def engine(**values: Any) -> dict[str, Any]:
    return {"pools": {"all": BOTH | {"engine": values}}}


def refusal(data: Any) -> str:
    with pytest.raises(ConfigurationError) as caught:
        parse_config(data)
    return caught.value.message


def test_an_empty_file_serves_the_bundled_model(tmp_path: Path) -> None:
    empty = tmp_path / "empty.yaml"
    empty.write_text("# nothing\n")
    assert load_config(empty) == load_config(None) == SegueConfig()
    assert SegueConfig().model.served_name == BUNDLED_MODEL
    assert {pool.role for pool in SegueConfig().pools.values()} == {"prefill", "decode"}


def test_the_configuration_survives_yaml() -> None:
    config = parse_config({"gateway": {"port": 0}, "pools": {"all": BOTH | {"num_replicas": 2}}})
    assert parse_config(yaml.safe_load(yaml.safe_dump(config.model_dump()))) == config


def test_the_configuration_cannot_be_changed() -> None:
    with pytest.raises(ValueError, match="frozen"):
        SegueConfig().gateway.port = 1


def test_every_field_is_explained() -> None:
    silent = [
        name
        for name, field in every_field().items()
        if not field.description and name.partition(".")[2] not in SELF_EXPLAINING
    ]
    assert silent == []


@pytest.mark.parametrize(
    ("data", "message"),
    [
        ({"gatewy": {}}, "gatewy: unknown key; did you mean 'gateway'?"),
        ({"gateway": {"prot": 1}}, "gateway.prot: unknown key; did you mean 'port'?"),
        (
            {"gateway": {"admission": {"max_queue_requests": 1}}},
            "gateway.admission.max_queue_requests: unknown key; "
            "did you mean 'max_queued_requests'?",
        ),
        (engine(chunksize=16), "engine.chunksize: unknown key; did you mean 'chunk_size'?"),
        # The pool bears the name of a section: the keys offered are still the engine's.
        (
            {"pools": {"replica": BOTH | {"engine": {"chunk_siz": 16}}}},
            "pools.replica.engine.chunk_siz: unknown key; did you mean 'chunk_size'?",
        ),
        ({"transfer": {"zzz": 1}}, "known keys: checksum, credit_wait_s, layer_groups, lease_s"),
    ],
)
def test_unknown_keys_name_the_nearest(data: Any, message: str) -> None:
    assert message in refusal(data)


@given(st.sampled_from(sorted(every_field())), st.integers(0, 30), st.booleans())
def test_a_typing_slip_in_any_top_level_section_is_named(name: str, at: int, drop: bool) -> None:
    """Whatever letter of a known key is lost or doubled, the known key is offered."""
    section, _, key = name.partition(".")
    places = {"GatewayConfig": "gateway", "TransferConfig": "transfer", "ControlConfig": "control"}
    if section not in places or len(key) < 4:
        return
    at %= len(key)
    slip = key[:at] + ("" if drop else key[at] * 2) + key[at + 1 :]
    known = SegueConfig.model_fields[places[section]].annotation
    assert isinstance(known, type) and issubclass(known, BaseModel)
    if slip not in known.model_fields:
        assert f"did you mean '{key}'?" in refusal({places[section]: {slip: 1}})


def test_every_wrong_key_is_listed_at_once() -> None:
    message = refusal({"gateway": {"port": 70000, "prot": 1}, "model": {"dtype": "int3"}})
    assert len(message.splitlines()) == 4
    assert "gateway.port: Input should be less than or equal to 65535" in message
    assert "model.dtype: Input should be 'auto', 'float32', 'bfloat16' or 'float16'" in message


@pytest.mark.parametrize(
    ("data", "message"),
    [
        ([], "expected a mapping at the top level"),
        ({1: 2}, "Keys should be strings"),
        ({"pools": {}}, "at least 1 item"),
        ({"pools": {"p": {"role": "prefill"}}}, "no pool has role 'decode' (nor 'both')"),
        ({"pools": {"d": {"role": "decode"}}}, "no pool has role 'prefill' (nor 'both')"),
        ({"pools": {"CPU": BOTH}}, "pools.CPU"),
        ({"pools": {"memory": BOTH}}, "'memory' is a resource of Ray itself"),
        (
            {"pools": {"a": BOTH, "b": BOTH | {"engine": {"block_size": 32}}}},
            "block_size must be equal everywhere, got {'a': 16, 'b': 32}",
        ),
        (
            {"pools": {"a": BOTH, "b": BOTH | {"engine": {"kv_cache_dtype": "int8"}}}},
            "kv_cache_dtype must be equal everywhere, got {'a': 'auto', 'b': 'int8'}",
        ),
        (engine(kv_cache_dtype="fp4"), "kv_cache_dtype: Input should be 'auto', 'fp8_e4m3' or"),
        (engine(chunk_size=100), "chunk_size (100) must be a multiple of block_size (16)"),
        (engine(chunk_size=1024, max_num_batched_tokens=512), "max_num_batched_tokens (512)"),
        (
            engine(max_num_seqs=513, max_num_batched_tokens=512),
            "each running sequence takes one token a step",
        ),
        (engine(num_kv_blocks="all"), "num_kv_blocks"),
        (
            {"control": {"heartbeat_s": 1.3, "suspect_after_s": 2.5}},
            "2 * heartbeat_s <= suspect_after_s",
        ),
        (
            {"control": {"heartbeat_s": 21, "suspect_after_s": 60, "dead_after_s": 60}},
            "control.heartbeat_s: Input should be less than or equal to 20",
        ),
        ({"transfer": {"credit_wait_s": 3600}}, "transfer.credit_wait_s"),
        ({"transfer": {"read_timeout_s": 700}}, "transfer.read_timeout_s"),
        ({"control": {"heartbeat_s": 3}}, "heartbeat_s <= suspect_after_s <= dead_after_s"),
        ({"control": {"suspect_after_s": 11}}, "got 1.0, 11.0, 10.0"),
        ({"control": {"wedged_after_s": 59}}, "must not be below stalled_after_s"),
        ({"transfer": {"lease_s": float("inf")}}, "transfer.lease_s: Input should be a finite"),
        ({"transfer": {"lease_s": float("nan")}}, "transfer.lease_s"),
        ({"gateway": {"admission": {"overload_status": 500}}}, "overload_status"),
    ],
)
def test_what_cannot_work_is_refused_by_name(data: Any, message: str) -> None:
    assert message in refusal(data)


@given(block=st.integers(1, 512), factor=st.integers(1, 8), room=st.integers(0, 64), data=st.data())
def test_any_engine_that_keeps_the_rules_is_accepted(
    block: int, factor: int, room: int, data: st.DataObject
) -> None:
    chunk = block * factor
    sequences = data.draw(st.integers(1, chunk + room))
    config = parse_config(
        engine(
            block_size=block,
            chunk_size=chunk,
            max_num_batched_tokens=chunk + room,
            max_num_seqs=sequences,
        )
    )
    assert config.pools["all"].engine.max_num_seqs == sequences


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("gateway: [", "is not valid YAML"),
        ("a: 1\n---\nb: 2", "is not valid YAML"),
        ("!!python/object/apply:os.getcwd []", "is not valid YAML"),
        ("gateway: 2024-13-45", "is not valid YAML"),
        ("[" * 5000, "is not valid YAML"),
        ("gateway: {port: 1}\ngateway: {host: x}", "key 'gateway' is given twice"),
        ("just text", "expected a mapping at the top level"),
        ("gateway: {prot: 1}", "did you mean 'port'?"),
    ],
)
def test_a_bad_file_is_named_with_its_path(tmp_path: Path, text: str, message: str) -> None:
    path = tmp_path / "cluster.yaml"
    path.write_text(text)
    with pytest.raises(ConfigurationError, match="cluster.yaml") as caught:
        load_config(path)
    assert message in caught.value.message


def test_yaml_anchors_and_merges_are_allowed(tmp_path: Path) -> None:
    path = tmp_path / "cluster.yaml"
    path.write_text(
        "pools:\n  a: &a {role: both, num_replicas: 2}\n  b: {<<: *a, num_replicas: 3}\n"
    )
    assert [pool.num_replicas for pool in load_config(path).pools.values()] == [2, 3]


@pytest.mark.parametrize("make", [lambda p: p / "absent.yaml", lambda p: p])
def test_an_unreadable_file_is_named(tmp_path: Path, make: Any) -> None:
    with pytest.raises(ConfigurationError, match="cannot read"):
        load_config(make(tmp_path))


def test_bytes_that_are_not_text_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "binary.yaml"
    path.write_bytes(b"model: \xff\xfe")
    with pytest.raises(ConfigurationError, match="is not valid YAML"):
        load_config(path)


@pytest.mark.parametrize(
    ("path", "name"),
    [
        ("org/Model-3.1-8B", "Model-3.1-8B"),
        ("/models/tiny.Q4_1.gguf", "tiny.Q4_1"),
        ("/models/tiny/", "tiny"),
        (".", "."),
    ],
)
def test_the_served_name_is_the_last_part_of_the_path(path: str, name: str) -> None:
    assert ModelConfig(path=path).served_name == name
    assert ModelConfig(path=path, id="mine").served_name == "mine"


def test_the_cache_folder_follows_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", "/xdg")
    monkeypatch.delenv("SEGUE_CACHE", raising=False)
    assert cache_folder() == Path("/xdg/segue")
    monkeypatch.setenv("SEGUE_CACHE", "/elsewhere")
    assert cache_folder() == Path("/elsewhere")


@pytest.mark.parametrize(
    ("written", "num_bytes"),
    [(5000, 5000), ("5000", 5000), ("2GiB", 2**31), ("1.5 MiB", 3 * 2**19), ("7 kB", 7000)],
)
def test_numbers_of_bytes_may_have_units(written: object, num_bytes: int) -> None:
    config = parse_config({"gateway": {"admission": {"max_body_bytes": written}}})
    assert config.gateway.admission.max_body_bytes == num_bytes
    assert parse_config(config.model_dump()) == config


@pytest.mark.parametrize("written", ["2 elephants", "", "GiB", "-1 GiB", "nan"])
def test_what_is_no_number_of_bytes_is_told_with_examples(written: str) -> None:
    message = refusal({"gateway": {"admission": {"max_body_bytes": written}}})
    assert "gateway.admission.max_body_bytes" in message
