//! The byte loops of the store: encoding, scanning, checksums, queues, the key index.
//!
//! Every function has a reference implementation in `penstock.codec.pure`, which is its
//! specification: same name, same arguments, same bytes. Policy is never in here. The exception is
//! `raft`, which has none: a cluster needs the extension.

mod append;
mod append_groups;
mod append_path;
mod appender;
mod batch_keys;
mod block_checksums;
mod bytes;
mod codec;
mod columns;
mod copying;
mod dispatch;
mod encode;
mod entry;
mod errors;
mod extract;
mod group_commit;
mod hash;
mod index;
mod inflate;
mod kafka;
mod kafka_build;
mod kafka_check;
mod kafka_pieces;
mod kafka_produce;
mod kafka_rewrite;
mod kafka_wire;
mod message;
mod mqtt;
mod offsets;
mod point_read;
mod properties;
mod python;
mod queue;
mod raft;
mod read;
mod read_ahead;
mod reader;
mod record;
mod replay;
mod state;
mod stored;
mod sync_thread;
mod tier;
mod write_lock;

use pyo3::prelude::*;

#[pymodule(gil_used = true)]
fn _native(module: &Bound<'_, PyModule>) -> PyResult<()> {
    module.add_class::<appender::Appender>()?;
    module.add_class::<append_path::AppendPath>()?;
    module.add_class::<group_commit::GroupCommit>()?;
    module.add_class::<write_lock::WriteLock>()?;
    module.add_class::<raft::RaftCore>()?;
    module.add_class::<read_ahead::ReadAhead>()?;
    module.add_function(wrap_pyfunction!(codec::java_hash, module)?)?;
    module.add_function(wrap_pyfunction!(codec::crc_patch, module)?)?;
    module.add_function(wrap_pyfunction!(codec::decode_raw, module)?)?;
    module.add_function(wrap_pyfunction!(codec::encode_raw, module)?)?;
    module.add_function(wrap_pyfunction!(codec::check_log, module)?)?;
    module.add_function(wrap_pyfunction!(codec::find_record, module)?)?;
    module.add_function(wrap_pyfunction!(codec::prefault, module)?)?;
    module.add_function(wrap_pyfunction!(extract::all_fit, module)?)?;
    module.add_function(wrap_pyfunction!(codec::index_lookup, module)?)?;
    module.add_function(wrap_pyfunction!(codec::index_relink, module)?)?;
    module.add_function(wrap_pyfunction!(inflate::inflate_object, module)?)?;
    module.add_function(wrap_pyfunction!(reader::read_records, module)?)?;
    module.add_function(wrap_pyfunction!(point_read::read_one, module)?)?;
    module.add_function(wrap_pyfunction!(point_read::index_newest, module)?)?;
    module.add_function(wrap_pyfunction!(reader::read_batches, module)?)?;
    module.add_function(wrap_pyfunction!(batch_keys::read_keys, module)?)?;
    module.add_function(wrap_pyfunction!(batch_keys::index_fill, module)?)?;
    module.add_function(wrap_pyfunction!(reader::read_columns, module)?)?;
    module.add_function(wrap_pyfunction!(reader::decode_inner, module)?)?;
    module.add_function(wrap_pyfunction!(offsets::pack_offsets, module)?)?;
    module.add_function(wrap_pyfunction!(offsets::put_newer, module)?)?;
    module.add_function(wrap_pyfunction!(kafka_build::build_batch, module)?)?;
    module.add_function(wrap_pyfunction!(kafka_check::check_object, module)?)?;
    module.add_function(wrap_pyfunction!(kafka_check::check_plain, module)?)?;
    module.add_function(wrap_pyfunction!(kafka_produce::parse_object, module)?)?;
    module.add_function(wrap_pyfunction!(kafka_rewrite::rewrite_batch, module)?)?;
    module.add_function(wrap_pyfunction!(kafka_wire::crc32c, module)?)?;
    module.add_function(wrap_pyfunction!(kafka_wire::set_tag_header, module)?)?;
    module.add_function(wrap_pyfunction!(kafka_wire::slice_batches, module)?)?;
    module.add_function(wrap_pyfunction!(copying::find_special, module)?)?;
    module.add_function(wrap_pyfunction!(tier::copy_records, module)?)?;
    module.add_function(wrap_pyfunction!(tier::place_records, module)?)?;
    module.add_function(wrap_pyfunction!(tier::index_records, module)?)?;
    module.add_function(wrap_pyfunction!(block_checksums::block_checksums, module)?)?;
    module.add_function(wrap_pyfunction!(block_checksums::read_blocks, module)?)?;
    mqtt::register(module)
}
