//! Appends records that another log holds: only their positions change.
//!
//! The checksum follows the position by linearity and is never computed anew over bytes that were
//! not verified against the old one. Their store timestamps are of another node's clock: they do
//! not move the clock of this log.

use pyo3::prelude::*;

use crate::bytes::{put, View};
use crate::codec::maybe_detached;
use crate::dispatch::index_hashes;
use crate::errors::Refusal;
use crate::extract::Bound64;
use crate::hash::crc_patch;
use crate::properties::Properties;
use crate::python::Encoded;
use crate::queue::{Kind, Queue};
use crate::record::{parse_trailer, put_trailer, Record, POSITION_AT, TRAILER_SIZE, TRAILER_START};
use crate::state::{find_queue, State, NO_ROOM_IN_INDEX, NO_ROOM_IN_LOG};

impl State {
    /// Append records as another log holds them: only their positions change.
    pub fn append_encoded(
        &mut self,
        handle: i64,
        data: &[u8],
        strict: bool,
    ) -> Result<i64, Refusal> {
        let queue = find_queue(&self.queues, handle)?;
        let first = queue.next_offset;
        let (sizes, entries) = check_encoded(queue, data, strict)?;
        if !self.has_room(queue, "group", data.len() as u64)? {
            return Ok(NO_ROOM_IN_LOG);
        }
        if entries > 0 && entries as u64 > self.index.room() {
            return Ok(NO_ROOM_IN_INDEX);
        }
        let start = self.end;
        let out = Self::log_space(&mut self.log, start, data.len());
        put(out, 0, data);
        let mut at = 0;
        for &size in &sizes {
            if let Some(record) = out.get_mut(at..at + size) {
                move_record(record, start + at as i64);
            }
            at += size;
        }
        // What was copied is dispatched, not what the caller's buffer may hold by now.
        let Some(log) = self.log.take() else {
            return Ok(NO_ROOM_IN_LOG);
        };
        at = (start - log.base) as usize;
        for size in sizes {
            if let Ok(record) = Record::parse(log.view.bytes(), at) {
                let found = Properties::parse(record.properties);
                self.dispatch(handle as usize, &record, &found, log.base + at as i64);
            }
            at += size;
        }
        self.log = Some(log);
        self.end += data.len() as i64;
        self.list_appended(handle as usize, first);
        Ok(first)
    }

    /// Add unit, time and index entries of a record that comes next in its queue.
    fn dispatch(
        &mut self,
        handle: usize,
        record: &Record<'_>,
        found: &Properties<'_>,
        position: i64,
    ) {
        let Some(Some(queue)) = self.queues.get_mut(handle) else {
            return;
        };
        queue.add_record(record, found, position);
        let hashes = index_hashes(Some(queue), record, found);
        self.index.add(&hashes, position, record.store_ms);
        self.list(handle);
    }
}

/// Positions of the records that change more of a shard than its queue: those with a producer, those
/// of another leader epoch than the one before, and all of special topics. The caller has verified
/// the records, and all of them have an offset.
#[pyfunction]
pub fn find_special<'py>(
    py: Python<'py>,
    log: &Bound<'py, PyAny>,
    base: i64,
    start: i64,
    end: Bound64,
    epoch: i64,
    special_suffix: &Bound<'py, PyAny>,
) -> PyResult<Vec<i64>> {
    let view = View::readable(log)?;
    let suffix = Encoded::new(special_suffix, "special_suffix")?;
    let (log, suffix) = (view.bytes(), suffix.bytes());
    let index_of = |position: i64| usize::try_from(position.saturating_sub(base)).unwrap_or(0);
    let (mut at, end) = (index_of(start), index_of(end.0).min(log.len()));
    let found = maybe_detached(py, end.saturating_sub(at), || {
        let (mut found, mut last) = (Vec::new(), epoch);
        while at < end {
            let record = Record::parse(log, at).map_err(|reason| (at, reason))?;
            let is_special = !suffix.is_empty() && record.topic.ends_with(suffix);
            let is_new_epoch = record.leader_epoch() != last;
            last = record.leader_epoch();
            if is_special || is_new_epoch || Properties::parse(record.properties).has_producer() {
                found.push(base + at as i64);
            }
            at += record.data.len();
        }
        Ok(found)
    });
    found.map_err(|(at, reason): (usize, &'static str)| {
        Refusal::bad(format!("no record of a commit log at byte {at}: {reason}")).raise(py)
    })
}

