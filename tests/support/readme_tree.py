"""The tree of files in README.md, made from the first line of each module's docstring.

`python tests/support/readme_tree.py` (or `make readme`) writes it into README.md.
"""

import ast
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]
FOLDERS = ("router", "workers", "kvtransfer", "cluster", "kernels", "deploy", "bench")
BEGIN, END = "<!-- tree: begin -->\n", "<!-- tree: end -->\n"


def purpose(path: Path) -> str:
    """The first sentence that the file says of itself."""
    text = path.read_text(encoding="utf-8")
    if path.suffix == ".py":
        text = ast.get_docstring(ast.parse(text)) or ""
    else:
        lines = [line.lstrip("#/ ") for line in text.splitlines() if line.startswith(("#", "//"))]
        text = "\n".join(lines)
    return text.strip().partition("\n\n")[0].replace("\n", " ").partition(". ")[0].rstrip(".:")


def shown(path: Path) -> bool:
    return (
        path.suffix in {".py", ".proto", ".yaml"}
        and "_pb2" not in path.name
        and "__pycache__" not in path.parts
    )


def tree() -> str:
    lines = ["```\n"]
    for folder in FOLDERS:
        paths = sorted(p for p in (ROOT / folder).rglob("*") if shown(p))
        for parent in sorted({p.parent for p in paths}):
            lines.append(f"{parent.relative_to(ROOT)}/\n")
            for path in (p for p in paths if p.parent == parent):
                lines.append(f"  {path.name:<24} {purpose(path)}\n")
    return "".join([*lines, "```\n"])


def rewritten(readme: str) -> str:
    head, _, rest = readme.partition(BEGIN)
    _, _, tail = rest.partition(END)
    return head + BEGIN + tree() + END + tail


if __name__ == "__main__":
    target = ROOT / "README.md"
    target.write_text(rewritten(target.read_text(encoding="utf-8")), encoding="utf-8")
    sys.exit(0)
