"""A store that Apache RocketMQ 5.5.0 wrote, with a manifest of what RocketMQ itself reads in it.

The archive is never regenerated. It holds three log files (the last partly filled), all queues,
four index files, the checkpoint and the configuration of a broker.
"""

from __future__ import annotations

import json
import tarfile
from collections.abc import Iterator
from pathlib import Path

from penstock.engine.segment.rocketmq.fastjson import JsonDict
from penstock.engine.segment.rocketmq.java_properties import read_properties

ARCHIVE = Path(__file__).parents[1] / "golden" / "rocketmq-5.5-store.tar.xz"


class GoldenStore:
    def __init__(self, root: Path) -> None:
        self.root = root / "store"
        self.tiered_metadata = (root / "tieredStoreMetadata.json").read_bytes()
        manifest = (root / "store.manifest.jsonl").read_text(encoding="utf-8")
        self._manifest: list[JsonDict] = [json.loads(line) for line in manifest.splitlines()]
        self.logs = {
            int(path.name): path.read_bytes()
            for path in sorted((self.root / "commitlog").iterdir())
        }
        sizes = read_properties((self.root / "store.properties").read_text(encoding="utf-8"))
        self.slots = int(sizes["maxHashSlotNum"])
        self.entries_max = int(sizes["maxIndexNum"])

    def lines(self, kind: str) -> Iterator[JsonDict]:
        """Yield the manifest's lines of one type: msg, key, queue or blank."""
        return (line for line in self._manifest if line["type"] == kind)

    def log_of(self, position: int) -> tuple[bytes, int]:
        """Return the log file that holds `position`, and its base."""
        base = max(each for each in self.logs if each <= position)
        return self.logs[base], base

    def queue_files(self) -> dict[tuple[str, int, int], bytes]:
        """Return the queues by kind, topic and queue id, each as one piece."""
        return {
            (queue.parent.name, int(queue.name), kind): b"".join(
                file.read_bytes() for file in sorted(queue.iterdir())
            )
            for kind, name in enumerate(("consumequeue", "batchconsumequeue"))
            for queue in sorted((self.root / name).glob("*/*"))
        }

    def index_files(self) -> list[bytes]:
        return [path.read_bytes() for path in sorted((self.root / "index").iterdir())]


def unpack(root: Path) -> GoldenStore:
    with tarfile.open(ARCHIVE) as archive:
        archive.extractall(root, filter="data")
    return GoldenStore(root)
