"""The architecture, read from the source text: who imports whom, and what a file may look like.

Nothing is imported here. Each rule is a function from a parsed file to its violations, and each
is shown a planted violation, so that a rule which sees nothing is noticed.
"""

import ast
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
MAY_IMPORT: dict[str, set[str]] = {
    "cluster": set(),
    "kernels": set(),
    "kvtransfer": {"cluster", "kernels"},
    "workers": {"cluster", "kernels", "kvtransfer"},
    "router": {"cluster"},
    "bench": {"cluster", "router", "workers", "kvtransfer"},
    "deploy": {"cluster", "router", "workers", "kvtransfer", "kernels", "bench"},
}
# Where each heavy dependency may be named; a trailing slash means the whole folder.
HOME_OF: dict[str, str] = {
    "ray": "cluster/ray_launcher.py",
    "grpc": "cluster/rpc/",
    "google": "cluster/rpc/",
    "nixl": "kvtransfer/nixl_transport.py",
    "nixl_cu12": "kvtransfer/nixl_transport.py",
    "triton": "kernels/",
    "fastapi": "router/",
    "starlette": "router/",
    "pickle": "cluster/ray_launcher.py",
    "cloudpickle": "cluster/ray_launcher.py",
}
WITHOUT_TORCH = {"cluster", "router"}
ENVIRONMENT_READERS = {"cluster/config/environment.py", "cluster/ray_launcher.py"}
ENVIRONMENT_NAMES = {"environ", "environb", "getenv", "getenvb", "putenv", "unsetenv"}
MAX_FILE_LINES = 400
MAX_FUNCTION_LINES = 60


@dataclass(frozen=True, slots=True)
class Source:
    """One file of ours: its place in the repository and its text."""

    place: str
    text: str

    @property
    def folder(self) -> str:
        return self.place.partition("/")[0]

    @property
    def tree(self) -> ast.Module:
        return ast.parse(self.text, self.place)


def named_modules(tree: ast.Module) -> Iterator[str]:
    """Every dotted name a file imports, wherever in the file, import_module("x") included."""
    for node in ast.walk(tree):
        match node:
            case ast.Import(names=names):
                yield from (alias.name for alias in names)
            case ast.ImportFrom(module=str(module), names=names):
                yield from (f"{module}.{alias.name}" for alias in names)
            case ast.Call(
                func=ast.Name(id="__import__" | "import_module")
                | ast.Attribute(attr="import_module"),
                args=[ast.Constant(value=str(module)), *_],
            ):
                yield module
            case _:
                pass


def folder_violations(source: Source) -> Iterator[str]:
    allowed = MAY_IMPORT[source.folder] | {source.folder}
    for module in named_modules(source.tree):
        top, _, rest = module.partition(".")
        if top in MAY_IMPORT:
            yield f"write segue.{module}, not {module}"
        folder = rest.partition(".")[0]
        if top == "segue" and folder in MAY_IMPORT and folder not in allowed:
            yield f"{source.folder} must not import {module}"


def dependency_violations(source: Source) -> Iterator[str]:
    for module in named_modules(source.tree):
        top = module.partition(".")[0]
        home = HOME_OF.get(top, "")
        at_home = source.place.startswith(home) if home.endswith("/") else source.place == home
        if home and not at_home:
            yield f"{module} belongs in {home}"
        if top == "torch" and source.folder in WITHOUT_TORCH:
            yield f"{source.folder} must not import torch"


def environment_violations(source: Source) -> Iterator[str]:
    if source.place in ENVIRONMENT_READERS:
        return
    imported = {f"os.{name}" for name in ENVIRONMENT_NAMES} & set(named_modules(source.tree))
    yield from (f"{name} is for cluster/config/environment.py" for name in sorted(imported))
    for node in ast.walk(source.tree):
        match node:
            case ast.Attribute(value=ast.Name(id="os"), attr=name) if name in ENVIRONMENT_NAMES:
                yield f"line {node.lineno}: os.{name} is for cluster/config/environment.py"
            case _:
                pass


