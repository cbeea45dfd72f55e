"""A cluster of `penstock serve` processes on this machine, for trying and for tests.

directory.py     what the cluster's directory holds: ports, secret, settings of each node
node_process.py  one node: its process, its output, its health
supervisor.py    starts all nodes, watches them, stops them within a bounded time
child.py         the entry point of a node's process, which ends with its parent
"""

from penstock.cli.local_cluster.directory import ClusterDirectory, NodePorts
from penstock.cli.local_cluster.supervisor import LocalCluster, NodeWatcher

__all__ = ["ClusterDirectory", "LocalCluster", "NodePorts", "NodeWatcher"]
