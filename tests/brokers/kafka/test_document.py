"""docs/kafka.md lists exactly what is served."""

from __future__ import annotations

from pathlib import Path

from kio.schema.index import api_key_map
from tests.brokers.kafka.running import WireClient, running

DOCUMENT = Path(__file__).parents[3] / "docs" / "kafka.md"


def test_the_table_of_versions_is_current(tmp_path: Path) -> None:
    with running(tmp_path) as one, WireClient(one.server.port) as client:
        served = client.ask(18, 3).items_of("api_keys")
    lines = []
    for api in served:
        key = api.number("api_key")
        name = "".join(word.title() for word in api_key_map[key].split("_"))
        versions = f"{api.number('min_version')}–{api.number('max_version')}"
        lines.append(f"| {key} | {name} | {versions} |")
    lines_of_text = DOCUMENT.read_text().splitlines()
    listed = [line for line in lines_of_text if line.startswith("| ") and line[2:3].isdigit()]
    assert listed == lines, "the table should be:\n" + "\n".join(lines)


def test_every_version_that_is_listed_is_answered_in_its_own_layout(client: WireClient) -> None:
    """Also with nothing in it: the answer tells so, and the connection stays."""
    answered = 0
    for api in client.ask(18, 3).items_of("api_keys"):
        key = api.number("api_key")
        for version in range(api.number("min_version"), api.number("max_version") + 1):
            client.ask(key, version, **({"acks": 1} if key == 0 else {}))
            answered += 1
    assert answered > 150