def shape_violations(source: Source) -> Iterator[str]:
    tree = source.tree
    if not ast.get_docstring(tree):
        yield "no docstring says what the module is responsible for"
    lines = source.text.count("\n")
    if lines > MAX_FILE_LINES:
        yield f"{lines} lines; at most {MAX_FILE_LINES}"
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            length = (node.end_lineno or node.lineno) - node.lineno + 1
            if length > MAX_FUNCTION_LINES:
                yield f"{node.name} has {length} lines; at most {MAX_FUNCTION_LINES}"


Rule = Callable[[Source], Iterator[str]]
RULES: tuple[Rule, ...] = (
    folder_violations,
    dependency_violations,
    environment_violations,
    shape_violations,
)


def is_generated(path: Path) -> bool:
    return "_pb2" in path.name


SOURCES = sorted(path for folder in MAY_IMPORT for path in (ROOT / folder).rglob("*.py"))


@pytest.mark.parametrize("path", SOURCES, ids=lambda path: str(path.relative_to(ROOT)))
def test_file_keeps_the_rules(path: Path) -> None:
    source = Source(str(path.relative_to(ROOT)), path.read_text(encoding="utf-8"))
    rules = [rule for rule in RULES if not (rule is shape_violations and is_generated(path))]
    assert [violation for rule in rules for violation in rule(source)] == []


@pytest.mark.parametrize(
    ("rule", "place", "text"),
    [
        (folder_violations, "cluster/x.py", "import segue.workers.engine"),
        (folder_violations, "router/x.py", "from segue import workers"),
        (folder_violations, "router/x.py", "def f():\n    from segue.kernels import attention"),
        (folder_violations, "workers/x.py", "from router.journey import Journey"),
        (dependency_violations, "deploy/x.py", "import ray.util"),
        (dependency_violations, "workers/x.py", "from google.protobuf import message"),
        (dependency_violations, "workers/grpc.py", "import grpc"),
        (dependency_violations, "kvtransfer/x.py", "from nixl._api import nixl_agent"),
        (dependency_violations, "workers/x.py", "importlib.import_module('triton.language')"),
        (dependency_violations, "deploy/x.py", "import starlette"),
        (dependency_violations, "router/x.py", "import pickle"),
        (dependency_violations, "router/x.py", "import torch.nn"),
        (environment_violations, "workers/x.py", "import os\nos.environ['HOME']"),
        (environment_violations, "workers/x.py", "import os\nos.getenv('HOME')"),
        (environment_violations, "workers/x.py", "from os import environ"),
        (shape_violations, "workers/x.py", "x = 1"),
        (shape_violations, "workers/x.py", '"""Doc."""\n' + "\n" * 400),
        (shape_violations, "workers/x.py", '"""Doc."""\ndef f():\n' + "    x = 1\n" * 60),
    ],
)
def test_a_planted_violation_is_seen(rule: Rule, place: str, text: str) -> None:
    assert list(rule(Source(place, text))) != []


@pytest.mark.parametrize(
    ("place", "text"),
    [
        ("workers/x.py", "from segue.kvtransfer import lease"),
        ("router/x.py", "from segue import __version__"),
        ("cluster/ray_launcher.py", "import os, ray\nos.environ['X'] = '1'"),
        ("cluster/rpc/channel.py", "import grpc.aio"),
        ("deploy/x.py", "import os\nos.getpid()"),
    ],
)
def test_what_is_allowed_passes(place: str, text: str) -> None:
    source = Source(place, f'"""Doc."""\n{text}')
    assert [violation for rule in RULES for violation in rule(source)] == []


def test_links_match_the_folders() -> None:
    links = [path for path in (ROOT / "src" / "segue").iterdir() if path.is_symlink()]
    assert {link.name: link.resolve() for link in links} == {f: ROOT / f for f in MAY_IMPORT}
    assert not [link for link in links if link.readlink().is_absolute()]


def test_folders_hold_no_init_file() -> None:
    """With one, our `kernels` would hide the PyPI package from anything run in the root."""
    assert [path for path in SOURCES if path.name == "__init__.py"] == []
