"""Runs programs against Apache RocketMQ 5.5's own store classes, resolved by Maven.

The jars and the compiled programs are kept in the user's cache, so that only the first run waits.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from pathlib import Path
from typing import Final

HERE: Final = Path(__file__).parent
_OPENED: Final = (
    "java.base/sun.nio.ch",
    "java.base/java.nio",
    "java.base/java.util.concurrent",
    "java.base/jdk.internal.ref",
)
BUILD_TIMEOUT_S: Final = 900
RUN_TIMEOUT_S: Final = 300


def is_available() -> bool:
    return all(shutil.which(tool) for tool in ("java", "javac", "mvn"))


class RocketMQ:
    """Java programs in `src/`, compiled against RocketMQ's jars."""

    def __init__(self) -> None:
        cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
        self._build = cache / "penstock-rocketmq-oracle"
        self._classes = self._build / "classes"
        self._jars = self._build / "classpath.txt"

    def build(self) -> None:
        self._classes.mkdir(parents=True, exist_ok=True)
        if not self._jars.exists():
            resolve = ["mvn", "-q", "-B", "-f", str(HERE / "pom.xml")]
            resolve += ["dependency:build-classpath", f"-Dmdep.outputFile={self._jars}"]
            subprocess.run(resolve, check=True, timeout=BUILD_TIMEOUT_S)
        shutil.copytree(HERE / "src/main/resources", self._classes, dirs_exist_ok=True)
        sources = sorted(map(str, (HERE / "src/main/java/lab").glob("*.java")))
        compile_all = ["javac", "-nowarn", "-d", str(self._classes), "-cp", self._jars.read_text()]
        subprocess.run([*compile_all, *sources], check=True, timeout=BUILD_TIMEOUT_S)

    def command(self, program: str, *arguments: str, heap: str = "512m") -> list[str]:
        opened = [
            flag
            for package in _OPENED
            for flag in (
                f"--add-opens={package}=ALL-UNNAMED",
                f"--add-exports={package}=ALL-UNNAMED",
            )
        ]
        return [
            "java",
            f"-Xms{heap}",
            f"-Xmx{heap}",
            "-XX:MaxDirectMemorySize=2g",
            "-Duser.timezone=UTC",
            f"-Drocketmq.logback.configurationFile={self._classes}/rmq.logback.xml",
            f"-Duser.home={self._build}/home",
            *opened,
            "-cp",
            f"{self._classes}:{self._jars.read_text()}",
            f"lab.{program}",
            *arguments,
        ]

    def verify(self, store: Path, *properties: str) -> list[dict[str, object]]:
        """Let RocketMQ open and recover `store`, which it changes; return what it found there."""
        done = subprocess.run(
            self.command("Verify", str(store), *properties),
            check=False,
            capture_output=True,
            text=True,
            timeout=RUN_TIMEOUT_S,
        )
        assert done.returncode == 0, f"RocketMQ cannot open {store}:\n{done.stderr[-3000:]}"
        # RocketMQ's console logger resets colours at the begin of its output.
        lines = (line[line.find("{") :] for line in done.stdout.splitlines() if "{" in line)
        return [json.loads(line) for line in lines]
