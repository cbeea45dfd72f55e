//! Checks a Kafka batch before it is stored: its checksum, and every record in it.
//!
//! A batch that passes can be read by every consumer. The content is inflated in pieces and never
//! held as a whole; a batch that would grow beyond the limit of its caller is refused when it
//! reaches it, and a record that claims to be larger before it is inflated.

use std::cell::Cell;
use std::io::{BufRead, BufReader};
use std::panic::{catch_unwind, AssertUnwindSafe};

use pyo3::prelude::*;
use pyo3::types::PyTuple;

use crate::appender::ATTACHED_SIZE_MAX;
use crate::bytes::{i16_at, i32_at, i64_at, u32_at, View};
use crate::inflate::lz4_end;
use crate::kafka::HEAD_SIZE;
use crate::kafka_pieces::{SnappyBlocks, ZstdPieces, PIECE_SIZE};
use crate::record::Reason;

const CHECKED_FROM: usize = 21;
const MAGIC: u8 = 2;
const CODEC: i16 = 7;
const LOG_APPEND_TIME: i16 = 8;
const CONTROL: i16 = 32;
/// Messages that one record of the log can hold.
const COUNT_MAX: i32 = 32_767;
/// A limit up to which inflating takes too little time to be worth a change of threads.
const ATTACHED_LIMIT_MAX: u64 = 64 << 10;
const REPORTED_MAX: usize = 1_000;

const BAD_SIZE: Reason = "a record claims another size than its fields have";
const BAD_NUMBER: Reason = "a record holds a number that is too long";
const BAD_LENGTH: Reason = "a record holds a negative length";
const BAD_OFFSET: Reason = "the offsets of records do not count up from the base offset";
const BAD_TIME: Reason = "the timestamp of a record does not fit in 64 bits";
const NO_KEY: Reason = "records of a compacted topic need a key";
const FEWER: Reason = "the batch ends before its last record";
const MORE: Reason = "bytes follow the last record of the batch";
const DAMAGED: Reason = "the batch does not decompress";
const UNKNOWN: Reason = "the batch has an unknown compression";
const CHECKSUM: Reason = "the checksum of the batch does not match";
const TOO_LARGE: Reason = "the records of the batch are too large when they are decompressed";

/// What is wrong; `codec.interface` has the same numbers.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Flaw {
    None = 0,
    Checksum = 1,
    Record = 2,
    Keys = 3,
    TooLarge = 4,
}

#[derive(Debug)]
struct Problem {
    flaw: Flaw,
    reason: Reason,
    /// Which records, counted from 0; empty: the batch as a whole.
    indexes: Vec<i32>,
}

impl Problem {
    fn of_batch(flaw: Flaw, reason: Reason) -> Self {
        Self { flaw, reason, indexes: Vec::new() }
    }
}

/// What the records of a batch turned out to be.
#[derive(Debug, PartialEq)]
struct Findings {
    /// Bytes of all records, inflated.
    size: u64,
    /// Bytes of the largest record.
    largest: u64,
    oldest_ms: i64,
    newest_ms: i64,
}

struct Expected {
    count: i32,
    base_ms: i64,
    needs_keys: bool,
    limit: u64,
}

/// Check one batch whose head was checked: (flaw, reason, indexes of records, size, size of the
/// largest record, oldest and newest time).
#[pyfunction]
#[pyo3(name = "check_batch")]
pub fn check_object<'py>(
    py: Python<'py>,
    batch: &Bound<'py, PyAny>,
    limit: u64,
    needs_keys: bool,
) -> PyResult<Bound<'py, PyTuple>> {
    let view = View::readable(batch)?;
    let bytes = view.bytes();
    let is_plain = i16_at(bytes, CHECKED_FROM).is_some_and(|attributes| attributes & CODEC == 0);
    let is_quick = bytes.len() <= ATTACHED_SIZE_MAX && (is_plain || limit <= ATTACHED_LIMIT_MAX);
    let checked = match is_quick {
        true => check(bytes, limit, needs_keys),
        false => py.detach(|| check(bytes, limit, needs_keys)),
    };
    match checked {
        Ok(found) => {
            let sizes = (found.size, found.largest, found.oldest_ms, found.newest_ms);
            let none: [i32; 0] = [];
            (Flaw::None as i32, "", none, sizes.0, sizes.1, sizes.2, sizes.3).into_pyobject(py)
        }
        Err(problem) => {
            let Problem { flaw, reason, indexes } = problem;
            (flaw as i32, reason, indexes, 0, 0, -1, -1).into_pyobject(py)
        }
    }
}

