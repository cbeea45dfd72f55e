"""What tables and fields show: texts as they are, but for what a terminal would obey."""

from __future__ import annotations

import pytest

from penstock.cli.output import print_fields, print_line, print_table

ODD = [
    ("[/a]", "[/a]"),
    ("[red]b[/red]", "[red]b[/red]"),
    ("\x1b[31mc", "\\x1b[31mc"),
    ("d\ne", "d\\ne"),
    ("\udcff", "\\udcff"),
]


@pytest.mark.parametrize(("text", "shown"), ODD, ids=["end", "style", "escape", "line", "byte"])
def test_every_part_of_a_table_is_shown_and_not_obeyed(
    text: str, shown: str, capsys: pytest.CaptureFixture[str]
) -> None:
    print_table(("name",), [(text,)], title=text)
    table = capsys.readouterr().out
    print_fields([(text, text)], title=text)
    fields = capsys.readouterr().out
    print_line(text)
    assert capsys.readouterr().out == f"{shown}\n"
    assert (table.count(shown), fields.count(shown)) == (2, 3)
    assert "\x1b" not in table + fields
