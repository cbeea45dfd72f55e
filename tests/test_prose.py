"""Prose uses the field's words, and documents keep the form that their readers expect.

Rejected phrases are in `tests/prose.py`. `tests/prose_ratchet.txt` holds how many of them each file
may still have: a file must not exceed its count.
"""

from __future__ import annotations

import re
import sys
from pathlib import PurePosixPath

import pytest
from tests.prose import (
    RATCHET,
    ROOT,
    UPDATE_COMMAND,
    count_hits,
    hits_in,
    is_checked,
    read_ratchet,
)

CHANGE_HEADINGS = {"Added", "Changed", "Deprecated", "Removed", "Fixed", "Security"}
CHANGELOG = ROOT / "CHANGELOG.md"
DESIGNS = ROOT / "docs" / "designs"
LINK = re.compile(r"\]\(([^)\s]+)\)")


def test_no_file_has_more_rejected_phrases_than_it_may(
    capsys: pytest.CaptureFixture[str],
) -> None:
    """New files share what other files have lost, so that a moved or split file needs no update."""
    counts, allowed = count_hits(), read_ratchet()
    excess = {
        name: f"{count}, allowed {allowed[name]}"
        for name, count in counts.items()
        if name in allowed and count > allowed[name]
    }
    hint = f"`python -m tests.prose {' '.join(excess)}` lists them"
    assert not excess, f"{excess}: {hint}"
    released = sum(max(0, limit - counts.get(name, 0)) for name, limit in allowed.items())
    new = {name: count for name, count in counts.items() if count and name not in allowed}
    assert sum(new.values()) <= released, f"{new}: `python -m tests.prose {' '.join(new)}`"
    if released:
        with capsys.disabled():
            sys.stdout.write(
                f"\n{released} rejected phrases fewer than the table: {UPDATE_COMMAND}\n"
            )


def test_the_table_is_sorted_and_names_checked_files_only() -> None:
    allowed = read_ratchet()
    lines = RATCHET.read_text(encoding="utf-8").splitlines()
    assert len(lines) == len(allowed)
    assert list(allowed) == sorted(allowed)
    assert [name for name in allowed if not is_checked(PurePosixPath(name))] == []


@pytest.mark.parametrize(
    "sentence",
    [
        "a port that nobody reads",
        "the value is no number",
        "addresses that are none",
        "the record behind it",
        "compaction runs by and by",
        "a batch is taken\napart",
        "the store lets go of it",
        "it lies in the log",
        "clients are told the address",
        "the server stops at once",
    ],
)
def test_a_rejected_phrase_is_found_wherever_it_is(sentence: str) -> None:
    assert hits_in("page.md", sentence)
    assert hits_in("module.py", f'"""{sentence}."""\n')
    first, _, second = sentence.partition("\n")
    assert hits_in("module.py", f"# {first}\n" + (f"# {second}\n" if second else ""))
    assert hits_in("crate.rs", f"/// {first}\n" + (f"/// {second}\n" if second else ""))


@pytest.mark.parametrize(
    "sentence",
    [
        "the server runs behind a proxy",
        "the consumer is far behind, behind by 7 records",
        "the key is no longer there",
        "there is no limit",
        "`is no number` is the error's text",
    ],
)
def test_ordinary_phrases_pass(sentence: str) -> None:
    assert hits_in("page.md", sentence) == []


def test_code_itself_is_not_prose() -> None:
    assert hits_in("module.py", "nobody = behind(told)\n") == []
    assert hits_in("crate.rs", "let nobody = told();\n") == []


def test_the_changelog_has_the_headings_of_keep_a_changelog() -> None:
    text = CHANGELOG.read_text(encoding="utf-8")
    versions = re.findall(r"^## (.*)$", text, re.MULTILINE)
    assert versions[0] == "[Unreleased]"
    for version in versions[1:]:
        assert re.fullmatch(r"\[\d+\.\d+\.\d+\] - \d{4}-\d{2}-\d{2}", version)
    for section in re.split(r"^## .*\n", text, flags=re.MULTILINE)[1:]:
        headings = re.findall(r"^### (.*)$", section, re.MULTILINE)
        assert headings
        assert len(headings) == len(set(headings))
        assert set(headings) <= CHANGE_HEADINGS


def test_every_change_is_one_line_under_a_heading() -> None:
    """Also after a merge, which keeps the lines of both sides."""
    heading, changes = "", []
    for line in CHANGELOG.read_text(encoding="utf-8").splitlines():
        if line.startswith("#"):
            heading = line
        elif line and not heading.startswith("# "):
            assert heading.startswith("### "), f"{heading}: not under a heading: {line}"
            assert line.startswith("- "), f"{heading}: not one line: {line}"
            changes.append(line)
    assert len(changes) == len(set(changes))


def test_every_design_is_listed_in_the_index_of_designs() -> None:
    pages = {path.name for path in DESIGNS.glob("*.md")} - {"README.md"}
    listed = LINK.findall((DESIGNS / "README.md").read_text(encoding="utf-8"))
    assert pages - set(listed) == set()
    assert len(listed) == len(set(listed))


def test_every_page_is_linked_from_the_readme() -> None:
    pages = {f"docs/{path.name}" for path in (ROOT / "docs").glob("*.md")}
    assert pages - set(LINK.findall((ROOT / "README.md").read_text(encoding="utf-8"))) == set()


def test_the_glossary_is_in_alphabetical_order_and_links_every_word() -> None:
    rows = re.findall(
        r"^\| ([^|]+) \| [^|]+ \| (.+) \|$",
        (ROOT / "docs" / "glossary.md").read_text(encoding="utf-8"),
        re.MULTILINE,
    )[1:]
    words = [word.lower() for word, _ in rows]
    assert len(words) > 40
    assert words == sorted(words)
    assert all(LINK.search(page) for _, page in rows)