/// Check a batch that is not compressed, its head included: (attributes, count, largest time
/// that the head claims, producer id, epoch, sequence, size, size of the largest record, oldest
/// and newest time). None: it is compressed or has a flaw, and `check_batch` says which.
#[pyfunction]
pub fn check_plain<'py>(
    py: Python<'py>,
    batch: &Bound<'py, PyAny>,
    size_max: usize,
    needs_keys: bool,
) -> PyResult<Option<Bound<'py, PyTuple>>> {
    let view = View::readable(batch)?;
    let bytes = view.bytes();
    let Some(head) = PlainHead::of(bytes).filter(|_| bytes.len() <= size_max) else {
        return Ok(None);
    };
    let checked = match bytes.len() <= ATTACHED_SIZE_MAX {
        true => check(bytes, 0, needs_keys),
        false => py.detach(|| check(bytes, 0, needs_keys)),
    };
    let Ok(found) = checked else { return Ok(None) };
    let fields = (head.attributes, head.count, head.max_ms, head.producer_id, head.epoch);
    let sizes = (found.size, found.largest, found.oldest_ms, found.newest_ms);
    let (attributes, count, max_ms, producer_id, epoch) = fields;
    let (size, largest, oldest_ms, newest_ms) = sizes;
    let sequence = head.sequence;
    (attributes, count, max_ms, producer_id, epoch, sequence, size, largest, oldest_ms, newest_ms)
        .into_pyobject(py)
        .map(Some)
}

/// What the head of a batch says that is not compressed.
struct PlainHead {
    attributes: i16,
    count: i32,
    max_ms: i64,
    producer_id: i64,
    epoch: i16,
    sequence: i32,
}

impl PlainHead {
    /// None for a head with any flaw; `batch_validation.py` names it.
    fn of(batch: &[u8]) -> Option<Self> {
        let head = Self {
            attributes: i16_at(batch, CHECKED_FROM)?,
            count: i32_at(batch, 57)?,
            max_ms: i64_at(batch, 35)?,
            producer_id: i64_at(batch, 43)?,
            epoch: i16_at(batch, 51)?,
            sequence: i32_at(batch, 53)?,
        };
        let is_whole = usize::try_from(i32_at(batch, 8)?).ok()?.checked_add(12)? == batch.len();
        let is_counted = (1..=COUNT_MAX).contains(&head.count)
            && i32_at(batch, 23)?.checked_add(1)? == head.count;
        let is_ordered = head.producer_id < 0 || (head.epoch >= 0 && head.sequence >= 0);
        let is_sound = batch.get(16) == Some(&MAGIC)
            && i64_at(batch, 0)? == 0
            && head.attributes & (CODEC | LOG_APPEND_TIME | CONTROL) == 0;
        (is_whole && is_counted && is_ordered && is_sound).then_some(head)
    }
}

