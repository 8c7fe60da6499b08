"""What the controller needs from whatever starts processes, and what a worker is started with."""

from dataclasses import dataclass, field
from enum import Enum, auto
from typing import Annotated, Literal, Protocol

from pydantic import Field

from segue.cluster.config.control import ControlConfig
from segue.cluster.config.engine import EngineConfig
from segue.cluster.config.model import ModelConfig
from segue.cluster.config.pool import ReplicaConfig, Role
from segue.cluster.config.section import Section
from segue.cluster.config.transfer import TransferConfig
from segue.cluster.config.whole import SegueConfig
from segue.cluster.errors import ConfigurationError
from segue.cluster.identity import WorkerIdentity
from segue.cluster.worker_status import UsualAnswer

WORKER_ENTRY = "segue.workers.process:WorkerProcess"


class LocatorConfig(Section):
    """How a process finds the controller again after either of them was restarted."""

    kind: Literal["ray", "static"]
    namespace: Annotated[str, Field(description="kind ray: of the controller actor")] = ""
    address: Annotated[str, Field(description="kind static: host:port")] = ""


class WorkerSettings(Section):
    """Everything one worker process is told, as JSON. Holds a secret: never log it."""

    worker_id: str
    incarnation: str
    pool: str
    role: Role
    model: ModelConfig
    engine: EngineConfig
    transfer: TransferConfig
    control: ControlConfig
    model_folder: str
    cluster_token: str = Field(repr=False, min_length=16)
    locator: LocatorConfig
    host: Annotated[str, Field(description="to listen on; empty: the launcher fills it in")] = ""
    usual_answer: Annotated[
        UsualAnswer | None, Field(description="what others of the pool have learned")
    ] = None

    @property
    def identity(self) -> WorkerIdentity:
        return WorkerIdentity(self.worker_id, self.incarnation)


class ControllerSettings(Section):
    """Everything the controller process is told, as JSON. Holds a secret: never log it."""

    config: SegueConfig
    model_folder: str
    cluster_token: str = Field(repr=False, min_length=16)
    locator: LocatorConfig
    host: str = ""
    worker_entry: str = WORKER_ENTRY

    def worker(
        self, pool_name: str, identity: WorkerIdentity, usual_answer: UsualAnswer | None = None
    ) -> "WorkerSpec":
        """Say how to start one worker of a pool."""
        pool = self.config.pools[pool_name]
        settings = WorkerSettings(
            worker_id=identity.worker_id,
            incarnation=identity.incarnation,
            pool=pool_name,
            role=pool.role,
            model=self.config.model,
            engine=pool.engine,
            transfer=self.config.transfer,
            control=self.config.control,
            model_folder=self.model_folder,
            cluster_token=self.cluster_token,
            locator=self.locator,
            host=self.host,
            usual_answer=usual_answer,
        )
        return WorkerSpec(
            identity,
            pool_name,
            pool.role,
            pool.replica,
            self.worker_entry,
            settings.model_dump_json(),
        )


@dataclass(frozen=True, slots=True)
class WorkerSpec:
    """One worker to start: `entry` ("module:Class") is built with `settings` and started."""

    identity: WorkerIdentity
    pool: str
    role: Role
    replica: ReplicaConfig
    entry: str
    settings: str = field(repr=False)

    @property
    def resources(self) -> dict[str, float]:
        """Custom resources one worker holds: by default 1 of its pool's."""
        return dict(self.replica.resources or {self.pool: 1.0})


class LaunchState(Enum):
    PENDING = auto()  # asked for, no process yet
    RUNNING = auto()
    GONE = auto()  # proven: the process does not exist (any more)
    UNKNOWN = auto()  # can not be told now


@dataclass(frozen=True, slots=True)
class Probe:
    state: LaunchState
    reason: str = ""  # what a pending one waits for, how a gone one ended
    is_final: bool = False  # gone, and so would be every other one that is started like it


class Launcher(Protocol):
    """Starts and ends worker processes. Every method returns within seconds or raises."""

    async def start(self, spec: WorkerSpec) -> None:
        """Ask for a process; does nothing if that identity was started before."""
        ...

    async def probe(self, identity: WorkerIdentity) -> Probe: ...

    async def kill(self, identity: WorkerIdentity) -> bool:
        """End the process without mercy. True: it is proven gone. Unknown ones are gone."""
        ...

    async def running(self) -> tuple[WorkerIdentity, ...]:
        """Every process of this deployment, those started by an earlier controller included."""
        ...

    async def stop_all(self, grace_s: float) -> None:
        """Ask all to stop, kill what is left after `grace_s`."""
        ...


class ControllerLocator(Protocol):
    """Where the controller is now; it moves when it is restarted."""

    async def address(self) -> str:
        """host:port. Raises Unavailable if it can not be told now."""
        ...

    async def gone(self) -> bool:
        """True only if it is proven that no controller will ever come back."""
        ...


class StaticLocator:
    """A controller at a fixed address."""

    def __init__(self, address: str) -> None:
        self._address = address

    async def address(self) -> str:
        return self._address

    async def gone(self) -> bool:
        """Nothing but its silence can be known about a fixed address: then it counts as gone."""
        return True


def open_locator(config: LocatorConfig) -> ControllerLocator:
    """Build the locator that `config` names. Ray is imported only if it is asked for."""
    if config.kind == "static":
        if not config.address:
            raise ConfigurationError("locator: kind static needs an address")
        return StaticLocator(config.address)
    from segue.cluster.ray_launcher import RayLocator

    return RayLocator(config.namespace)
