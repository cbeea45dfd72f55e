//! Appends: plan, check every limit, then write log, queue units and index entries.
//!
//! Nothing is changed before the last check has passed, and nothing can fail after it.

use crate::encode::{write_body, write_message, Place, Plan, Tail, MULTI_TAG};
use crate::errors::Refusal;
use crate::index::KeyIndex;
use crate::message::{Message, Tags};
use crate::properties::BATCH_COUNT_MAX;
use crate::queue::{Kind, Queue, Unit};
use crate::record::INNER_BATCH;
use crate::state::{clock, find_queue, too_large, State, NO_ROOM_IN_INDEX, NO_ROOM_IN_LOG};

const KAFKA_HEAD_SIZE: usize = 61;
/// Ends the topics of control records, which are the store's own, not the user's.
const CONTROL_SUFFIX: &[u8] = b"%ctl";

/// When an append happens, and under which leader.
#[derive(Clone, Copy)]
pub struct Stamp {
    pub now_ms: i64,
    pub epoch: i64,
}

/// An inner batch: the body of one record.
pub struct Batch<'a> {
    pub body: &'a [u8],
    pub count: i64,
    pub born_ms: i64,
    pub producer: Option<&'a [u8]>,
    pub is_kafka: bool,
    pub tag_header: Option<&'a [u8]>,
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
        let plan = Plan::of_message(message, queue, &tail, &self.reserved)?;
        if let Some(full) = self.refuse(queue, &[plan], Plan::index_count(message))? {
            return Ok(full);
        }
        let stamp = self.stamp(stamp);
        if let Some(mut target) = self.target(handle) {
            target.write(message, &plan, &tail, stamp);
        }
        self.list_appended(handle as usize, offset);
        Ok(offset)
    }

    /// Append messages as one atomic group; `transaction`: whose they all belong to.
    pub fn append_group(
        &mut self,
        handle: i64,
        messages: &[Message<'_>],
        stamp: Stamp,
        producer: Option<&[u8]>,
        transaction: Option<&[u8]>,
    ) -> Result<i64, Refusal> {
        let queue = find_queue(&self.queues, handle)?;
        let (kind, first) = (queue.kind, queue.next_offset);
        if messages.is_empty() {
            return Err(Refusal::bad("there is nothing to append"));
        }
        let is_group = messages.len() > 1;
        let tail_of = |row: usize, message: &Message<'_>, group: u64| {
            let mut tail = tail(message, kind, first + row as i64);
            tail.transaction = transaction;
            if row == 0 {
                tail.producer = producer;
                tail.group = is_group.then_some(group);
            }
            tail
        };
        let mut plans = Vec::with_capacity(messages.len());
        let mut entries = 0;
        for (row, message) in messages.iter().enumerate() {
            let tail = tail_of(row, message, 0);
            plans.push(Plan::of_message(message, queue, &tail, &self.reserved)?);
            entries += Plan::index_count(message);
        }
        if let Some(full) = self.refuse(queue, &plans, entries)? {
            return Ok(full);
        }
        let group = plans.iter().map(|plan| plan.size as u64).sum();
        let stamp = self.stamp(stamp);
        if let Some(mut target) = self.target(handle) {
            for (row, (message, plan)) in messages.iter().zip(&plans).enumerate() {
                target.write(message, plan, &tail_of(row, message, group), stamp);
            }
        }
        self.list_appended(handle as usize, first);
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
            tag_header: batch.tag_header,
            producer: batch.producer,
            ..Tail::default()
        };
        let plan = Plan::of_body(batch.body.len(), &queue.shape, &tail)?;
        if let Some(full) = self.refuse(queue, &[plan], 0)? {
            return Ok(full);
        }
        let stamp = self.stamp(stamp);
        if let Some(mut target) = self.target(handle) {
            target.write_batch(batch, &plan, &tail, stamp);
        }
        self.list_appended(handle as usize, offset);
        Ok(offset)
    }

    /// Check sizes against every limit. The answer is the code of a full log or index, if any.
    #[inline]
    fn refuse(
        &self,
        queue: &Queue,
        plans: &[Plan],
        entries: usize,
    ) -> Result<Option<i64>, Refusal> {
        let size_max = self.max_record_size;
        let mut total = 0;
        for plan in plans {
            let size = plan.size as u64;
            if size > size_max && !queue.topic.ends_with(CONTROL_SUFFIX) {
                return Err(too_large(queue, "record", size, size_max));
            }
            total += size;
        }
        let what = if plans.len() > 1 { "group" } else { "record" };
        if !self.has_room(queue, what, total)? {
            return Ok(Some(NO_ROOM_IN_LOG));
        }
        if entries as u64 > self.index.room() {
            return Ok(Some(NO_ROOM_IN_INDEX));
        }
        Ok(None)
    }

    /// Read the clock, which never runs backwards in the log.
    #[inline]
    pub fn stamp(&mut self, stamp: Stamp) -> Stamp {
        self.last_store_ms = self.last_store_ms.max(clock(stamp.now_ms));
        Stamp { now_ms: self.last_store_ms, epoch: stamp.epoch }
    }

    /// What records of a queue are written to.
    #[inline]
    pub fn target(&mut self, handle: i64) -> Option<Target<'_>> {
        let queue = self.queues.get_mut(handle as usize)?.as_mut()?;
        let log = self.log.as_mut()?;
        Some(Target {
            queue,
            base: log.base,
            log: log.view.bytes_mut(),
            index: &mut self.index,
            end: &mut self.end,
        })
    }
}

