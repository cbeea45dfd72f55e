"""A network of namespaces for the nodes of a drill: one namespace and one address per node, and a
bridge between them, at which the clients are.

A node cannot reach another while the other's entry in its neighbour table names a station that does
not exist: frames are dropped without an answer, in one direction, as by a broken switch. Loss of
single packets needs the kernel's `netem`; where it is missing, packets are lost in bursts.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

_NOWHERE: Final = "02:00:00:00:00:fe"
_COMMAND_S: Final = 20.0
_BURST_S: Final = 0.01


def run_ip(*words: str) -> None:
    subprocess.run(["ip", *words], check=True, capture_output=True, timeout=_COMMAND_S)


def missing_for_namespaces() -> str:
    """Return why namespaces cannot be made here; empty: they can."""
    for command in ("ip", "nsenter"):
        if shutil.which(command) is None:
            return f"the command `{command}` is not installed"
    if os.geteuid() != 0:
        return "network namespaces need root"
    name = f"pst-try-{os.getpid()}"
    try:
        run_ip("netns", "add", name)
        run_ip("netns", "del", name)
    except (subprocess.SubprocessError, OSError) as error:
        return f"network namespaces cannot be made: {error}"
    return ""


class Network:
    """Namespaces `pst<pid>-<node>` on a bridge; `close` removes them."""

    def __init__(self, nodes: int) -> None:
        self._nodes: Final = range(1, nodes + 1)
        self._name: Final = f"pst{os.getpid() % 100_000}"
        self._prefix: Final = f"10.{200 + os.getpid() % 50}.{os.getpid() // 50 % 250}"
        self._cut: Final[set[tuple[int, int]]] = set()
        self._lossy: Final[set[int]] = set()
        try:
            self._make()
        except BaseException:
            self.close()
            raise

    def _make(self) -> None:
        run_ip("link", "add", self._name, "type", "bridge")
        run_ip("addr", "add", f"{self._prefix}.254/24", "dev", self._name)
        run_ip("link", "set", self._name, "up")
        for node in self._nodes:
            space, outside = self.space(node), f"{self._name}-{node}"
            run_ip("netns", "add", space)
            run_ip("link", "add", outside, "type", "veth", "peer", "name", "eth0", "netns", space)
            run_ip("link", "set", outside, "master", self._name, "up")
            run_ip("-n", space, "addr", "add", f"{self.host(node)}/24", "dev", "eth0")
            run_ip("-n", space, "link", "set", "eth0", "up")
            run_ip("-n", space, "link", "set", "lo", "up")

    def space(self, node: int) -> str:
        return f"{self._name}-{node}"

    def host(self, node: int) -> str:
        return f"{self._prefix}.{node}"

    def command(self, node: int) -> list[str]:
        """Return the words that run a program in the namespace of a node."""
        # Not `ip netns exec`: that has mounts of its own, which outlive those of the drill.
        return ["nsenter", f"--net=/run/netns/{self.space(node)}"]

    def cut(self, source: int, target: int) -> None:
        """Drop what one node sends to another."""
        self._cut.add((source, target))
        place = ("to", self.host(target), "lladdr", _NOWHERE, "dev", "eth0", "nud", "permanent")
        run_ip("-n", self.space(source), "neigh", "replace", *place)

    def lose(self, node: int, percent: int) -> bool:
        """Drop some of what a node sends; return whether the kernel can. See `lose_bursts`."""
        words = f"tc qdisc replace dev eth0 root netem loss {percent}%".split()
        command = [*self.command(node), *words]
        done = subprocess.run(command, check=False, capture_output=True, timeout=_COMMAND_S)
        if done.returncode == 0:
            self._lossy.add(node)
        return done.returncode == 0

    def lose_bursts(self, node: int, percent: int, seconds: float) -> None:
        """Drop everything that a node sends for a part of the time, in bursts: for kernels that
        cannot drop single packets."""
        others = [other for other in self._nodes if other != node]
        until = time.monotonic() + seconds
        while time.monotonic() < until:
            began = time.monotonic()
            for other in others:
                self.cut(node, other)
            time.sleep(_BURST_S)
            self.heal()
            lost_s = time.monotonic() - began
            time.sleep(lost_s * (100 - percent) / percent)

    def heal(self) -> None:
        """Let all nodes reach each other again."""
        for source, target in sorted(self._cut):
            place = ("to", self.host(target), "dev", "eth0")
            run_ip("-n", self.space(source), "neigh", "del", *place)
        self._cut.clear()
        for node in sorted(self._lossy):
            command = [*self.command(node), "tc", "qdisc", "del", "dev", "eth0", "root"]
            subprocess.run(command, check=False, capture_output=True, timeout=_COMMAND_S)
        self._lossy.clear()

    def close(self) -> None:
        for words in [
            *(("netns", "del", self.space(node)) for node in self._nodes),
            *(("link", "del", f"{self._name}-{node}") for node in self._nodes),
            ("link", "del", self._name),
        ]:
            subprocess.run(["ip", *words], check=False, capture_output=True, timeout=_COMMAND_S)


@contextmanager
def network(nodes: int) -> Iterator[Network]:
    made = Network(nodes)
    try:
        yield made
    finally:
        made.close()
