//! Records on their way into a tier: taken out of the log, put at their new place, indexed.
//!
//! Whole records, as bytes; no object is made of any of them. Each is verified before it is copied,
//! and its checksum follows its new position by linearity.

use std::collections::HashSet;

use pyo3::prelude::*;
use pyo3::types::{PyBytes, PyTuple};

use crate::bytes::{i16_at, i32_at, i64_at, put, View};
use crate::codec::maybe_detached;
use crate::copying::{group_size, move_record};
use crate::entry::{Arena, Entry};
use crate::errors::Refusal;
use crate::extract::Bound64;
use crate::properties::Properties;
use crate::python::{damage_or_none, Encoded};
use crate::queue::Kind;
use crate::read::{read_batches, read_simple, LogFile, Page, Sink, Wanted};
use crate::reader::{extract_ranges, kind_of};
use crate::record::{Reason, Record};

/// Keys per byte of a filter beyond which it tells nothing apart.
const FILTER_KEYS_PER_BYTE: usize = 4;

/// A unit of either kind: the offsets [first, end) of a record, its position and size.
struct Row {
    first: i64,
    end: i64,
    position: i64,
    size: i32,
}

fn row_of(unit: &[u8], kind: Kind, offset: i64) -> Option<Row> {
    let (position, size) = (i64_at(unit, 0)?, i32_at(unit, 8)?);
    let (first, count) = match kind {
        Kind::Simple => (offset, 1),
        Kind::Batch => (i64_at(unit, 28)?, i64::from(i16_at(unit, 36)?)),
    };
    Some(Row { first, end: first.saturating_add(count), position, size })
}

/// Whether sorted ranges, none of which touches the next, cover [first, end).
fn are_deleted(deleted: &[(i64, i64)], first: i64, end: i64) -> bool {
    let after = deleted.partition_point(|range| range.0 <= first);
    after > 0 && end <= deleted[after - 1].1
}

/// Records that were verified, as places in the log: those that adjoin are one.
struct Copied {
    pieces: Vec<(usize, usize)>,
    size: usize,
    next_offset: i64,
    damage: Option<(i64, Reason)>,
}

impl Copied {
    #[inline]
    fn add(&mut self, index: usize, size: usize) {
        self.size += size;
        match self.pieces.last_mut() {
            Some(last) if last.0 + last.1 == index => last.1 += size,
            _ => self.pieces.push((index, size)),
        }
    }

    /// Keep the first `size` bytes.
    fn truncate(&mut self, size: usize) {
        while let Some(last) = self.pieces.last_mut() {
            let before = self.size - last.1;
            if before < size {
                last.1 = size - before;
                break;
            }
            self.size = before;
            self.pieces.pop();
        }
        self.size = size;
    }

    fn to_bytes<'py>(&self, py: Python<'py>, log: &[u8]) -> PyResult<Bound<'py, PyBytes>> {
        PyBytes::new_with(py, self.size, |out| {
            let mut at = 0;
            for &(index, size) in &self.pieces {
                put(out, at, log.get(index..index + size).unwrap_or(&[]));
                at += size;
            }
            Ok(())
        })
    }
}

/// What of a shard is copied, and how much of it.
struct Span<'a> {
    offset: i64,
    deleted: &'a [(i64, i64)],
    max_size: usize,
    /// A group is copied whole or not at all; it may exceed `max_size` where it comes first.
    whole_groups: bool,
}

