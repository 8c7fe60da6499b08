"""Two deployments for the whole run: prefill and decode apart, and one worker that does both."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from deployment import Deployment, start_deployment

APART = {"gateway": {"admission": {"max_queued_requests": 512}}}
TOGETHER = {"pools": {"both": {"role": "both"}}}


@pytest.fixture(scope="session")
def _deployments(
    tmp_path_factory: pytest.TempPathFactory, bundled_model: Path
) -> Iterator[tuple[Deployment, Deployment]]:
    both = [
        start_deployment(tmp_path_factory.mktemp(name), config)
        for name, config in (("apart", APART), ("together", TOGETHER))
    ]
    try:
        for deployment in both:
            deployment.wait_ready()
        yield both[0], both[1]
    finally:
        for deployment in both:
            deployment.stop()


@pytest.fixture(scope="session")
def apart(_deployments: tuple[Deployment, Deployment]) -> Deployment:
    """One prefill and one decode worker."""
    return _deployments[0]


@pytest.fixture(scope="session")
def together(_deployments: tuple[Deployment, Deployment]) -> Deployment:
    """The colocated oracle: role `both`."""
    return _deployments[1]