fn check(batch: &[u8], limit: u64, needs_keys: bool) -> Result<Findings, Problem> {
    let fields = (
        i16_at(batch, CHECKED_FROM),
        u32_at(batch, 17),
        i64_at(batch, 27),
        i32_at(batch, 57),
        batch.get(CHECKED_FROM..),
        batch.get(HEAD_SIZE..),
    );
    let (Some(attributes), Some(sum), Some(base_ms), Some(count), Some(checked), Some(content)) =
        fields
    else {
        return Err(Problem::of_batch(Flaw::Record, FEWER));
    };
    if crc32c::crc32c(checked) != sum {
        return Err(Problem::of_batch(Flaw::Checksum, CHECKSUM));
    }
    let codec = attributes & CODEC;
    // What is not compressed was bounded as it was received.
    let limit = if codec == 0 { u64::MAX } else { limit };
    let expected = Expected { count, base_ms, needs_keys, limit };
    if codec == 0 {
        return walk(content, &expected, &Cell::new(false), |rest| rest.is_empty());
    }
    // The decoders are other people's code on other people's bytes.
    catch_unwind(AssertUnwindSafe(|| check_inflated(codec, content, &expected)))
        .unwrap_or(Err(Problem::of_batch(Flaw::Record, DAMAGED)))
}

fn check_inflated(codec: i16, content: &[u8], expected: &Expected) -> Result<Findings, Problem> {
    let damaged = || Problem::of_batch(Flaw::Record, DAMAGED);
    let is_over = Cell::new(false);
    match codec {
        1 => {
            let decoder = flate2::bufread::GzDecoder::new(content);
            let pieces = BufReader::with_capacity(PIECE_SIZE, decoder);
            walk(pieces, expected, &is_over, |one| one.get_ref().get_ref().is_empty())
        }
        2 => {
            let blocks =
                SnappyBlocks::new(content, expected.limit, &is_over).ok_or_else(damaged)?;
            walk(blocks, expected, &is_over, |one| one.is_spent())
        }
        3 => {
            lz4_end(content).ok_or_else(damaged)?;
            let decoder = lz4_flex::frame::FrameDecoder::new(content);
            walk(decoder, expected, &is_over, |one| one.get_ref().is_empty())
        }
        4 => {
            let decoder = ZstdPieces::new(content, expected.limit, &is_over).ok_or_else(damaged)?;
            let pieces = BufReader::with_capacity(PIECE_SIZE, decoder);
            walk(pieces, expected, &is_over, |one| one.get_ref().is_spent())
        }
        _ => Err(Problem::of_batch(Flaw::Record, UNKNOWN)),
    }
}

/// Walk all records; `is_spent` says whether the source has nothing left after its end.
fn walk<R: BufRead>(
    source: R,
    expected: &Expected,
    is_over: &Cell<bool>,
    is_spent: impl FnOnce(&R) -> bool,
) -> Result<Findings, Problem> {
    let mut walker = Walker { source, taken: 0, limit: expected.limit, is_over };
    let mut found = Findings { size: 0, largest: 0, oldest_ms: i64::MAX, newest_ms: i64::MIN };
    let mut keyless = Vec::new();
    for index in 0..expected.count {
        let start = walker.taken;
        let record = walker.record(index, expected.base_ms);
        let (time_ms, has_key) = record.map_err(|(flaw, reason)| Problem {
            flaw,
            reason,
            indexes: if flaw == Flaw::TooLarge { Vec::new() } else { vec![index] },
        })?;
        if expected.needs_keys && !has_key && keyless.len() < REPORTED_MAX {
            keyless.push(index);
        }
        found.largest = found.largest.max(walker.taken - start);
        found.oldest_ms = found.oldest_ms.min(time_ms);
        found.newest_ms = found.newest_ms.max(time_ms);
    }
    walker.expect_end(is_spent)?;
    if !keyless.is_empty() {
        return Err(Problem { flaw: Flaw::Keys, reason: NO_KEY, indexes: keyless });
    }
    found.size = walker.taken;
    Ok(found)
}

type Step<T> = Result<T, (Flaw, Reason)>;

struct Walker<'a, R> {
    source: R,
    taken: u64,
    limit: u64,
    is_over: &'a Cell<bool>,
}

