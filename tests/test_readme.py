"""The README tells the truth about the files, the commands and the configuration it shows."""

import re

import yaml
from readme_tree import ROOT, rewritten

from segue.cluster.config.file import parse_config

README = (ROOT / "README.md").read_text(encoding="utf-8")


def test_the_tree_lists_every_file_as_it_describes_itself() -> None:
    assert rewritten(README) == README, "run `make readme`"


def test_every_make_target_it_names_exists() -> None:
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    targets = set(re.findall(r"^([a-z-]+):", makefile, re.MULTILINE))
    named = set(re.findall(r"`?make ([a-z-]+)", README))
    assert named and named <= targets


def test_every_configuration_it_shows_loads() -> None:
    blocks = re.findall(r"```yaml\n(.*?)```", README, re.DOTALL)
    assert blocks
    for block in blocks:
        parse_config(yaml.safe_load(block))
