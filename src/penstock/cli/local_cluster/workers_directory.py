"""The directory of `penstock serve --workers N`: N nodes of one cluster on one machine.

The ports of worker 1 are those of the settings, worker 2 has them plus 10, and so on. Ports of
clients follow the settings at every start; internal ports stay, because the cluster knows its
members by them. The first three workers vote in Raft, all store records and replicas.

The number of workers may grow from start to start. It shrinks only after the directories of the
last workers were deleted, which their operator does when they are drained.
"""

from __future__ import annotations

from typing import Final

from msgspec.structs import replace

from penstock.cli.local_cluster.node_ports import (
    MQTT_STEP,
    PORT_MAX,
    PORT_STEP,
    WEBSOCKET_STEP,
    NodePorts,
    check_ports,
    choose_ports,
    first_in_use,
)
from penstock.cli.local_cluster.supervised_directory import (
    Launch,
    SupervisedDirectory,
    node_environment,
)
from penstock.errors import BadRequestError, SettingsError
from penstock.platform.log import get_logger
from penstock.remote.server.mqtt_front_end import is_asked_for
from penstock.settings import Settings

VOTERS_MAX: Final = 3
_INTERNAL: Final = range(3, PORT_STEP)
"""Candidates of the internal port, counted from the port of the storage API."""
_CHOOSE: Final = "other ports (--port, --http-port, --kafka-port, --mqtt-port)"

_log: Final = get_logger(__name__)


class WorkersDirectory(SupervisedDirectory):
    COMMAND = "serve --workers"

    def __init__(self, path: str, workers: int, settings: Settings, options: list[str]) -> None:
        """`options` are arguments of `penstock serve` for all workers, `settings` what follows from
        them: without the data directory and the ports."""
        _check_settings(settings)
        self._workers: Final = workers
        self._settings: Final = settings
        self._options: Final = options
        self.workers_before = 0
        super().__init__(path)

    @property
    def logs(self) -> str:
        return "above"

    @property
    def _expected(self) -> set[str]:
        return {"node-1"}

    @property
    def _advice(self) -> str:
        if not (self.path / "penstock.lock").exists():
            return "choose an empty or a new directory"
        return (
            "it is the data directory of one node. To serve it with workers, stop that node, move "
            "its directory to be the one of worker 1, for example: mkdir -p "
            f"{self.path}-workers/node-1 && mv {self.path} {self.path}-workers/node-1/data; then "
            f"serve --data {self.path}-workers --workers {self._workers}"
        )

    def _arrange(self, known: tuple[NodePorts, ...]) -> tuple[NodePorts, ...]:
        self.workers_before = len(known)
        if len(known) > self._workers:
            self._check_shrinking(known)
        arranged = self._derive(known[: self._workers])
        if arranged[0].mqtt and not is_asked_for(self._settings.mqtt):
            arranged = _without_taken_mqtt(arranged)
        _check_distinct(arranged)
        check_ports(arranged, _CHOOSE)
        return arranged

    def _check_shrinking(self, known: tuple[NodePorts, ...]) -> None:
        leaving = [ports.node for ports in known[self._workers :]]
        left = [node for node in leaving if self.home(node).exists()]
        if left:
            last = left[-1]
            raise BadRequestError(
                f"{self.path} has {len(known)} workers, and --workers is {self._workers}: records "
                f"of worker {last} would be missing. Start with --workers {len(known)}, run "
                f"`penstock cluster drain {last}` and wait until `penstock cluster status` shows "
                f"0 shards on node {last}; then stop, delete {self.home(last)}, start with "
                f"--workers {last - 1} and run `penstock cluster remove {last}`"
            )
        voters = min(VOTERS_MAX, len(known))
        leaving_voters = [node for node in leaving if node <= voters]
        if len(leaving_voters) > (voters - 1) // 2:
            raise BadRequestError(
                f"{self.path} has {voters} workers that vote in Raft, and --workers "
                f"{self._workers} would leave no majority of them; keep at least "
                f"{voters // 2 + 1}"
            )

    def _derive(self, earlier: tuple[NodePorts, ...]) -> tuple[NodePorts, ...]:
        server, kafka, mqtt = self._settings.server, self._settings.kafka, self._settings.mqtt
        missing = self._workers - len(earlier)
        free = [
            replace(ports, node=number)
            for number, ports in enumerate(
                choose_ports(missing, None, earlier) if missing else (), len(earlier) + 1
            )
        ]
        return tuple(
            replace(
                known,
                storage=_nth(server.port, known.node) or known.storage,
                http=_nth(server.http_port, known.node) or known.http,
                kafka=(_nth(kafka.port, known.node) or known.kafka or known.storage + 2)
                if kafka.enabled
                else 0,
                host=server.host,
                kafka_host=kafka.host,
                mqtt=_nth(mqtt.port, known.node) or known.storage + MQTT_STEP
                if mqtt.enabled
                else 0,
                websocket=_nth(mqtt.websocket_port, known.node) or known.storage + WEBSOCKET_STEP
                if mqtt.enabled and mqtt.websocket
                else 0,
                mqtt_host=mqtt.host,
            )
            for known in (*earlier, *(self._with_internal(ports) for ports in free))
        )

    def _with_internal(self, ports: NodePorts) -> NodePorts:
        """Return a new node with an internal port near that of its storage API."""
        server, kafka = self._settings.server, self._settings.kafka
        storage = _nth(server.port, ports.node)
        if not storage:
            return ports
        mqtt = self._settings.mqtt
        clients = (server.http_port, kafka.port, mqtt.port, mqtt.websocket_port)
        taken = {_nth(port, ports.node) for port in clients}
        free = next(storage + n for n in _INTERNAL if storage + n not in taken)
        return replace(ports, internal=free)

    def launch(self, node: int) -> Launch:
        ports = self.nodes[node - 1]
        settings = self._settings
        votes = node <= VOTERS_MAX
        voters = self.nodes[:VOTERS_MAX]
        own: dict[str, object] = {
            "node.id": node,
            "node.peers": ",".join(
                f"{voter.node}@{voter.internal_address if votes else voter.storage_address}"
                for voter in voters
            ),
            "node.roles": "meta" if votes else "[]",
            "node.meta_listen": "" if votes else ports.internal_address,
            "server.port": ports.storage,
            "server.http_port": ports.http,
            "kafka.port": ports.kafka,
            "mqtt.enabled": str(bool(ports.mqtt)).lower(),
            "mqtt.port": ports.mqtt,
            "mqtt.websocket": str(bool(ports.websocket)).lower(),
            "mqtt.websocket_port": ports.websocket,
            "server.advertised_port": _nth(settings.server.advertised_port, node),
            "kafka.advertised_port": _nth(settings.kafka.advertised_port, node),
        }
        if not settings.node.secret and not settings.node.secret_file:
            own["node.secret_file"] = self.secret_file
        arguments = ["--data", str(self.data(node)), *self._options]
        for name, value in own.items():
            arguments += ["--set", f"{name}={value}"]
        self.home(node).mkdir(mode=0o700, exist_ok=True)
        return Launch(arguments, node_environment(with_settings=True), None)