impl<R: BufRead> Walker<'_, R> {
    /// Its time, and whether it has a key.
    #[inline]
    fn record(&mut self, index: i32, base_ms: i64) -> Step<(i64, bool)> {
        let size = self.length()?;
        let end = self.taken.saturating_add(size);
        if end > self.limit {
            return Err((Flaw::TooLarge, TOO_LARGE));
        }
        let available = self.source.fill_buf();
        let Ok(available) = available else { return Err(self.trouble()) };
        // Most records are whole in one piece, where they are read several times as fast.
        let found = match usize::try_from(size).ok().and_then(|size| available.get(..size)) {
            Some(data) => {
                let found = match quick_fields(data, index) {
                    Some(found) => found,
                    None => {
                        let (limit, is_over) = (self.limit, self.is_over);
                        let mut whole = Walker { source: data, taken: 0, limit, is_over };
                        whole.fields(index, size)?
                    }
                };
                self.source.consume(size as usize);
                self.taken = end;
                found
            }
            None => self.fields(index, end)?,
        };
        let time_ms = base_ms.checked_add(found.0).ok_or((Flaw::Record, BAD_TIME))?;
        Ok((time_ms, found.1))
    }

    /// The fields up to `end`: what its time adds to the base, and whether it has a key.
    #[inline]
    fn fields(&mut self, index: i32, end: u64) -> Step<(i64, bool)> {
        let size = end - self.taken;
        self.skip(1, end)?;
        let delta_ms = self.number(10, end)?;
        if self.number(5, end)? != i64::from(index) {
            return Err((Flaw::Record, BAD_OFFSET));
        }
        let has_key = self.optional(end)?;
        self.optional(end)?;
        let headers = self.number(5, end)?;
        // A header takes two bytes at least: more of them cannot be here.
        if headers < 0 || headers as u64 > size {
            return Err((Flaw::Record, BAD_LENGTH));
        }
        for _ in 0..headers {
            let name = self.number(5, end)?;
            self.skip(u64::try_from(name).map_err(|_| (Flaw::Record, BAD_LENGTH))?, end)?;
            self.optional(end)?;
        }
        match self.taken == end {
            true => Ok((delta_ms, has_key)),
            false => Err((Flaw::Record, BAD_SIZE)),
        }
    }

    #[inline]
    fn length(&mut self) -> Step<u64> {
        let size = self.number(5, u64::MAX)?;
        u64::try_from(size).map_err(|_| (Flaw::Record, BAD_LENGTH))
    }

    /// Pass over bytes that may be null; say whether they are there.
    #[inline]
    fn optional(&mut self, end: u64) -> Step<bool> {
        match self.number(5, end)? {
            -1 => Ok(false),
            size => {
                let size = u64::try_from(size).map_err(|_| (Flaw::Record, BAD_LENGTH))?;
                self.skip(size, end).map(|()| true)
            }
        }
    }

    /// A zigzag number of 7 bits a byte, the least significant first: 32 bits in at most five
    /// bytes, or 64 in ten.
    #[inline]
    fn number(&mut self, size_max: usize, end: u64) -> Step<i64> {
        if self.taken < end {
            if let Ok(&[byte @ 0..=0x7F, ..]) = self.source.fill_buf() {
                self.source.consume(1);
                self.taken += 1;
                return Ok(i64::from(byte >> 1) ^ -i64::from(byte & 1));
            }
        }
        self.long_number(size_max, end)
    }

    fn long_number(&mut self, size_max: usize, end: u64) -> Step<i64> {
        let mut value = 0u64;
        for n in 0..size_max {
            if self.taken >= end {
                return Err((Flaw::Record, BAD_SIZE));
            }
            let byte = self.byte()?;
            // The last byte has room for what is left of 32 or 64 bits.
            if n + 1 == size_max && byte > if size_max == 5 { 0x0F } else { 0x01 } {
                return Err((Flaw::Record, BAD_NUMBER));
            }
            value |= u64::from(byte & 0x7F) << (7 * n);
            if byte < 0x80 {
                return Ok((value >> 1) as i64 ^ -((value & 1) as i64));
            }
        }
        Err((Flaw::Record, BAD_NUMBER))
    }

    #[inline]
    fn byte(&mut self) -> Step<u8> {
        let available = self.source.fill_buf();
        let Ok(available) = available else { return Err(self.trouble()) };
        let &byte = available.first().ok_or((Flaw::Record, FEWER))?;
        self.source.consume(1);
        self.taken += 1;
        Ok(byte)
    }

    #[inline]
    fn skip(&mut self, size: u64, end: u64) -> Step<()> {
        if size > end - self.taken {
            return Err((Flaw::Record, BAD_SIZE));
        }
        let mut left = size;
        while left > 0 {
            let available = self.source.fill_buf();
            let Ok(available) = available else { return Err(self.trouble()) };
            if available.is_empty() {
                return Err((Flaw::Record, FEWER));
            }
            let part = left.min(available.len() as u64);
            self.source.consume(part as usize);
            left -= part;
        }
        self.taken += size;
        Ok(())
    }

    fn trouble(&self) -> (Flaw, Reason) {
        match self.is_over.get() {
            true => (Flaw::TooLarge, TOO_LARGE),
            false => (Flaw::Record, DAMAGED),
        }
    }

    fn expect_end(&mut self, is_spent: impl FnOnce(&R) -> bool) -> Result<(), Problem> {
        let left = self.source.fill_buf().map(<[u8]>::len);
        match left {
            Ok(0) if is_spent(&self.source) => Ok(()),
            Ok(_) => Err(Problem::of_batch(Flaw::Record, MORE)),
            Err(_) => {
                let (flaw, reason) = self.trouble();
                Err(Problem::of_batch(flaw, reason))
            }
        }
    }
}