/// Verify that `data` is a run of whole records that come next in `queue`; their sizes, and the
/// number of index entries they need.
fn check_encoded(queue: &Queue, data: &[u8], strict: bool) -> Result<(Vec<usize>, usize), Refusal> {
    let mut sizes = Vec::new();
    let mut entries = 0;
    let (mut at, mut group_end) = (0, 0);
    let mut next = queue.next_offset;
    while at < data.len() {
        let refused = |reason| Refusal::bad(format!("data: at byte {at}: {reason}"));
        let record = Record::parse(data, at).map_err(refused)?;
        record.verify(None, strict).map_err(refused)?;
        let found = Properties::parse(record.properties);
        next = check_member(queue, &record, &found, next).map_err(refused)?;
        if found.has_group() {
            let size = group_size(&found).filter(|size| *size >= record.data.len());
            let end = size.and_then(|size| at.checked_add(size));
            let is_whole = at >= group_end && end.is_some_and(|end| end <= data.len());
            group_end =
                end.filter(|_| is_whole).ok_or_else(|| refused("the group is not whole"))?;
        }
        if at < group_end && group_end < at + record.data.len() {
            return Err(refused("the group does not end with a record"));
        }
        at += record.data.len();
        sizes.push(record.data.len());
        entries += found.index_count();
    }
    if sizes.is_empty() {
        return Err(Refusal::bad("data: there is nothing to append"));
    }
    Ok((sizes, entries))
}

/// Check that a record comes next in its queue; the offset after it.
fn check_member(
    queue: &Queue,
    record: &Record<'_>,
    found: &Properties<'_>,
    next: i64,
) -> Result<i64, &'static str> {
    if record.topic != queue.topic || record.queue_id != queue.queue_id {
        return Err("the record belongs to another queue");
    }
    if !record.is_queued() {
        return Err("an unfinished transaction has no offset");
    }
    let (offset, count) = match queue.kind {
        Kind::Simple => (record.queue_offset, 1),
        Kind::Batch => found
            .inner_range()
            .filter(|(base, _)| *base == record.queue_offset)
            .ok_or("the record does not belong in a batch queue")?,
    };
    if offset != next {
        return Err("the record is not the next one of its queue");
    }
    Ok(offset + count)
}

/// The bytes of a group, if PSTK_GRP says them properly.
pub fn group_size(found: &Properties<'_>) -> Option<usize> {
    if found.group().len() != 10 || !found.group().iter().all(u8::is_ascii_digit) {
        return None;
    }
    std::str::from_utf8(found.group()).ok()?.parse().ok()
}

/// Give a record its new position, and carry its checksum over without trusting its bytes anew.
pub fn move_record(record: &mut [u8], position: i64) {
    let size = record.len();
    let mut delta = position.to_be_bytes();
    let has_trailer = Record::parse(record, 0).is_ok_and(|parsed| {
        parsed.trailer().is_some_and(|(_, trailer)| trailer.starts_with(TRAILER_START))
    });
    if let Some(field) = record.get_mut(POSITION_AT..POSITION_AT + 8) {
        for (new, old) in delta.iter_mut().zip(field.iter()) {
            *new ^= old;
        }
        field.copy_from_slice(&position.to_be_bytes());
    }
    if !has_trailer {
        return;
    }
    if let Some(trailer) = record.last_chunk_mut::<TRAILER_SIZE>() {
        let before = parse_trailer(trailer).unwrap_or(0) as u32;
        let size_after = size.saturating_sub(TRAILER_SIZE + POSITION_AT + 8) as u64;
        put_trailer(trailer, crc_patch(before, size_after, &delta) & 0x7FFF_FFFF);
    }
}