fn copy(file: &LogFile<'_>, units: &[u8], kind: Kind, span: &Span<'_>) -> Copied {
    let mut done = Copied { pieces: Vec::new(), size: 0, next_offset: span.offset, damage: None };
    // Where the last group began and ends, in bytes that were copied, and its first offset.
    let (mut group_start, mut group_end, mut group_offset) = (0, 0, span.offset);
    for unit in units.chunks_exact(kind.unit_size()) {
        let Some(row) = row_of(unit, kind, done.next_offset) else {
            break;
        };
        if are_deleted(span.deleted, row.first.max(span.offset), row.end) {
            done.next_offset = done.next_offset.max(row.end);
            continue;
        }
        let Some(index) = file.index(row.position) else {
            break;
        };
        match file.record(index, row.position, row.size) {
            Ok(record) if record.queue_offset == row.first => {
                let copied = done.size;
                if copied >= group_end {
                    let size = if span.whole_groups { size_of_group(&record) } else { None };
                    let size = size.unwrap_or(record.data.len());
                    if copied > 0 && copied.saturating_add(size) > span.max_size {
                        break;
                    }
                    (group_start, group_offset) = (copied, done.next_offset);
                    group_end = copied.saturating_add(size);
                }
                done.add(index, record.data.len());
            }
            Ok(_) => {
                done.damage = Some((row.position, "unit and record do not agree on the offset"));
                break;
            }
            Err(reason) => {
                done.damage = Some((row.position, reason));
                break;
            }
        }
        done.next_offset = row.end;
    }
    if done.size < group_end {
        done.truncate(group_start);
        done.next_offset = group_offset;
    }
    done
}

/// The bytes of the group that a record begins.
fn size_of_group(record: &Record<'_>) -> Option<usize> {
    let found = Properties::parse(record.properties);
    if !found.has_group() {
        return None;
    }
    group_size(&found).filter(|size| *size >= record.data.len())
}

#[pyfunction]
#[pyo3(signature = (
    log, base, units, kind, offset, topic, queue_id, deleted, max_size, strict = false,
    whole_groups = false
))]
#[allow(clippy::too_many_arguments)]
pub fn copy_records<'py>(
    py: Python<'py>,
    log: &Bound<'py, PyAny>,
    base: i64,
    units: &Bound<'py, PyAny>,
    kind: i64,
    offset: i64,
    topic: &Bound<'py, PyAny>,
    queue_id: i32,
    deleted: &Bound<'py, PyAny>,
    max_size: Bound64,
    strict: bool,
    whole_groups: bool,
) -> PyResult<Bound<'py, PyTuple>> {
    let kind = kind_of(py, kind)?;
    let (log, units) = (View::readable(log)?, View::readable(units)?);
    let topic = Encoded::new(topic, "topic")?;
    let deleted = extract_ranges(deleted)?;
    let file = LogFile { log: log.bytes(), base, topic: topic.bytes(), queue_id, strict };
    let units = units.bytes();
    let max_size = usize::try_from(max_size.0).unwrap_or(0);
    let span = Span { offset, deleted: &deleted, max_size, whole_groups };
    let done = maybe_detached(py, usize::MAX, || copy(&file, units, kind, &span));
    let data = done.to_bytes(py, log.bytes())?;
    (data, done.next_offset, damage_or_none(py, done.damage)?).into_pyobject(py)
}

/// How much of a run of records can be taken, and which offsets it has.
struct Run {
    sizes: Vec<usize>,
    size: usize,
    first: i64,
    end: i64,
}

/// What a run of records must follow on and fit into.
struct Place<'a> {
    offset: i64,
    gap_max: i64,
    max_size: i64,
    /// The topic and the queue that all records have; None takes any.
    queue: Option<(&'a [u8], i32)>,
}

fn measure(data: &[u8], kind: Kind, place: &Place<'_>) -> Result<Run, (usize, Reason)> {
    let Place { offset, gap_max, max_size, queue } = *place;
    let mut run = Run { sizes: Vec::new(), size: 0, first: offset, end: offset };
    while run.size < data.len() {
        let refused = |reason| (run.size, reason);
        let record = Record::parse(data, run.size).map_err(refused)?;
        record.verify(None, false).map_err(refused)?;
        let (first, count) = match kind {
            Kind::Simple => (record.queue_offset, 1),
            Kind::Batch => Properties::parse(record.properties)
                .inner_range()
                .filter(|(base, _)| *base == record.queue_offset)
                .ok_or((run.size, "the record does not belong in a batch queue"))?,
        };
        let fits = i64::try_from(run.size + record.data.len()).is_ok_and(|size| size <= max_size);
        let gap = first.saturating_sub(run.end);
        let is_foreign = queue.is_some_and(|wanted| wanted != (record.topic, record.queue_id));
        if is_foreign || !fits || gap < 0 || gap > gap_max {
            break;
        }
        if run.sizes.is_empty() {
            run.first = first;
        }
        run.end = first.saturating_add(count);
        run.size += record.data.len();
        run.sizes.push(record.data.len());
    }
    Ok(run)
}