/// As `Walker::fields`, for a record without headers and with small numbers, as most are; None
/// says nothing.
#[inline]
fn quick_fields(data: &[u8], index: i32) -> Option<(i64, bool)> {
    let mut at = 1;
    let delta_ms = quick_number(data, &mut at)?;
    if quick_number(data, &mut at)? != i64::from(index) {
        return None;
    }
    let mut has_key = false;
    for field in 0..2 {
        let size = quick_number(data, &mut at)?;
        if size >= 0 {
            has_key |= field == 0;
            at = at.checked_add(size as usize)?;
        } else if size != -1 {
            return None;
        }
    }
    (data.get(at) == Some(&0) && at + 1 == data.len()).then_some((delta_ms, has_key))
}

#[inline]
fn quick_number(data: &[u8], at: &mut usize) -> Option<i64> {
    let mut value = u64::from(*data.get(*at)?);
    *at += 1;
    if value > 0x7F {
        let high = u64::from(*data.get(*at)?);
        *at += 1;
        if high > 0x7F {
            return None;
        }
        value = value & 0x7F | high << 7;
    }
    Some((value >> 1) as i64 ^ -((value & 1) as i64))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Write;

    const LIMIT: u64 = 1 << 20;

    fn record(index: u8, value: &[u8]) -> Vec<u8> {
        let mut fields = vec![0, 2];
        put(&mut fields, index.into());
        fields.push(1);
        put(&mut fields, value.len());
        fields.extend_from_slice(value);
        fields.push(0);
        let mut out = Vec::new();
        put(&mut out, fields.len());
        out.extend_from_slice(&fields);
        out
    }

    fn put(out: &mut Vec<u8>, size: usize) {
        let mut rest = size * 2;
        while rest > 0x7F {
            out.push(rest as u8 | 0x80);
            rest >>= 7;
        }
        out.push(rest as u8);
    }

    fn batch(codec: u8, count: u8, content: &[u8]) -> Vec<u8> {
        let mut data = vec![0u8; HEAD_SIZE];
        data[22] = codec;
        data[60] = count;
        data.extend_from_slice(content);
        let checksum = crc32c::crc32c(&data[CHECKED_FROM..]);
        data[17..21].copy_from_slice(&checksum.to_be_bytes());
        data
    }

    fn compressed(codec: u8, content: &[u8]) -> Vec<u8> {
        match codec {
            1 => {
                let mut gzip =
                    flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::fast());
                gzip.write_all(content).unwrap();
                gzip.finish().unwrap()
            }
            2 => snap::raw::Encoder::new().compress_vec(content).unwrap(),
            3 => {
                let mut lz4 = lz4_flex::frame::FrameEncoder::new(Vec::new());
                lz4.write_all(content).unwrap();
                lz4.finish().unwrap()
            }
            4 => {
                let level = ruzstd::encoding::CompressionLevel::Fastest;
                ruzstd::encoding::compress_to_vec(content, level)
            }
            _ => content.to_vec(),
        }
    }

    fn flaw(batch: &[u8], limit: u64) -> Flaw {
        check(batch, limit, false).map_or_else(|problem| problem.flaw, |_| Flaw::None)
    }

    #[test]
    fn every_codec_is_walked_to_its_end() {
        let content = [record(0, b"one"), record(1, &[7; 100_000])].concat();
        for codec in 0..=4 {
            let packed = compressed(codec, &content);
            let found = check(&batch(codec, 2, &packed), LIMIT, false).unwrap();
            assert_eq!(found.size, content.len() as u64);
            assert_eq!((found.oldest_ms, found.newest_ms), (1, 1));
            assert_eq!(found.largest, record(1, &[7; 100_000]).len() as u64);
            assert_eq!(flaw(&batch(codec, 3, &packed), LIMIT), Flaw::Record, "{codec}");
            assert_eq!(flaw(&batch(codec, 1, &packed), LIMIT), Flaw::Record, "{codec}");
            let trailed = [&packed[..], b"x"].concat();
            assert_eq!(flaw(&batch(codec, 2, &trailed), LIMIT), Flaw::Record, "{codec}");
            let cut = &packed[..packed.len() - 1];
            assert_eq!(flaw(&batch(codec, 2, cut), LIMIT), Flaw::Record, "{codec}");
        }
    }

    #[test]
    fn a_batch_that_grows_too_large_is_stopped_at_its_limit() {
        for codec in 1..=4 {
            // Many records, each of which is below the limit.
            let content: Vec<u8> = (0..100).flat_map(|n| record(n, &[0; 60_000])).collect();
            let packed = compressed(codec, &content);
            assert_eq!(flaw(&batch(codec, 100, &packed), LIMIT), Flaw::TooLarge, "{codec}");
            assert_eq!(flaw(&batch(codec, 100, &packed), 8 << 20), Flaw::None, "{codec}");
        }
    }

    #[test]
    fn keys_are_missed_where_they_are_needed() {
        let content = [record(0, b"one"), record(1, b"two")].concat();
        let problem = check(&batch(0, 2, &content), LIMIT, true).unwrap_err();
        assert_eq!((problem.flaw, problem.indexes), (Flaw::Keys, vec![0, 1]));
    }

    #[test]
    fn numbers_longer_than_other_readers_take_are_refused() {
        for content in [
            &b"\x8e\x80\x80\x80\x80\x00\x00\x00\x00\x01\x02x\x00"[..],
            b"\x10\x00\x00\x00\x81\x00\x02x\x00\x00",
            b"\x0e\x00\x00\x02\x01\x02x\x00",
            b"\x0e\x00\x00\x00\x03\x02x\x00",
        ] {
            assert_eq!(flaw(&batch(0, 1, content), LIMIT), Flaw::Record, "{content:?}");
        }
        assert_eq!(flaw(&batch(0, 1, b"\x0e\x00\x00\x00\x01\x02x\x00"), LIMIT), Flaw::None);
    }

    #[test]
    fn every_flipped_bit_is_noticed() {
        let good = batch(0, 1, &record(0, b"abc"));
        for bit in CHECKED_FROM * 8..good.len() * 8 {
            let mut bad = good.clone();
            bad[bit / 8] ^= 1 << (bit % 8);
            assert_eq!(flaw(&bad, LIMIT), Flaw::Checksum, "{bit}");
        }
    }
}
