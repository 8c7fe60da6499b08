"""A controller in a process of its own, over the workers of a nursery; told by a settings file."""

import sys
import threading
from pathlib import Path

from nursery import NurseryLauncher

from segue.cluster.controller_host import ControllerHost
from segue.cluster.launcher import ControllerSettings


def main(folder: Path, *, restarted: bool) -> None:
    settings = ControllerSettings.model_validate_json((folder / "controller.settings").read_text())
    host = ControllerHost(
        settings, lambda: NurseryLauncher(folder), host="127.0.0.1", restarted=restarted
    )
    draft = folder / "controller.draft"
    draft.write_text(host.address())
    draft.replace(folder / "controller.address")
    threading.Event().wait()  # until it is killed


if __name__ == "__main__":
    main(Path(sys.argv[1]), restarted=sys.argv[2] == "restarted")
