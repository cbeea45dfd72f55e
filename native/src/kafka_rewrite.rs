//! A Kafka batch with another compression, or with the time of the store: what a topic's settings
//! `compression.type` and `message.timestamp.type` ask for.

use std::io::Write;

use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;
use pyo3::types::PyBytes;

use crate::bytes::{i16_at, View};
use crate::codec::maybe_detached;
use crate::inflate::inflate;
use crate::kafka::HEAD_SIZE;
use crate::record::Reason;

const SIZE_AT: usize = 8;
const CHECKSUM_AT: usize = 17;
const CHECKED_FROM: usize = 21;
const MAX_TIME_AT: usize = 35;
const CODEC: i16 = 7;
const LOG_APPEND_TIME: i16 = 8;

const CUT_SHORT: Reason = "the batch is cut short";
const NOT_COMPRESSED: Reason = "the batch could not be compressed";
const TOO_LARGE: Reason = "the batch is too large to be rewritten";

/// What a batch shall have instead of what it has.
struct Changes {
    codec: Option<i16>,
    append_ms: Option<i64>,
    newest_ms: Option<i64>,
}

/// Return a checked batch, compressed by `codec`, with the time of its storing or that of its newest
/// record; None leaves as it is.
#[pyfunction]
pub fn rewrite_batch<'py>(
    py: Python<'py>,
    batch: &Bound<'py, PyAny>,
    codec: Option<i16>,
    append_ms: Option<i64>,
    newest_ms: Option<i64>,
) -> PyResult<Bound<'py, PyBytes>> {
    let view = View::readable(batch)?;
    let bytes = view.bytes();
    let changes = Changes { codec, append_ms, newest_ms };
    match maybe_detached(py, bytes.len(), || rewritten(bytes, &changes)) {
        Ok(data) => Ok(PyBytes::new(py, &data)),
        Err(reason) => Err(PyValueError::new_err(reason)),
    }
}

fn rewritten(batch: &[u8], changes: &Changes) -> Result<Vec<u8>, Reason> {
    let (head, content) = batch.split_at_checked(HEAD_SIZE).ok_or(CUT_SHORT)?;
    let mut attributes = i16_at(head, CHECKED_FROM).ok_or(CUT_SHORT)?;
    let mut out = Vec::with_capacity(batch.len());
    out.extend_from_slice(head);
    match changes.codec {
        Some(codec) if codec != attributes & CODEC => {
            let plain = match attributes & CODEC {
                0 => content.to_vec(),
                known => inflate(known, content)?,
            };
            compress(codec, &plain, &mut out)?;
            attributes = attributes & !CODEC | codec;
        }
        _ => out.extend_from_slice(content),
    }
    if let Some(time_ms) = changes.newest_ms {
        put(&mut out, MAX_TIME_AT, &time_ms.to_be_bytes());
    }
    if let Some(time_ms) = changes.append_ms {
        attributes |= LOG_APPEND_TIME;
        put(&mut out, MAX_TIME_AT, &time_ms.to_be_bytes());
    }
    put(&mut out, CHECKED_FROM, &attributes.to_be_bytes());
    let size = i32::try_from(out.len() - 12).map_err(|_| TOO_LARGE)?;
    put(&mut out, SIZE_AT, &size.to_be_bytes());
    let checksum = crc32c::crc32c(out.get(CHECKED_FROM..).ok_or(CUT_SHORT)?);
    put(&mut out, CHECKSUM_AT, &checksum.to_be_bytes());
    Ok(out)
}

fn put(out: &mut [u8], at: usize, field: &[u8]) {
    if let Some(place) = out.get_mut(at..at + field.len()) {
        place.copy_from_slice(field);
    }
}

/// Append `content` to `out` as consumers expect it from each codec.
fn compress(codec: i16, content: &[u8], out: &mut Vec<u8>) -> Result<(), Reason> {
    match codec {
        0 => out.extend_from_slice(content),
        1 => {
            let mut encoder = flate2::write::GzEncoder::new(out, flate2::Compression::default());
            encoder.write_all(content).map_err(|_| NOT_COMPRESSED)?;
            encoder.finish().map_err(|_| NOT_COMPRESSED)?;
        }
        2 => {
            let block = snap::raw::Encoder::new().compress_vec(content);
            out.extend_from_slice(&block.map_err(|_| NOT_COMPRESSED)?);
        }
        3 => {
            // Blocks of 64 KiB that do not refer to one another: Java clients read no others.
            let form = lz4_flex::frame::FrameInfo::new()
                .block_size(lz4_flex::frame::BlockSize::Max64KB)
                .block_mode(lz4_flex::frame::BlockMode::Independent);
            let mut encoder = lz4_flex::frame::FrameEncoder::with_frame_info(form, out);
            encoder.write_all(content).map_err(|_| NOT_COMPRESSED)?;
            encoder.finish().map_err(|_| NOT_COMPRESSED)?;
        }
        4 => {
            let level = ruzstd::encoding::CompressionLevel::Fastest;
            out.extend_from_slice(&ruzstd::encoding::compress_to_vec(content, level));
        }
        _ => return Err("there is no such compression"),
    }
    Ok(())
}
