"""Fixtures that several folders of tests share."""

from pathlib import Path

import pytest
import torch
from hypothesis import settings

from segue.cluster.config.environment import cache_folder
from segue.cluster.config.model import ModelConfig
from segue.workers.models.folder import resolve_model

# The same examples each time, however slow the machine: a red run is the change's doing.
# `pytest --hypothesis-profile=default` looks for new ones.
settings.register_profile("repeatable", derandomize=True, deadline=None)
settings.load_profile("repeatable")


@pytest.fixture(scope="session")
def bundled_model() -> Path:
    """The folder of the bundled model, converted by the first test that ever asks for it."""
    torch.set_num_threads(1)
    return resolve_model(ModelConfig(), cache_folder())  # pyright: ignore[reportCallIssue]
