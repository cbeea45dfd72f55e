"""How a RocksDB instance is set up, and why so."""

from __future__ import annotations

from msgspec import Struct
from rocksdict import (
    BlockBasedIndexType,
    BlockBasedOptions,
    Cache,
    DBCompressionType,
    DBRecoveryMode,
    Options,
)


class DatabaseSettings(Struct, frozen=True):
    """Memory is bounded by `write_buffer_size * write_buffers_max` for each family, and the cache
    for all of them."""

    block_cache_size: int = 32 << 20
    write_buffer_size: int = 16 << 20
    write_buffers_max: int = 4
    open_files_max: int = 256
    background_jobs: int = 2
    flush_interval_ms: int | None = 500
    """Maximum time that an unsynced write stays in the page cache alone; None: until a caller
    syncs."""
    free_size_min: int = 128 << 20
    """Writes are refused while the file system has less room than this."""
    stall_seconds_max: float = 10.0
    """How long a write waits for RocksDB's compactions before it raises `BusyError`."""
    in_place: bool = False
    """A row that is written again takes the place of the old one in memory. For few rows that
    change all the time; a scan beside writers then sees no single moment."""


def build_options(settings: DatabaseSettings, cache: Cache) -> Options:
    table = BlockBasedOptions()
    table.set_block_cache(cache)
    table.set_bloom_filter(10, False)
    # In the cache, and so within its bound. In small parts: the cache is divided into shards, and a
    # filter of a whole file that is larger than one would be read anew for every row that is asked
    # for.
    table.set_cache_index_and_filter_blocks(True)
    table.set_index_type(BlockBasedIndexType.two_level_index_search())
    table.set_partition_filters(True)
    table.set_pin_top_level_index_and_filter(True)
    table.set_pin_l0_filter_and_index_blocks_in_cache(True)
    options = Options(raw_mode=True)
    options.create_if_missing(True)
    options.create_missing_column_families(True)
    options.set_block_based_table_factory(table)
    options.set_compression_type(DBCompressionType.lz4())
    options.set_level_compaction_dynamic_level_bytes(True)
    options.set_write_buffer_size(settings.write_buffer_size)
    options.set_max_write_buffer_number(settings.write_buffers_max)
    options.set_max_total_wal_size(settings.write_buffer_size * settings.write_buffers_max)
    # What follows a gap in the log is dropped, or changes would be applied without those before
    # them. That a gap is where nothing was synced yet is checked by `DurablePoint`.
    options.set_wal_recovery_mode(DBRecoveryMode.point_in_time())
    options.set_max_background_jobs(settings.background_jobs)
    options.set_max_open_files(settings.open_files_max)
    if settings.in_place:
        options.set_allow_concurrent_memtable_write(False)
        options.set_inplace_update_support(True)
    # What RocksDB writes about itself.
    options.set_keep_log_file_num(4)
    options.set_max_log_file_size(1 << 20)
    options.set_stats_dump_period_sec(0)
    options.set_stats_persist_period_sec(0)
    return options
