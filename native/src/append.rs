//! Appends: plan, check every limit, then write log, queue units and index entries.
//!
//! Nothing is changed before the last check has passed, and nothing can fail after it.

use crate::bytes::put;
use crate::dispatch::index_hashes;
use crate::encode::{write_body, write_message, Place, Plan, Tail, MULTI_TAG};
use crate::errors::Refusal;
use crate::hash::crc_patch;
use crate::message::{key_token, Message, Tags, KEY_TOKEN_MAX};
use crate::properties::{Properties, BATCH_COUNT_MAX};
use crate::queue::{Kind, Queue, Unit};
use crate::record::{parse_trailer, put_trailer, Record, INNER_BATCH, POSITION_AT, TRAILER_SIZE};
use crate::state::{clock, find_queue, too_large, State, NO_ROOM_IN_INDEX, NO_ROOM_IN_LOG};

pub const KAFKA_HEAD_SIZE: usize = 61;

/// When an append happens, and under which leader.
#[derive(Clone, Copy)]
pub struct Stamp {
    pub now_ms: i64,
    pub epoch: i64,
}

/// Messages that are appended together, looked at twice: to plan them and to write them.
pub trait Rows: Sync {
    fn count(&self) -> usize;
    fn message<R>(&self, row: usize, look: impl FnOnce(&Message<'_>) -> R) -> R;
}

/// An inner batch: the body of one record.
pub struct Batch<'a> {
    pub body: &'a [u8],
    pub count: i64,
    pub born_ms: i64,
    pub producer: Option<&'a [u8]>,
    pub is_kafka: bool,
}

impl State {
    /// Append one message: the common case, without an allocation.
    #[inline]
    pub fn append_one(
        &mut self,
        handle: i64,
        message: &Message<'_>,
        stamp: Stamp,
    ) -> Result<i64, Refusal> {
        let queue = find_queue(&self.queues, handle)?;
        let offset = queue.next_offset;
        let tail = tail(message, queue.kind, offset);
        let plan = Plan::of_message(message, &queue.shape, &tail, &self.reserved)?;
        if let Some(full) = self.refuse(queue, &[plan.size], Plan::index_count(message))? {
            return Ok(full);
        }
        let stamp = self.stamp(stamp);
        self.write(handle as usize, offset, message, &plan, &tail, stamp);
        Ok(offset)
    }

    /// Append messages as one atomic group.
    pub fn append_rows(
        &mut self,
        handle: i64,
        rows: &impl Rows,
        stamp: Stamp,
        producer: Option<&[u8]>,
    ) -> Result<i64, Refusal> {
        let queue = find_queue(&self.queues, handle)?;
        let (count, kind, first) = (rows.count(), queue.kind, queue.next_offset);
        if count == 0 {
            return Err(Refusal::bad("there is nothing to append"));
        }
        let mut plans = Vec::with_capacity(count);
        let mut sizes = Vec::with_capacity(count);
        let mut entries = 0;
        for row in 0..count {
            let plan = rows.message(row, |message| {
                let mut tail = tail(message, kind, first + row as i64);
                tail.producer = producer.filter(|_| row == 0);
                tail.group = (row == 0 && count > 1).then_some(0);
                entries += Plan::index_count(message);
                Plan::of_message(message, &queue.shape, &tail, &self.reserved)
            })?;
            sizes.push(plan.size);
            plans.push(plan);
        }
        if let Some(full) = self.refuse(queue, &sizes, entries)? {
            return Ok(full);
        }
        let group: u64 = sizes.iter().map(|&size| size as u64).sum();
        let stamp = self.stamp(stamp);
        for (row, plan) in plans.iter().enumerate() {
            let offset = first + row as i64;
            rows.message(row, |message| {
                let mut tail = tail(message, kind, offset);
                tail.producer = producer.filter(|_| row == 0);
                tail.group = (row == 0 && count > 1).then_some(group);
                self.write(handle as usize, offset, message, plan, &tail, stamp);
            });
        }
        Ok(first)
    }

