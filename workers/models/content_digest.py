"""The SHA-256 of a whole file, computed once: kept beside the file, or else in the cache folder.

A model is named by what its files hold, whole: two fine-tunes may differ in one matrix, and a file
may be mended in place. Reading everything costs about a second a GB, and each start would pay that
again; so what was found is kept with the size and the time of the file's last change. It lies
beside the file, so that all machines which share a folder pay once.
"""

import hashlib
import json
import os
import tempfile
import time
from contextlib import suppress
from pathlib import Path
from typing import Any

from segue.cluster.config.environment import cache_folder
from segue.cluster.errors import ConfigurationError

DIGESTS_FILE = ".segue-digests.json"
# A change within a tick of the file system's clock leaves the time as it was.
SETTLED_NS = 2 * 10**9


def content_digest(path: Path) -> str:
    """Hexadecimal. Raises ConfigurationError if the file cannot be read."""
    try:
        stamp = _stamp(path)
        places = (path.parent / DIGESTS_FILE, _place_in_cache(path.parent))
        for place in places:
            if (kept := _read(place).get(path.name)) and kept.get("stamp") == stamp:
                return str(kept["sha256"])
        digest = _computed(path)
        if _stamp(path) != stamp:
            raise ConfigurationError(f"{path} changes while it is read")
    except OSError as error:
        raise ConfigurationError(f"{path}: cannot be read: {error}") from error
    if time.time_ns() - stamp[1] > SETTLED_NS:
        for place in places:
            if _keep(place, path.name, {"stamp": stamp, "sha256": digest}):
                break
    return digest


def _stamp(path: Path) -> list[int]:
    """Changes whenever the content does."""
    found = path.stat()
    return [found.st_size, found.st_mtime_ns]


def _computed(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _place_in_cache(folder: Path) -> Path:
    name = hashlib.sha256(os.fsencode(folder.resolve())).hexdigest()[:32]
    return cache_folder() / "digests" / f"{name}.json"


def _read(place: Path) -> dict[str, Any]:
    try:
        kept = json.loads(place.read_bytes())
    except (OSError, ValueError):
        return {}
    return {k: v for k, v in kept.items() if isinstance(v, dict)} if isinstance(kept, dict) else {}


def _keep(place: Path, name: str, entry: dict[str, Any]) -> bool:
    """False if the folder cannot be written to."""
    draft = ""
    try:
        place.parent.mkdir(parents=True, exist_ok=True)
        descriptor, draft = tempfile.mkstemp(prefix=".segue-", dir=place.parent)
        with os.fdopen(descriptor, "w") as file:
            json.dump({**_read(place), name: entry}, file)
        os.chmod(draft, 0o644)
        os.replace(draft, place)
    except OSError:
        with suppress(OSError):
            os.unlink(draft)
        return False
    return True
