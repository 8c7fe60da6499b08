"""What is generated or written twice agrees: protobuf code, pins and ranges, the typing marker."""

import re
import subprocess
import sys
import tomllib
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
PROTO = "segue/cluster/rpc/serving.proto"


def project() -> dict[str, Any]:
    table: dict[str, Any] = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    return table


def pins() -> dict[str, str]:
    lines = (ROOT / "constraints.txt").read_text().splitlines()
    pairs = [line.split("==") for line in lines if line and not line.startswith("#")]
    return {normal(name): version for name, version in pairs}


def normal(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()


def requirement_name(requirement: str) -> str:
    found = re.match(r"[A-Za-z0-9._-]+", requirement)
    assert found is not None, requirement
    return normal(found.group())


def test_generated_code_is_what_protoc_makes(tmp_path: Path) -> None:
    plugin = Path(sys.executable).parent / "protoc-gen-mypy_grpc"
    outputs = [f"--{kind}_out={tmp_path}" for kind in ("python", "pyi", "grpc_python", "mypy_grpc")]
    command = [sys.executable, "-m", "grpc_tools.protoc", "-I", "src", *outputs]
    command += [f"--plugin=protoc-gen-mypy_grpc={plugin}", f"src/{PROTO}"]
    made = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=60)
    assert made.returncode == 0, made.stderr
    fresh = {path.name: path.read_text() for path in (tmp_path / PROTO).parent.iterdir()}
    kept = {path.name: path.read_text() for path in (ROOT / "cluster" / "rpc").glob("*_pb2*.py*")}
    assert sorted(kept) == sorted(fresh)
    stale = [name for name, text in kept.items() if text != fresh[name]]
    assert not stale, "run `make proto`"


def test_every_dependency_is_pinned_once() -> None:
    table = project()
    extras: dict[str, list[str]] = table["optional-dependencies"]
    wanted = [*table["dependencies"], *(line for lines in extras.values() for line in lines)]
    assert [name for name in map(requirement_name, wanted) if name not in pins()] == []
    assert len(pins()) == (ROOT / "constraints.txt").read_text().count("==")


def test_the_package_is_typed_and_knows_its_version() -> None:
    assert (ROOT / "src" / "segue" / "py.typed").exists()
    text = (ROOT / "src" / "segue" / "__init__.py").read_text()
    assert f'__version__ = "{project()["version"]}"' in text


def test_pyright_checks_every_folder() -> None:
    """It does not follow links, so it must be told the folders they lead to."""
    table = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["pyright"]
    links = [path.name for path in (ROOT / "src" / "segue").iterdir() if path.is_symlink()]
    assert sorted(table["include"]) == sorted([*links, "tests"])