    /// Append an opaque inner batch as one record.
    pub fn append_batch(
        &mut self,
        handle: i64,
        batch: &Batch<'_>,
        stamp: Stamp,
    ) -> Result<i64, Refusal> {
        let queue = find_queue(&self.queues, handle)?;
        check_batch(queue, batch, stamp.epoch)?;
        let offset = queue.next_offset;
        let tail = Tail {
            inner: Some((offset, batch.count)),
            kafka: batch.is_kafka,
            producer: batch.producer,
            ..Tail::default()
        };
        let plan = Plan::of_body(batch.body.len(), &queue.shape, &tail)?;
        if let Some(full) = self.refuse(queue, &[plan.size], 0)? {
            return Ok(full);
        }
        let stamp = self.stamp(stamp);
        let position = self.end;
        let born_ms = if batch.born_ms < 0 { stamp.now_ms } else { batch.born_ms };
        let place = Place {
            position,
            offset,
            born_ms,
            store_ms: stamp.now_ms,
            epoch: stamp.epoch,
            sys_flag: INNER_BATCH,
        };
        // Base offset and leader epoch lie outside what Kafka's own checksum covers.
        let (base, epoch) = (offset.to_be_bytes(), (stamp.epoch as i32).to_be_bytes());
        let patches: [(usize, &[u8]); 2] = [(0, &base), (12, &epoch)];
        let patches = if batch.is_kafka { &patches[..] } else { &[] };
        let out = Self::log_space(&mut self.log, position, plan.size);
        let Some(Some(queue)) = self.queues.get_mut(handle as usize) else {
            return Ok(offset);
        };
        write_body(out, &plan, (batch.body, patches), &queue.shape, &tail, &place);
        queue.push(&Unit {
            position,
            size: plan.size as i32,
            tag_code: 0,
            store_ms: stamp.now_ms,
            born_ms,
            offset,
            count: batch.count,
        });
        queue.epoch = stamp.epoch;
        self.list(handle as usize);
        self.end += plan.size as i64;
        Ok(offset)
    }

    /// Append records as another log holds them: only their positions change.
    pub fn append_encoded(&mut self, handle: i64, data: &[u8]) -> Result<i64, Refusal> {
        let queue = find_queue(&self.queues, handle)?;
        let first = queue.next_offset;
        let (sizes, entries) = check_encoded(queue, data)?;
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
        let hashes = index_hashes(queue.hash_seed, record, found);
        self.index.add(&hashes, position, record.store_ms);
        self.last_store_ms = self.last_store_ms.max(record.store_ms);
        self.list(handle);
    }

    /// Check sizes against every limit. The answer is the code of a full log or index, if any.
    #[inline]
    fn refuse(
        &self,
        queue: &Queue,
        sizes: &[usize],
        entries: usize,
    ) -> Result<Option<i64>, Refusal> {
        let size_max = self.max_record_size;
        if let Some(&size) = sizes.iter().find(|&&size| size as u64 > size_max) {
            return Err(too_large(queue, "record", size as u64, size_max));
        }
        let what = if sizes.len() > 1 { "group" } else { "record" };
        if !self.has_room(queue, what, sizes.iter().map(|&size| size as u64).sum())? {
            return Ok(Some(NO_ROOM_IN_LOG));
        }
        if entries as u64 > self.index.room() {
            return Ok(Some(NO_ROOM_IN_INDEX));
        }
        Ok(None)
    }

    /// Read the clock, which never runs backwards in the log.
    #[inline]
    fn stamp(&mut self, stamp: Stamp) -> Stamp {
        self.last_store_ms = self.last_store_ms.max(clock(stamp.now_ms));
        Stamp { now_ms: self.last_store_ms, epoch: stamp.epoch }
    }