def _nth(port: int, node: int) -> int:
    return port + PORT_STEP * (node - 1) if port else 0


def _without_taken_mqtt(nodes: tuple[NodePorts, ...]) -> tuple[NodePorts, ...]:
    """Serve no MQTT clients when it was not asked for and one of the ports is in use."""
    others = [replace(ports, mqtt=0, websocket=0) for ports in nodes]
    only = [
        port
        for ports, other in zip(nodes, others, strict=True)
        for port in ports.listening
        if port not in other.listening
    ]
    reason = first_in_use(only)
    if reason is None:
        return nodes
    _log.warning("mqtt_not_served", reason=reason, hint="set mqtt.port and mqtt.websocket_port")
    return tuple(others)


def _check_settings(settings: Settings) -> None:
    node = settings.node
    for name, is_set in (
        ("node.peers", bool(node.peers)),
        ("node.id", node.id != 1),
        ("node.meta_listen", bool(node.meta_listen)),
        ("node.roles", node.roles != ("meta",)),
        ("node.join_token", bool(node.join_token)),
    ):
        if is_set:
            raise SettingsError(
                f"{name} is set, and --workers makes a cluster of its own: leave {name} out, or "
                "start each node by a `penstock serve` without --workers"
            )


def _check_distinct(nodes: tuple[NodePorts, ...]) -> None:
    users: dict[int, str] = {}
    for ports in nodes:
        for purpose, _, port in ports.listening:
            user = f"{purpose} of worker {ports.node}"
            if port > PORT_MAX:
                raise BadRequestError(
                    f"{user} would need port {port}, above {PORT_MAX}: each worker has the ports "
                    f"of the one before plus {PORT_STEP}; choose {_CHOOSE}"
                )
            if port in users:
                raise BadRequestError(
                    f"port {port} would be that of {users[port]} and of {user}: each worker has "
                    f"the ports of the one before plus {PORT_STEP}; choose {_CHOOSE}"
                )
            users[port] = user