#[pyfunction]
#[pyo3(signature = (
    data, kind, position, offset, gap_max, max_size, topic=None, queue_id=0
))]
#[allow(clippy::too_many_arguments)]
pub fn place_records<'py>(
    py: Python<'py>,
    data: &Bound<'py, PyAny>,
    kind: i64,
    position: i64,
    offset: i64,
    gap_max: Bound64,
    max_size: Bound64,
    topic: Option<&Bound<'py, PyAny>>,
    queue_id: i32,
) -> PyResult<Bound<'py, PyTuple>> {
    let kind = kind_of(py, kind)?;
    let view = View::readable(data)?;
    let bytes = view.bytes();
    let topic = topic.map(|topic| Encoded::new(topic, "topic")).transpose()?;
    let queue = topic.as_ref().map(|topic| (topic.bytes(), queue_id));
    let place = Place { offset, gap_max: gap_max.0, max_size: max_size.0, queue };
    let placed = maybe_detached(py, bytes.len(), || {
        let run = measure(bytes, kind, &place)?;
        let mut moved = bytes.get(..run.size).unwrap_or(&[]).to_vec();
        let mut at = 0;
        for &size in &run.sizes {
            if let Some(record) = moved.get_mut(at..at + size) {
                move_record(record, position + at as i64);
            }
            at += size;
        }
        Ok((moved, run.first, run.end))
    });
    match placed {
        Ok((moved, first, end)) => (PyBytes::new(py, &moved), first, end).into_pyobject(py),
        Err((at, reason)) => {
            let _: (usize, Reason) = (at, reason);
            Err(Refusal::bad(format!("no record of a commit log at byte {at}: {reason}")).raise(py))
        }
    }
}

/// Collects what finds the records of a chunk: hashes of keys, a filter of them, times.
struct KeySink<'a> {
    kind: Kind,
    units_offset: i64,
    /// First offsets of a batch queue's units.
    bases: Vec<i64>,
    pairs: Vec<(u32, u32)>,
    distinct: HashSet<&'a [u8]>,
    distinct_max: usize,
    min_ms: i64,
    max_ms: i64,
}

impl<'a> KeySink<'a> {
    fn add_key(&mut self, key: &'a [u8], unit: u32) {
        self.pairs.push((crc32fast::hash(key), unit));
        if self.distinct.len() <= self.distinct_max {
            self.distinct.insert(key);
        }
    }

    fn unit_of(&self, offset: i64) -> u32 {
        let number = match self.kind {
            Kind::Simple => offset - self.units_offset,
            Kind::Batch => self.bases.partition_point(|&base| base <= offset) as i64 - 1,
        };
        u32::try_from(number).unwrap_or(0)
    }

    fn keys(&mut self) -> Vec<u8> {
        self.pairs.sort_unstable();
        self.pairs.dedup();
        let mut packed = Vec::with_capacity(8 * self.pairs.len());
        for (hash, unit) in &self.pairs {
            packed.extend_from_slice(&hash.to_be_bytes());
            packed.extend_from_slice(&unit.to_be_bytes());
        }
        packed
    }

    fn filter(&self, size: usize) -> Vec<u8> {
        if self.distinct.len() > self.distinct_max {
            return Vec::new();
        }
        let mut filter = vec![0u8; size];
        let bits = 8 * size as u64;
        for key in &self.distinct {
            let first = u64::from(crc32fast::hash(key));
            let second = u64::from(adler32(key) | 1);
            for n in 0..3 {
                let bit = ((first + n * second) % bits) as usize;
                filter[bit >> 3] |= 1 << (bit & 7);
            }
        }
        filter
    }
}