    /// Write one message behind the last record, and what points at it.
    #[inline]
    fn write(
        &mut self,
        handle: usize,
        offset: i64,
        message: &Message<'_>,
        plan: &Plan,
        tail: &Tail<'_>,
        stamp: Stamp,
    ) {
        let position = self.end;
        let Some(Some(queue)) = self.queues.get_mut(handle) else {
            return;
        };
        let mut hashes = [0u32; 2];
        let mut count = 0;
        if let Some(key) = message.key {
            hashes[0] = key_hash(queue, key, plan.is_plain);
            self.index.prefetch(hashes[0]);
            count = 1;
        }
        let mut tag_code = 0;
        if !matches!(message.tags, Tags::None) {
            (tag_code, hashes[count]) = match message.tags {
                Tags::One(tag) if plan.has_tag => queue.tag_hashes(tag),
                _ => queue.tag_hashes(MULTI_TAG),
            };
            count += 1;
        }
        let born_ms = message.timestamp_ms.unwrap_or(stamp.now_ms);
        let place = Place {
            position,
            offset,
            born_ms,
            store_ms: stamp.now_ms,
            epoch: stamp.epoch,
            sys_flag: 0,
        };
        let out = Self::log_space(&mut self.log, position, plan.size);
        write_message(out, plan, message, &queue.shape, tail, &place);
        queue.push(&Unit {
            position,
            size: plan.size as i32,
            tag_code,
            store_ms: stamp.now_ms,
            born_ms,
            offset,
            count: 1,
        });
        queue.epoch = stamp.epoch;
        self.index.add(&hashes[..count], position, stamp.now_ms);
        self.list(handle);
        self.end += plan.size as i64;
    }
}

#[inline]
fn tail<'a>(message: &Message<'_>, kind: Kind, offset: i64) -> Tail<'a> {
    Tail {
        expires_at_ms: message.expires_at_ms,
        inner: (kind == Kind::Batch).then_some((offset, 1)),
        ..Tail::default()
    }
}

#[inline]
fn key_hash(queue: &Queue, key: &[u8], is_plain: bool) -> u32 {
    if is_plain {
        return queue.key_hash(key);
    }
    let mut token = [0; KEY_TOKEN_MAX];
    let size = key_token(key, &mut token);
    queue.key_hash(&token[..size])
}

fn check_batch(queue: &Queue, batch: &Batch<'_>, epoch: i64) -> Result<(), Refusal> {
    if queue.kind != Kind::Batch {
        let shard = queue.shard();
        return Err(Refusal::bad(format!("shard '{shard}' takes single records, not batches")));
    }
    if !(1..=BATCH_COUNT_MAX).contains(&batch.count) {
        return Err(Refusal::bad("count: a batch holds 1 to 32767 messages"));
    }
    if batch.is_kafka && batch.body.len() < KAFKA_HEAD_SIZE {
        return Err(Refusal::bad("body: a Kafka batch takes at least 61 bytes"));
    }
    if batch.is_kafka && i32::try_from(epoch).is_err() {
        return Err(Refusal::bad("epoch: Kafka's leader epochs have 32 bits"));
    }
    Ok(())
}

/// Verify that `data` is a run of whole records that come next in `queue`; their sizes, and the
/// number of index entries they need.
fn check_encoded(queue: &Queue, data: &[u8]) -> Result<(Vec<usize>, usize), Refusal> {
    let mut sizes = Vec::new();
    let mut entries = 0;
    let (mut at, mut group_end) = (0, 0);
    let mut next = queue.next_offset;
    while at < data.len() {
        let refused = |reason| Refusal::bad(format!("data: at byte {at}: {reason}"));
        let record = Record::parse(data, at).map_err(refused)?;
        record.verify(None).map_err(refused)?;
        let found = Properties::parse(record.properties);
        next = check_member(queue, &record, &found, next).map_err(refused)?;
        if !found.group.is_empty() {
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

/// Check that a record comes next in its queue; the offset behind it.
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
    if found.group.len() != 10 || !found.group.iter().all(u8::is_ascii_digit) {
        return None;
    }
    std::str::from_utf8(found.group).ok()?.parse().ok()
}

/// Give a record its new position, and carry its checksum over without trusting its bytes anew.
fn move_record(record: &mut [u8], position: i64) {
    let size = record.len();
    let mut delta = position.to_be_bytes();
    let has_trailer = Record::parse(record, 0).is_ok_and(|parsed| {
        parsed.trailer().is_some_and(|(_, trailer)| trailer.starts_with(b"__CRC32#\x01"))
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
