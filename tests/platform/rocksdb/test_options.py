"""What RocksDB is told, as it writes it down itself."""

from __future__ import annotations

from pathlib import Path

from penstock.platform.rocksdb.database import Database


def test_filters_and_indexes_are_in_parts_that_fit_a_shard_of_the_cache(tmp_path: Path) -> None:
    """Whole, those of a file of a million rows do not: each row that is asked for would read them
    anew, which takes fifteen times as long."""
    Database(str(tmp_path / "db"), ("rows",)).close()
    (options, *_) = sorted((tmp_path / "db").glob("OPTIONS-*"), reverse=True)
    families = options.read_text().split("[TableOptions/BlockBasedTable ")[1:]
    assert any(family.startswith('"rows"]') for family in families)
    for family in families:
        assert "partition_filters=true" in family
        assert "index_type=kTwoLevelIndexSearch" in family
        assert "cache_index_and_filter_blocks=true" in family
