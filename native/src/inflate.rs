//! Inflates the content of Kafka batches, up to a bound.

use std::io::Read;
use std::panic::{catch_unwind, AssertUnwindSafe};

use crate::bytes::u32_at;
use crate::record::Reason;

pub const INFLATED_SIZE_MAX: usize = 256 << 20;

const FAILED: Reason = "the Kafka batch does not decompress";
const TOO_LARGE: Reason = "the Kafka batch decompresses to more than 256 MiB";

const XERIAL_MAGIC: &[u8] = b"\x82SNAPPY\x00";
const XERIAL_HEAD_SIZE: usize = 16;

pub fn inflate(codec: i16, content: &[u8]) -> Result<Vec<u8>, Reason> {
    let work = || match codec {
        1 => read_all(flate2::read::GzDecoder::new(content)),
        2 => inflate_snappy(content),
        3 => read_all(lz4_flex::frame::FrameDecoder::new(content)),
        4 => match ruzstd::decoding::StreamingDecoder::new(content) {
            Ok(decoder) => read_all(decoder),
            Err(_) => Err(FAILED),
        },
        _ => Err("the Kafka batch has an unknown compression"),
    };
    // The decoders are other people's code on other people's bytes.
    catch_unwind(AssertUnwindSafe(work)).unwrap_or(Err(FAILED))
}

fn read_all(decoder: impl Read) -> Result<Vec<u8>, Reason> {
    let mut data = Vec::new();
    let mut bounded = decoder.take(INFLATED_SIZE_MAX as u64 + 1);
    bounded.read_to_end(&mut data).map_err(|_| FAILED)?;
    if data.len() > INFLATED_SIZE_MAX {
        return Err(TOO_LARGE);
    }
    Ok(data)
}

/// Java clients write blocks with a frame of their own around them, others one bare block.
fn inflate_snappy(content: &[u8]) -> Result<Vec<u8>, Reason> {
    let mut data = Vec::new();
    if !content.starts_with(XERIAL_MAGIC) {
        inflate_block(content, &mut data)?;
        return Ok(data);
    }
    let mut rest = content.get(XERIAL_HEAD_SIZE..).ok_or(FAILED)?;
    while !rest.is_empty() {
        let size = u32_at(rest, 0).ok_or(FAILED)? as usize;
        let block = rest.get(4..).and_then(|rest| rest.get(..size)).ok_or(FAILED)?;
        inflate_block(block, &mut data)?;
        rest = rest.get(4 + size..).ok_or(FAILED)?;
    }
    Ok(data)
}

fn inflate_block(block: &[u8], data: &mut Vec<u8>) -> Result<(), Reason> {
    let size = snap::raw::decompress_len(block).map_err(|_| FAILED)?;
    let start = data.len();
    if size > INFLATED_SIZE_MAX - start {
        return Err(TOO_LARGE);
    }
    // A block grows at most about 21-fold; a greater claim is a lie that must not cost memory.
    if size / 64 > block.len() {
        return Err(FAILED);
    }
    data.resize(start + size, 0);
    let out = data.get_mut(start..).ok_or(FAILED)?;
    let written = snap::raw::Decoder::new().decompress(block, out).map_err(|_| FAILED)?;
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
