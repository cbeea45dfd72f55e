"""Rules about the code itself that no linter of ours knows.

Limits only ever go down. When a file or function must grow past one, split it; when it really
cannot be split, add it to `KNOWN` with the reason, where reviewers see it.
"""

from __future__ import annotations

import ast
import re
import subprocess
from collections import Counter
from collections.abc import Iterator
from functools import cache
from pathlib import Path, PurePosixPath

FILE_LINES_MAX = 600
FUNCTION_LINES_MAX = 70
FOLDER_MODULES_MAX = 16
KNOWN: dict[str, str] = {}

ROOT = Path(__file__).parents[1]
GENERATED = re.compile(r"_pb2(_grpc)?\.pyi?$")
# A name that could hold anything will.
VAGUE = {"util", "utils", "common", "helper", "helpers", "misc", "tools", "base", "shared"}
# Verbs that leave open what is done; read, drain, claim, mark, record, remove or evict say it.
VAGUE_VERBS = re.compile(r"\b(?:def|fn) (_*(?:note|forget|take|settle|tell)(?:_\w+)?)\b[(<]")
MACHINE_PATH = re.compile(r"(?<![\w.<>{}])/(?:root|home|Users|work)/\w")
ADDRESS = re.compile(r"\b(?:https?|ftp|git\+ssh|index\+https)://([\w.-]+)")
ADDRESSES_ALLOWED = {"www.apache.org", "localhost", "127.0.0.1", "example.com", "example.org"}
# How Cargo spells "the public registry" in every lock file; nothing is fetched from there.
CARGO_REGISTRY = 'source = "registry+https://github.com/rust-lang/crates.io-index"'
DOCSTRING = re.compile(r'(?:#.*\n|\s)*r?"{3}\s*[^\s"]')
LINK = re.compile(r"\]\(([^)\s]+)\)")
EXEMPTION = re.compile(r"#\s*(?:noqa\b|type:\s*ignore|pragma:)(?P<rest>.*)")
REASON = re.compile(r"\b[^\W\d_]{2,}\s+\S{2,}")  # two words; the codes themselves are none


@cache
def tracked() -> list[PurePosixPath]:
    """Return every file that is in the repository or about to be."""
    listing = subprocess.run(
        ["git", "ls-files", "--cached", "--others", "--exclude-standard", "-z"],
        cwd=ROOT,
        capture_output=True,
        check=True,
        text=True,
    )
    names = sorted({name for name in listing.stdout.split("\0") if name})
    return [PurePosixPath(name) for name in names if (ROOT / name).is_file()]


def sources(*suffixes: str) -> Iterator[tuple[str, str]]:
    """Yield the path and the text of our own code."""
    for path in tracked():
        if path.suffix in (suffixes or (".py", ".pyi")) and not GENERATED.search(path.name):
            yield str(path), (ROOT / path).read_text(encoding="utf-8")


def texts() -> Iterator[tuple[str, str]]:
    """Yield the path and the text of every file that is text."""
    for path in tracked():
        data = (ROOT / path).read_bytes()
        if b"\0" not in data:
            yield str(path), data.decode("utf-8", "replace")


def test_no_file_is_longer_than_its_limit() -> None:
    counts = {path: text.count("\n") for path, text in sources(".py", ".pyi", ".rs")}
    long = {path: count for path, count in counts.items() if count > FILE_LINES_MAX}
    assert long.keys() <= KNOWN.keys(), long


def test_no_function_is_longer_than_its_limit() -> None:
    long = {}
    for path, text in sources(".py"):
        for node in ast.walk(ast.parse(text)):
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                lines = (node.end_lineno or node.lineno) - node.lineno + 1
                if lines > FUNCTION_LINES_MAX:
                    long[f"{path}:{node.name}"] = lines
    assert long.keys() <= KNOWN.keys(), long


def test_no_folder_has_more_modules_than_its_limit() -> None:
    counts = Counter(str(path.parent) for path in tracked() if path.suffix == ".py")
    full = {folder: n for folder, n in counts.items() if n > FOLDER_MODULES_MAX}
    assert {folder for folder in full if folder.startswith("src/")} == set(), full


def test_every_exception_to_a_limit_is_still_needed_and_has_a_reason() -> None:
    paths = {str(path) for path in tracked()}
    assert all(reason for reason in KNOWN.values())
    assert {name.partition(":")[0] for name in KNOWN} <= paths


def test_every_module_says_what_it_is_for() -> None:
    silent = [path for path, text in sources() if text and not DOCSTRING.match(text)]
    assert silent == []


def test_no_module_has_a_name_that_could_hold_anything() -> None:
    vague = [str(path) for path in tracked() if VAGUE & {*path.parent.parts, path.stem}]
    assert vague == []


def test_no_function_is_named_by_a_verb_that_leaves_open_what_it_does() -> None:
    vague = [
        f"{path}: {found[1]}"
        for path, text in sources(".py", ".pyi", ".rs")
        if path.startswith(("src/", "native/src/"))
        for found in VAGUE_VERBS.finditer(text)
    ]
    assert vague == []


def test_every_exemption_from_a_check_says_why() -> None:
    silent = []
    for path, text in sources():
        for number, line in enumerate(text.splitlines(), start=1):
            found = EXEMPTION.search(line)
            if found and path != "tests/test_tidy.py" and not REASON.search(found["rest"]):
                silent.append(f"{path}:{number}: {line.strip()}")
    assert silent == []


def test_no_file_names_a_machine_or_a_download_address() -> None:
    named = []
    for path, text in texts():
        if path in {"LICENSE", "tests/test_tidy.py"}:
            continue
        for number, line in enumerate(text.splitlines(), start=1):
            hosts = set(ADDRESS.findall(line)) - ADDRESSES_ALLOWED
            if path.endswith("Cargo.lock") and line == CARGO_REGISTRY:
                hosts = set()
            if hosts or MACHINE_PATH.search(line):
                named.append(f"{path}:{number}: {line.strip()[:120]}")
    assert named == []


def test_every_link_in_a_document_leads_somewhere() -> None:
    broken = []
    for path, text in sources(".md"):
        for target in LINK.findall(text):
            if ADDRESS.match(target) or target.startswith("#"):
                continue
            if not (ROOT / path).parent.joinpath(target.partition("#")[0]).exists():
                broken.append(f"{path}: {target}")
    assert broken == []


def anchors(text: str) -> set[str]:
    """Return the names by which links reach the headings of a document."""
    prose = re.sub(r"^```.*?^```", "", text, flags=re.DOTALL | re.MULTILINE)
    headings = re.findall(r"^#+ (.+)$", prose, re.MULTILINE)
    words = [re.sub(r"[^\w\- ]", "", heading.lower()) for heading in headings]
    return {heading.strip().replace(" ", "-") for heading in words}


def test_every_link_to_a_heading_leads_to_one() -> None:
    broken = []
    for path, text in sources(".md"):
        for target in LINK.findall(text):
            file, _, anchor = target.partition("#")
            if ADDRESS.match(target) or not anchor:
                continue
            page = (ROOT / path).parent / file if file else ROOT / path
            if page.suffix == ".md" and anchor not in anchors(page.read_text(encoding="utf-8")):
                broken.append(f"{path}: {target}")
    assert broken == []


def test_text_files_end_with_one_line_end() -> None:
    suffixes = (".py", ".pyi", ".rs", ".md", ".toml")
    ragged = [
        path
        for path, text in sources(*suffixes)
        if text and (not text.endswith("\n") or text.endswith("\n\n"))
    ]
    assert ragged == []
