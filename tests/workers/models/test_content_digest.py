"""A file is read whole, once, for as long as it is the same file."""

import hashlib
import os
from pathlib import Path

import pytest

from segue.cluster.errors import ConfigurationError
from segue.workers.models import content_digest as module
from segue.workers.models.content_digest import DIGESTS_FILE, content_digest


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("SEGUE_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache"


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "models" / "weights"
    path.parent.mkdir()
    write(path, b"abc", 1000)
    return path


def write(path: Path, content: bytes, changed: int) -> None:
    path.write_bytes(content)
    os.utime(path, (changed, changed))


@pytest.fixture
def reads(monkeypatch: pytest.MonkeyPatch) -> list[Path]:
    found: list[Path] = []
    computed = module._computed

    def counted(path: Path) -> str:
        found.append(path)
        return computed(path)

    monkeypatch.setattr(module, "_computed", counted)
    return found


def test_it_is_the_digest_of_everything_and_is_computed_once(file: Path, reads: list[Path]) -> None:
    assert {content_digest(file) for _ in range(3)} == {hashlib.sha256(b"abc").hexdigest()}
    assert reads == [file]
    assert (file.parent / DIGESTS_FILE).stat().st_mode & 0o777 == 0o644  # others share the folder


def test_a_file_mended_in_place_is_another_one(file: Path, reads: list[Path]) -> None:
    content_digest(file)
    write(file, b"abd", 1001)  # of the same size
    assert content_digest(file) == hashlib.sha256(b"abd").hexdigest()
    assert len(reads) == 2


def test_what_has_just_changed_is_not_remembered(file: Path, reads: list[Path]) -> None:
    """It may change again within the same tick of the clock."""
    file.write_bytes(b"new")
    content_digest(file)
    content_digest(file)
    assert len(reads) == 2


def test_a_folder_that_can_not_be_written_is_remembered_elsewhere(
    file: Path, reads: list[Path], cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (file.parent / DIGESTS_FILE).mkdir()  # even for root
    for _ in range(2):
        content_digest(file)
    assert len(reads) == 1 and list((cache / "digests").iterdir())
    (cache / "digests").rename(cache / "gone")
    (cache / "digests").write_text("no folder")
    assert content_digest(file) == hashlib.sha256(b"abc").hexdigest()


@pytest.mark.parametrize("kept", ["", "[]", "{", '{"weights": 7}', '{"weights": {"stamp": 1}}'])
def test_a_broken_note_is_no_obstacle(file: Path, kept: str) -> None:
    (file.parent / DIGESTS_FILE).write_text(kept)
    assert content_digest(file) == hashlib.sha256(b"abc").hexdigest()


def test_files_of_one_folder_keep_each_others_notes(file: Path, reads: list[Path]) -> None:
    other = file.with_name("other")
    write(other, b"x", 1000)
    for _ in range(2):
        content_digest(file)
        content_digest(other)
    assert reads == [file, other]


def test_a_missing_file_is_one_line(tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match="cannot be read"):
        content_digest(tmp_path / "nowhere")
