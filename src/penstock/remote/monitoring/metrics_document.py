"""`docs/metrics.md`, made from what a node in use exports."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from prometheus_client.metrics_core import Metric
from prometheus_client.parser import text_string_to_metric_families

_HEAD: Final = """# Metrics

A server exports these at `/metrics` of its monitoring port, for Prometheus
([monitoring.md](monitoring.md) says how labels are bounded). A histogram `x` has the series
`x_bucket` (with the label `le`), `x_sum` and `x_count`. Besides these there are `process_*` and
`python_*`: memory, processor time and descriptors of the process, and the interpreter.

This page is made from the metrics of a running node (`make docs`); a test keeps it current.

| metric | type | labels | meaning |
|---|---|---|---|"""
_OWN: Final = "penstock_"


def as_markdown(exposition: str) -> str:
    """Return the whole page. `exposition` is the answer of `/metrics` from a node that was used:
    a metric without a sample shows no labels."""
    families = sorted(text_string_to_metric_families(exposition), key=lambda family: family.name)
    return "\n".join([_HEAD, *_rows(families), ""])


def _rows(families: list[Metric]) -> Iterator[str]:
    for family in families:
        if not family.name.startswith(_OWN) or family.name.endswith("_created"):
            continue
        name = f"{family.name}_total" if family.type == "counter" else family.name
        labels = {label for sample in family.samples for label in sample.labels} - {"le"}
        shown = ", ".join(f"`{label}`" for label in sorted(labels))
        yield f"| `{name}` | {family.type} | {shown} | {family.documentation} |"
