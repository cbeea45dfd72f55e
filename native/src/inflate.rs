//! Inflates the content of Kafka batches and the bodies that RocketMQ's clients compressed, up to a
//! bound.

use std::io::Read;
use std::panic::{catch_unwind, AssertUnwindSafe};

use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;
use pyo3::types::PyBytes;

use crate::bytes::{u32_at, View};
use crate::codec::maybe_detached;
use crate::record::Reason;

pub const INFLATED_SIZE_MAX: usize = 256 << 20;

const COMPRESSION_SHIFT: i32 = 8;
const COMPRESSION_MASK: i32 = 7;
const CHUNK_SIZE: usize = 64 << 10;

const LZ4_MAGIC: &[u8] = &[0x04, 0x22, 0x4D, 0x18];
const ZSTD_MAGIC: &[u8] = &[0x28, 0xB5, 0x2F, 0xFD];
pub const XERIAL_MAGIC: &[u8] = b"\x82SNAPPY\x00";
pub const XERIAL_HEAD_SIZE: usize = 16;

/// Why there are no inflated bytes.
#[derive(Debug, PartialEq)]
enum Problem {
    Damaged,
    TooLarge,
    Unknown,
}

/// The content of a Kafka batch.
pub fn inflate(codec: i16, content: &[u8]) -> Result<Vec<u8>, Reason> {
    let inflated = guarded(|| match codec {
        1 => read_all(flate2::read::GzDecoder::new(content)),
        2 => inflate_snappy(content),
        3 => inflate_lz4(content),
        4 => inflate_zstd(content),
        _ => Err(Problem::Unknown),
    });
    inflated.map_err(|problem| match problem {
        Problem::Damaged => "the Kafka batch does not decompress",
        Problem::TooLarge => "the Kafka batch decompresses to more than 256 MiB",
        Problem::Unknown => "the Kafka batch has an unknown compression",
    })
}

/// The body of a record, whose flags say how a RocketMQ client compressed it. Brokers store the flag
/// unseen: a body that does not begin as it says was never compressed.
pub fn inflate_body(sys_flag: i32, body: &[u8]) -> Result<Vec<u8>, Reason> {
    let inflated = guarded(|| match sys_flag >> COMPRESSION_SHIFT & COMPRESSION_MASK {
        // Clients that knew no other kind did not say which.
        0 | 3 if is_zlib(body) => inflate_zlib(body),
        1 if body.starts_with(LZ4_MAGIC) => inflate_lz4(body),
        2 if body.starts_with(ZSTD_MAGIC) => inflate_zstd(body),
        0..=3 => Ok(body.to_vec()),
        _ => Err(Problem::Unknown),
    });
    inflated.map_err(|problem| match problem {
        Problem::Damaged => "the body does not decompress",
        Problem::TooLarge => "the body decompresses to more than 256 MiB",
        Problem::Unknown => "the body has an unknown compression",
    })
}

#[pyfunction]
#[pyo3(name = "inflate_body")]
pub fn inflate_object<'py>(
    py: Python<'py>,
    body: &Bound<'py, PyAny>,
    sys_flag: i32,
) -> PyResult<Bound<'py, PyBytes>> {
    let view = View::readable(body)?;
    let bytes = view.bytes();
    match maybe_detached(py, bytes.len(), || inflate_body(sys_flag, bytes)) {
        Ok(data) => Ok(PyBytes::new(py, &data)),
        Err(reason) => Err(PyValueError::new_err(reason)),
    }
}

/// The decoders are other people's code on other people's bytes.
fn guarded(work: impl FnOnce() -> Result<Vec<u8>, Problem>) -> Result<Vec<u8>, Problem> {
    catch_unwind(AssertUnwindSafe(work)).unwrap_or(Err(Problem::Damaged))
}

fn read_all(decoder: impl Read) -> Result<Vec<u8>, Problem> {
    let mut data = Vec::new();
    let mut bounded = decoder.take(INFLATED_SIZE_MAX as u64 + 1);
    bounded.read_to_end(&mut data).map_err(|_| Problem::Damaged)?;
    if data.len() > INFLATED_SIZE_MAX {
        return Err(Problem::TooLarge);
    }
    Ok(data)
}

/// Deflate, a window of at most 32 KiB, and a multiple of 31.
fn is_zlib(body: &[u8]) -> bool {
    matches!(body, [first, second, ..] if first & 15 == 8 && first >> 4 <= 7
        && (u16::from(*first) << 8 | u16::from(*second)) % 31 == 0)
}

