"""Several `penstock serve` processes on this machine, supervised by one command.

supervised_directory.py  what their directory holds: ports, secret, data of each node
directory.py             the directory of `penstock cluster up`, for trying and for tests
workers_directory.py     the directory of `penstock serve --workers`
node_ports.py            their ports: derived, and checked before a node starts
node_process.py          one node: its process, its output, its health
supervisor.py            starts all nodes, watches them, stops them within a bounded time
running.py               the main loop of both commands; display.py shows what happens
child.py                 the entry point of a node's process, which ends with its parent
"""

from penstock.cli.local_cluster.directory import ClusterDirectory
from penstock.cli.local_cluster.node_ports import NodePorts
from penstock.cli.local_cluster.supervisor import LocalCluster, NodeWatcher
from penstock.cli.local_cluster.workers_directory import WorkersDirectory

__all__ = ["ClusterDirectory", "LocalCluster", "NodePorts", "NodeWatcher", "WorkersDirectory"]
