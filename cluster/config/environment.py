"""The only module that reads the environment, and what it sets there for libraries."""

import os
import secrets
from pathlib import Path


def cache_folder() -> Path:
    """Where converted models are kept: SEGUE_CACHE, else XDG_CACHE_HOME/segue, else ~/.cache."""
    if explicit := os.environ.get("SEGUE_CACHE"):
        return Path(explicit)
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "segue"


def api_key_from_environment() -> str | None:
    """SEGUE_API_KEY, for clients: `ps` shows a key on a command line to everybody."""
    return os.environ.get("SEGUE_API_KEY") or None


def url_from_environment() -> str | None:
    """SEGUE_URL: the gateway that client commands ask."""
    return os.environ.get("SEGUE_URL") or None


def quiet_grpc() -> None:
    """Keep gRPC's own lines off the terminal. It must not be imported yet: it reads this then."""
    os.environ.setdefault("GRPC_VERBOSITY", "ERROR")


def prepare_ray(*, own_cluster: bool) -> None:
    """Set what Ray reads from the environment; what the user has set stays.

    Must come before Ray is imported, which reads RAY_AUTH_MODE only then.
    """
    if not own_cluster:
        # Each look for the cluster takes 40 s; the 20 that Ray makes would seem to hang.
        os.environ.setdefault("RAY_NUM_REDIS_GET_RETRIES", "1")
        return
    if "RAY_AUTH_MODE" not in os.environ:
        os.environ["RAY_AUTH_MODE"] = "token"
        os.environ["RAY_AUTH_TOKEN"] = secrets.token_hex(32)
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    for setting in ("RAY_enable_worker_prestart", "RAY_prestart_worker_first_driver"):
        os.environ.setdefault(setting, "0")  # only the processes that are used
