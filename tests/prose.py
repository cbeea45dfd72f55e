"""Count the phrases that our style rule rejects, and keep the table of allowed counts.

`python -m tests.prose` lists every occurrence with its file and line, or those of the files given.
`python -m tests.prose --update` writes `tests/prose_ratchet.txt` anew. Counts only go down: a file
may have as many rejected phrases as the table says. Files that are not in the table yet, together,
may have as many as the other files have lost since.
"""

from __future__ import annotations

import ast
import io
import re
import subprocess
import sys
import tokenize
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path, PurePosixPath

ROOT = Path(__file__).parents[1]
RATCHET = ROOT / "tests" / "prose_ratchet.txt"
GENERATED = re.compile(r"_pb2(_grpc)?\.pyi?$")
INLINE_CODE = re.compile(r"`[^`]*`")
RUST_COMMENT = re.compile(r"//[/!]?(.*)$", re.MULTILINE)
UPDATE_COMMAND = "python -m tests.prose --update"

# What to write instead is the second item.
REJECTED: dict[str, str] = {
    r"\b(?:nobody|whoever|somebody|everybody|anybody)\b": "name the acting component",
    r"(?<!there )\b(?:is|are|was|were) no (?!longer\b|more\b|less\b|later\b|other\b)": "is not a …",
    r"(?<!there )\b(?:is|are|was|were) none\b(?! of)": "is not one",
    r"(?<!lag )(?<!lags )(?<!far )(?<!fall )(?<!falls )(?<!fell )\bbehind\b"
    r"(?! (?:by\b|(?:an?|the) (?:proxy|load balancer|NAT|firewall)))": "after",
    r"\bby and by\b": "in the background",
    r"\b(?:takes?|taken|taking|took) (?:\w+ )?apart\b": "decode",
    r"\b(?:lets?|letting) (?:\w+ )?go\b": "release",
    r"\blies\b": "is stored, is at",
    r"\btold\b": "notified, reported, configured",
    r"\bat once\b": "immediately; in one call",
    r"\bfor ever\b": "without a limit",
    r"\bthe day on which\b": "when",
}
PATTERNS = [re.compile(pattern, re.IGNORECASE) for pattern in REJECTED]


@dataclass(frozen=True)
class Hit:
    """One rejected phrase in one file."""

    path: str
    line: int
    phrase: str
    instead: str

    def __str__(self) -> str:
        return f"{self.path}:{self.line}: {self.phrase!r}: {self.instead}"


def prose_files() -> Iterator[str]:
    """Yield the files whose prose is checked."""
    listing = subprocess.run(
        ["git", "ls-files", "--cached", "--others", "--exclude-standard", "-z"],
        cwd=ROOT,
        capture_output=True,
        check=True,
        text=True,
    )
    for name in sorted({name for name in listing.stdout.split("\0") if name}):
        if is_checked(PurePosixPath(name)) and (ROOT / name).is_file():
            yield name


def is_checked(path: PurePosixPath) -> bool:
    """Tell whether the rule covers a file."""
    if path.suffix == ".md":
        return path.parts[0] == "docs" or len(path.parts) == 1
    if path.suffix in {".py", ".pyi"}:
        return path.parts[0] == "src" and not GENERATED.search(path.name)
    return path.suffix == ".rs" and path.parts[:2] == ("native", "src")


def blocks(name: str, text: str) -> Iterator[tuple[int, str]]:
    """Yield the prose of a file: the line on which each block begins, and its text."""
    if name.endswith(".md"):
        yield from paragraphs(text)
    elif name.endswith(".rs"):
        yield from rust_comments(text)
    else:
        yield from python_comments(text)
        yield from python_strings(text)


def paragraphs(text: str) -> Iterator[tuple[int, str]]:
    """Yield the paragraphs of a document, without the code in its lines."""
    line = 1
    for paragraph in re.split(r"(\n(?:[ \t]*\n)+)", text):
        yield line, INLINE_CODE.sub("`", paragraph)
        line += paragraph.count("\n")


def joined(comments: list[tuple[int, str]]) -> Iterator[tuple[int, str]]:
    """Yield comments on consecutive lines as one block."""
    if not comments:
        return
    first, parts = comments[0][0], [comments[0][1]]
    for (before, _), (line, text) in pairwise(comments):
        if line != before + 1:
            yield first, " ".join(parts)
            first, parts = line, []
        parts.append(text)
    yield first, " ".join(parts)


def rust_comments(text: str) -> Iterator[tuple[int, str]]:
    """Yield the comments of a Rust file."""
    yield from joined(
        [
            (text.count("\n", 0, match.start()) + 1, match[1])
            for match in RUST_COMMENT.finditer(text)
        ]
    )


def python_comments(text: str) -> Iterator[tuple[int, str]]:
    """Yield the comments of a Python file."""
    tokens = tokenize.generate_tokens(io.StringIO(text).readline)
    yield from joined(
        [
            (token.start[0], token.string.lstrip("#"))
            for token in tokens
            if token.type == tokenize.COMMENT
        ]
    )


def python_strings(text: str) -> Iterator[tuple[int, str]]:
    """Yield the docstrings and the other string literals of a Python file."""
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.Constant) and isinstance(node.value, str):
            yield node.lineno, node.value


def hits_in(name: str, text: str) -> list[Hit]:
    """Return the rejected phrases of a text, in the order of its lines."""
    hits = []
    for line, block in blocks(name, text):
        words = " ".join(block.split())
        for pattern, instead in zip(PATTERNS, REJECTED.values(), strict=True):
            for match in pattern.finditer(words):
                around = words[max(0, match.start() - 20) : match.end() + 20]
                hits.append(Hit(name, line, around, instead))
    return sorted(hits, key=lambda hit: hit.line)


def count_hits() -> dict[str, int]:
    """Return the number of rejected phrases of every checked file."""
    return {
        name: len(hits_in(name, (ROOT / name).read_text(encoding="utf-8")))
        for name in prose_files()
    }


def read_ratchet() -> dict[str, int]:
    """Return the allowed counts by file."""
    rows = [line.split() for line in RATCHET.read_text(encoding="utf-8").splitlines()]
    return {name: int(count) for count, name in rows}


def write_ratchet(counts: dict[str, int]) -> None:
    """Write the allowed counts."""
    lines = [f"{count:4} {name}\n" for name, count in sorted(counts.items())]
    RATCHET.write_text("".join(lines), encoding="utf-8")


def main(arguments: list[str]) -> None:
    """List occurrences, or write the table anew."""
    if arguments == ["--update"]:
        write_ratchet(count_hits())
        return
    for name in arguments or prose_files():
        for hit in hits_in(name, (ROOT / name).read_text(encoding="utf-8")):
            sys.stdout.write(f"{hit}\n")


if __name__ == "__main__":
    main(sys.argv[1:])
