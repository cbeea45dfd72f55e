"""Registers `format("penstock")` in every Spark session, without a call.

PySpark 4 imports the installed top-level modules named `pyspark_*`, once per JVM, and registers the
class `DefaultSource` of each. An error in one of these imports would break all Python data sources
of that Spark. So where PySpark or pyarrow is too old for the source, this module defines nothing,
and `penstock.pipeline.register` reports what is missing.
"""

try:
    from penstock.pipeline.source import PenstockDataSource as DefaultSource
except ImportError:
    __all__: list[str] = []
else:
    __all__ = ["DefaultSource"]