impl<'a> Sink<'a> for KeySink<'a> {
    #[inline]
    fn add(&mut self, entry: &Entry<'a>) {
        self.min_ms = self.min_ms.min(entry.stamps.timestamp_ms);
        self.max_ms = self.max_ms.max(entry.stamps.timestamp_ms);
        let unit = self.unit_of(entry.stamps.offset);
        if let Some(key) = entry.key {
            self.add_key(key, unit);
            if key.contains(&b' ') {
                let words = key.split(|&byte| byte == b' ').filter(|word| !word.is_empty());
                words.for_each(|word| self.add_key(word, unit));
            }
        }
        entry.headers.each(|name, value| {
            if let (b"UNIQ_KEY", Some(key)) = (name, value.filter(|key| !key.is_empty())) {
                self.add_key(key, unit);
            }
        });
    }
}

fn adler32(data: &[u8]) -> u32 {
    let (mut a, mut b) = (1u32, 0u32);
    for part in data.chunks(5552) {
        for &byte in part {
            a += u32::from(byte);
            b += a;
        }
        a %= 65_521;
        b %= 65_521;
    }
    b << 16 | a
}

#[pyfunction]
#[allow(clippy::too_many_arguments)]
pub fn index_records<'py>(
    py: Python<'py>,
    data: &Bound<'py, PyAny>,
    base: i64,
    units: &Bound<'py, PyAny>,
    kind: i64,
    offset: i64,
    topic: &Bound<'py, PyAny>,
    queue_id: i32,
    filter_size: usize,
) -> PyResult<Bound<'py, PyTuple>> {
    let kind = kind_of(py, kind)?;
    if filter_size == 0 {
        return Err(Refusal::bad("a filter has at least a byte").raise(py));
    }
    let (data, units) = (View::readable(data)?, View::readable(units)?);
    let topic = Encoded::new(topic, "topic")?;
    let file = LogFile { log: data.bytes(), base, topic: topic.bytes(), queue_id, strict: false };
    let units = units.bytes();
    let arena = Arena::default();
    let (keys, filter, times, damage) = maybe_detached(py, data.size(), || {
        let mut sink = KeySink {
            kind,
            units_offset: offset,
            bases: Vec::new(),
            pairs: Vec::new(),
            distinct: HashSet::new(),
            distinct_max: FILTER_KEYS_PER_BYTE * filter_size,
            min_ms: i64::MAX,
            max_ms: i64::MIN,
        };
        let wanted = Wanted { deleted: Vec::new(), now_ms: i64::MIN, tag: None, key: None };
        let mut page = Page::new(offset, i64::MAX, i64::MAX);
        match kind {
            Kind::Simple => read_simple(&file, units, &wanted, &mut page, &mut sink, &arena),
            Kind::Batch => {
                let rows = units.chunks_exact(kind.unit_size());
                sink.bases = rows.filter_map(|unit| i64_at(unit, 28)).collect();
                read_batches(&file, units, &wanted, &mut page, &mut sink, &arena);
            }
        }
        let times = if sink.min_ms > sink.max_ms { (0, 0) } else { (sink.min_ms, sink.max_ms) };
        (sink.keys(), sink.filter(filter_size), times, page.damage)
    });
    let damage = damage_or_none(py, damage)?;
    (PyBytes::new(py, &keys), PyBytes::new(py, &filter), times.0, times.1, damage).into_pyobject(py)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranges_cover_what_lies_in_one_of_them() {
        let deleted = [(2, 5), (8, 9)];
        assert!(are_deleted(&deleted, 2, 5) && are_deleted(&deleted, 8, 9));
        assert!(!are_deleted(&deleted, 1, 3) && !are_deleted(&deleted, 4, 9));
        assert!(!are_deleted(&[], 0, 1));
    }

    #[test]
    fn the_second_hash_of_the_filter_is_adler32() {
        assert_eq!(adler32(b""), 1);
        assert_eq!(adler32(b"Wikipedia"), 0x11E6_0398);
    }
}