/// One queue, the log and the index, for records that were found to fit.
pub struct Target<'a> {
    queue: &'a mut Queue,
    base: i64,
    log: &'a mut [u8],
    index: &'a mut KeyIndex,
    end: &'a mut i64,
}

impl Target<'_> {
    /// Write one message after the last record, and what points at it.
    #[inline]
    pub fn write(&mut self, message: &Message<'_>, plan: &Plan, tail: &Tail<'_>, stamp: Stamp) {
        let mut hashes = [plan.key_hash, 0];
        let mut count = 0;
        if message.key.is_some() {
            self.index.prefetch(plan.key_hash);
            count = 1;
        }
        let mut tag_code = 0;
        if !matches!(message.tags, Tags::None) {
            (tag_code, hashes[count]) = match message.tags {
                Tags::One(tag) if plan.has_tag() => self.queue.tag_hashes(tag),
                _ => self.queue.tag_hashes(MULTI_TAG),
            };
            count += 1;
        }
        let place = self.place(message.timestamp_ms, stamp, 0);
        let start = (place.position - self.base) as usize;
        if let Some(out) = self.log.get_mut(start..start + plan.size) {
            write_message(out, plan, message, &self.queue.shape, tail, &place);
        }
        self.add_unit(&place, plan.size, tag_code, 1);
        self.index.add(&hashes[..count], place.position, stamp.now_ms);
    }

    fn write_batch(&mut self, batch: &Batch<'_>, plan: &Plan, tail: &Tail<'_>, stamp: Stamp) {
        let born_ms = (batch.born_ms >= 0).then_some(batch.born_ms);
        let place = self.place(born_ms, stamp, INNER_BATCH);
        let start = (place.position - self.base) as usize;
        // Base offset and leader epoch lie outside what Kafka's own checksum covers.
        let (base, epoch) = (place.offset.to_be_bytes(), (stamp.epoch as i32).to_be_bytes());
        let patches: [(usize, &[u8]); 2] = [(0, &base), (12, &epoch)];
        let patches = if batch.is_kafka { &patches[..] } else { &[] };
        if let Some(out) = self.log.get_mut(start..start + plan.size) {
            write_body(out, plan, (batch.body, patches), &self.queue.shape, tail, &place);
        }
        self.add_unit(&place, plan.size, 0, batch.count);
    }

    #[inline]
    fn place(&self, born_ms: Option<i64>, stamp: Stamp, sys_flag: i32) -> Place {
        Place {
            position: *self.end,
            offset: self.queue.next_offset,
            born_ms: born_ms.unwrap_or(stamp.now_ms),
            store_ms: stamp.now_ms,
            epoch: stamp.epoch,
            sys_flag,
        }
    }

    #[inline]
    fn add_unit(&mut self, place: &Place, size: usize, tag_code: i64, count: i64) {
        self.queue.push(&Unit {
            position: place.position,
            size: size as i32,
            tag_code,
            store_ms: place.store_ms,
            born_ms: place.born_ms,
            offset: place.offset,
            count,
        });
        self.queue.epoch = place.epoch;
        *self.end += size as i64;
    }
}

#[inline]
pub fn tail<'a>(message: &Message<'_>, kind: Kind, offset: i64) -> Tail<'a> {
    Tail {
        expires_at_ms: message.expires_at_ms,
        inner: (kind == Kind::Batch).then_some((offset, 1)),
        ..Tail::default()
    }
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
