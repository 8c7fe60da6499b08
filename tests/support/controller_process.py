"""A controller in a process of its own, over the workers of a nursery; told by a settings file."""

import os
import sys
from pathlib import Path

from segue.cluster.controller_host import ControllerHost
from segue.cluster.launcher import ControllerSettings


def main() -> None:
    """Arguments: the folder of the fleet, the nursery's socket, `restarted` if it is."""
    from nursery import NurseryClient, NurseryLauncher

    folder, nursery = Path(sys.argv[1]), NurseryClient(Path(sys.argv[2]))
    settings = ControllerSettings.model_validate_json((folder / "controller.settings").read_text())
    host = ControllerHost(
        settings,
        lambda: NurseryLauncher(nursery, folder),
        host="127.0.0.1",
        restarted="restarted" in sys.argv,
    )
    draft = folder / "controller.draft"
    draft.write_text(host.address())
    draft.replace(folder / "controller.address")
    sys.stdin.read()  # it ends with whoever started it, unless it is killed before
    os._exit(0)