/// The reader that flate2 has takes a stream that is cut short for a whole one.
fn inflate_zlib(content: &[u8]) -> Result<Vec<u8>, Problem> {
    let mut decoder = flate2::Decompress::new(true);
    let mut data = Vec::new();
    loop {
        data.reserve(CHUNK_SIZE);
        let rest = content.get(decoder.total_in() as usize..).ok_or(Problem::Damaged)?;
        let before = (decoder.total_in(), decoder.total_out());
        let status = decoder
            .decompress_vec(rest, &mut data, flate2::FlushDecompress::None)
            .map_err(|_| Problem::Damaged)?;
        if data.len() > INFLATED_SIZE_MAX {
            return Err(Problem::TooLarge);
        }
        if status == flate2::Status::StreamEnd {
            return Ok(data);
        }
        if before == (decoder.total_in(), decoder.total_out()) {
            return Err(Problem::Damaged);
        }
    }
}

/// The decoder takes a frame that ends between two blocks for a whole one.
fn inflate_lz4(content: &[u8]) -> Result<Vec<u8>, Problem> {
    lz4_end(content).ok_or(Problem::Damaged)?;
    read_all(lz4_flex::frame::FrameDecoder::new(content))
}

/// Where the end mark of a frame is.
pub fn lz4_end(content: &[u8]) -> Option<usize> {
    let flags = *content.get(4)?;
    let block_checksum = if flags & 0x10 != 0 { 4 } else { 0 };
    let mut at = if flags & 0x08 != 0 { 15 } else { 7 };
    loop {
        let size = u32::from_le_bytes(content.get(at..at + 4)?.try_into().ok()?) as usize;
        if size == 0 {
            return Some(at);
        }
        at = at.checked_add(4 + (size & 0x7FFF_FFFF) + block_checksum)?;
    }
}

fn inflate_zstd(content: &[u8]) -> Result<Vec<u8>, Problem> {
    let decoder = ruzstd::decoding::StreamingDecoder::new(content);
    read_all(decoder.map_err(|_| Problem::Damaged)?)
}

/// Java clients write blocks with a frame of their own around them, others one bare block.
fn inflate_snappy(content: &[u8]) -> Result<Vec<u8>, Problem> {
    let mut data = Vec::new();
    if !content.starts_with(XERIAL_MAGIC) {
        inflate_block(content, &mut data)?;
        return Ok(data);
    }
    let mut rest = content.get(XERIAL_HEAD_SIZE..).ok_or(Problem::Damaged)?;
    while !rest.is_empty() {
        let size = u32_at(rest, 0).ok_or(Problem::Damaged)? as usize;
        let block = rest.get(4..).and_then(|rest| rest.get(..size)).ok_or(Problem::Damaged)?;
        inflate_block(block, &mut data)?;
        rest = rest.get(4 + size..).ok_or(Problem::Damaged)?;
    }
    Ok(data)
}

fn inflate_block(block: &[u8], data: &mut Vec<u8>) -> Result<(), Problem> {
    let size = snap::raw::decompress_len(block).map_err(|_| Problem::Damaged)?;
    let start = data.len();
    if size > INFLATED_SIZE_MAX - start {
        return Err(Problem::TooLarge);
    }
    // A block grows at most about 21-fold; a greater claim is a lie that must not cost memory.
    if size / 64 > block.len() {
        return Err(Problem::Damaged);
    }
    data.resize(start + size, 0);
    let out = data.get_mut(start..).ok_or(Problem::Damaged)?;
    let written = snap::raw::Decoder::new().decompress(block, out).map_err(|_| Problem::Damaged)?;
    data.truncate(start + written);
    Ok(())
}
#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Write;

    const TEXT: &[u8] = b"penstock penstock penstock penstock penstock";

    #[test]
    fn each_codec_gives_back_the_bytes() {
        let mut gzip = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::fast());
        gzip.write_all(TEXT).unwrap();
        assert_eq!(inflate(1, &gzip.finish().unwrap()).unwrap(), TEXT);

        let block = snap::raw::Encoder::new().compress_vec(TEXT).unwrap();
        assert_eq!(inflate(2, &block).unwrap(), TEXT);
        let mut framed = XERIAL_MAGIC.to_vec();
        framed.extend_from_slice(&[0, 0, 0, 1, 0, 0, 0, 1]);
        for _ in 0..2 {
            framed.extend_from_slice(&(block.len() as u32).to_be_bytes());
            framed.extend_from_slice(&block);
        }
        assert_eq!(inflate(2, &framed).unwrap(), [TEXT, TEXT].concat());

        let mut lz4 = lz4_flex::frame::FrameEncoder::new(Vec::new());
        lz4.write_all(TEXT).unwrap();
        assert_eq!(inflate(3, &lz4.finish().unwrap()).unwrap(), TEXT);

        let level = ruzstd::encoding::CompressionLevel::Fastest;
        let zstd = ruzstd::encoding::compress_to_vec(TEXT, level);
        assert_eq!(inflate(4, &zstd).unwrap(), TEXT);
    }

    #[test]
    fn garbage_is_an_error() {
        for codec in 1..8 {
            assert!(inflate(codec, b"garbage garbage garbage").is_err(), "{codec}");
        }
    }
}
