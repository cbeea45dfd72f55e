//! A queue in memory: its end, the units that are not in a file yet, and the maxima of its blocks
//! of timestamps.
//!
//! Invariants: the units held are those of `first_unit..next_unit`, without a gap; in a simple
//! queue unit numbers are offsets; a block is handed out once `next_offset` has reached its end.

use std::collections::VecDeque;

use crate::encode::{Hosts, Shape};
use crate::errors::Refusal;
use crate::hash::{index_hash, java_hash};
use crate::message::is_plain_text;

pub const UNIT_SIZE: usize = 20;
pub const BATCH_UNIT_SIZE: usize = 46;
const BLOCK_BITS: u32 = 10;
pub const TIME_BLOCK: i64 = 1 << BLOCK_BITS;
const BLOCK_MAX_NONE: i64 = -1;
const BLOCK_MAX_UNKNOWN: i64 = i64::MAX;
/// The most offsets that a replay fills with pre-blanks; a longer gap is damage.
pub const GAP_MAX: i64 = 1 << 20;

#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    Simple,
    Batch,
}

impl Kind {
    pub fn unit_size(self) -> usize {
        match self {
            Self::Simple => UNIT_SIZE,
            Self::Batch => BATCH_UNIT_SIZE,
        }
    }
}

/// What a unit says about its record.
pub struct Unit {
    pub position: i64,
    pub size: i32,
    pub tag_code: i64,
    pub store_ms: i64,
    pub born_ms: i64,
    pub offset: i64,
    /// Messages in the record: 1, or those of an inner batch.
    pub count: i64,
}

/// What an append has to know of a queue's shard.
#[derive(Clone, Copy, Default)]
pub struct Admission {
    /// It takes records without further questions.
    pub is_open: bool,
    /// Its records are shown and acknowledged when they are on the device.
    pub is_sync: bool,
    /// Leader epoch of the records to come.
    pub epoch: i64,
    /// Another node decides what it holds: store times are of that node's clock.
    pub is_following: bool,
}

pub struct Queue {
    pub topic: Vec<u8>,
    pub queue_id: i32,
    pub kind: Kind,
    pub shape: Shape,
    pub next_offset: i64,
    pub next_unit: i64,
    /// Leader epoch of the last record; -1 when it is not known.
    pub epoch: i64,
    /// Hash of `topic#`, with which every index text starts.
    pub hash_seed: u32,
    /// Listed among the queues that hold units.
    pub is_listed: bool,
    units: Vec<u8>,
    dropped_size: usize,
    blocks: Vec<(i64, i64)>,
    pub block_max: i64,
    last_tag: LastTag,
    pub admission: Admission,
    /// Offsets that are not shown before the log is on the device up to a position.
    hidden: VecDeque<(i64, i64)>,
}

/// The tag of the last record and its hashes: most records of a queue share a few tags.
#[derive(Default)]
struct LastTag {
    tag: Vec<u8>,
    is_plain: bool,
    code: i64,
    hash: u32,
}

impl Queue {
    pub fn new(topic: &[u8], queue_id: i32, kind: Kind, hosts: &Hosts) -> Result<Self, Refusal> {
        Ok(Self {
            topic: topic.to_vec(),
            queue_id,
            kind,
            shape: Shape::new(topic, queue_id, hosts)?,
            next_offset: 0,
            next_unit: 0,
            epoch: -1,
            hash_seed: java_hash(java_hash(0, topic), b"#"),
            is_listed: false,
            units: Vec::new(),
            dropped_size: 0,
            blocks: Vec::new(),
            block_max: BLOCK_MAX_NONE,
            last_tag: LastTag::default(),
            admission: Admission::default(),
            hidden: VecDeque::new(),
        })
    }

    /// The shard's name, for messages.
    pub fn shard(&self) -> String {
        format!("{}_{}", String::from_utf8_lossy(&self.topic), self.queue_id)
    }

    /// Code of the unit and hash of the index entry for a tag.
    #[inline]
    pub fn tag_hashes(&mut self, tag: &[u8]) -> (i64, u32) {
        if tag.is_empty() {
            return (0, 0);
        }
        let last = &mut self.last_tag;
        if last.tag != tag {
            last.tag.clear();
            last.tag.extend_from_slice(tag);
            last.is_plain = is_plain_text(tag);
            last.code = i64::from(java_hash(0, tag) as i32);
            last.hash = index_hash(java_hash(java_hash(self.hash_seed, b"T#"), tag));
        }
        (last.code, last.hash)
    }

    /// The tag is the last record's, and one that TAGS can hold.
    #[inline(always)]
    pub fn is_known_tag(&self, tag: &[u8]) -> bool {
        self.last_tag.is_plain && self.last_tag.tag == tag
    }

    /// Hash of the index entry for a key.
    #[inline]
    pub fn key_hash(&self, key: &[u8]) -> u32 {
        index_hash(java_hash(self.hash_seed, key))
    }

    /// Add the unit of the record that comes next.
    #[inline]
    pub fn push(&mut self, unit: &Unit) {
        self.units.reserve(UNIT_SIZE);
        self.units.extend_from_slice(&unit.position.to_be_bytes());
        self.units.extend_from_slice(&unit.size.to_be_bytes());
        self.units.extend_from_slice(&unit.tag_code.to_be_bytes());
        if self.kind == Kind::Batch {
            self.push_batch(unit);
        }
        self.next_unit += 1;
        self.advance(unit.offset + unit.count, unit.born_ms);
    }

    /// The second part of a batch queue's unit.
    fn push_batch(&mut self, unit: &Unit) {
        let mut bytes = [0u8; BATCH_UNIT_SIZE - UNIT_SIZE];
        bytes[..8].copy_from_slice(&unit.store_ms.to_be_bytes());
        bytes[8..16].copy_from_slice(&unit.offset.to_be_bytes());
        bytes[16..18].copy_from_slice(&(unit.count as i16).to_be_bytes());
        bytes[18..22].copy_from_slice(&(-1i32).to_be_bytes());
        self.units.extend_from_slice(&bytes);
        self.leap(unit.offset);
    }

    /// Fill the offsets up to `offset` of a simple queue with units that point at nothing.
    pub fn push_pre_blanks(&mut self, offset: i64) {
        let mut blank = [0u8; UNIT_SIZE];
        blank[8..12].copy_from_slice(&i32::MAX.to_be_bytes());
        while self.next_offset < offset {
            self.units.extend_from_slice(&blank);
            self.next_unit += 1;
            self.advance(self.next_offset + 1, BLOCK_MAX_NONE);
        }
    }

    /// Leave the offsets before `offset` without a record.
    pub fn skip_to(&mut self, offset: i64) {
        match self.kind {
            Kind::Simple => self.push_pre_blanks(offset),
            Kind::Batch => self.leap(offset),
        }
    }

    /// Forget everything; go on at `next_offset`, whose unit is `next_unit`.
    pub fn restart(&mut self, next_offset: i64, next_unit: i64) {
        self.clear_units();
        self.blocks.clear();
        self.hidden.clear();
        self.block_max = BLOCK_MAX_NONE;
        self.next_offset = next_offset;
        self.next_unit = next_unit;
        self.epoch = -1;
    }

    /// Move the end of a batch queue over offsets that no record has.
    fn leap(&mut self, offset: i64) {
        if offset > self.next_offset {
            self.advance(offset, BLOCK_MAX_NONE);
        }
    }

    /// Move the end to `offset`; the records in between were born at `born_ms`.
    #[inline]
    fn advance(&mut self, offset: i64, born_ms: i64) {
        self.block_max = self.block_max.max(born_ms);
        if offset >> BLOCK_BITS != self.next_offset >> BLOCK_BITS {
            self.complete_blocks(offset, born_ms);
        }
        self.next_offset = offset;
    }

    fn complete_blocks(&mut self, offset: i64, born_ms: i64) {
        let last = offset >> BLOCK_BITS;
        for block in self.next_offset >> BLOCK_BITS..last {
            self.blocks.push((block, self.block_max));
            let goes_on = offset > (block + 1) << BLOCK_BITS;
            self.block_max = if goes_on { born_ms.max(BLOCK_MAX_NONE) } else { BLOCK_MAX_NONE };
        }
    }

    /// Do not show the records from `first` on before the log is on the device up to `end`.
    pub fn hide(&mut self, first: i64, end: i64, durable: i64) {
        self.unhide(durable);
        self.hidden.push_back((first, end));
    }

    /// The offset after the last record that may be shown.
    pub fn shown_offset(&mut self, durable: i64) -> i64 {
        self.unhide(durable);
        self.hidden.front().map_or(self.next_offset, |(first, _)| *first)
    }

    fn unhide(&mut self, durable: i64) {
        while self.hidden.front().is_some_and(|(_, end)| *end <= durable) {
            self.hidden.pop_front();
        }
    }

    /// Take back everything from `next_offset`, whose unit is `next_unit`, on.
    pub fn truncate(&mut self, next_offset: i64, next_unit: i64) {
        let block = next_offset / TIME_BLOCK;
        if next_offset % TIME_BLOCK == 0 {
            self.block_max = BLOCK_MAX_NONE;
        } else if block != self.next_offset / TIME_BLOCK {
            let pending = self.blocks.iter().find(|(number, _)| *number == block);
            self.block_max = pending.map_or(BLOCK_MAX_UNKNOWN, |(_, maximum)| *maximum);
        }
        self.blocks.retain(|(number, _)| *number < block);
        self.hidden.retain(|(offset, _)| *offset < next_offset);
        let first = self.first_unit();
        if next_unit < first {
            self.clear_units();
        } else {
            let kept = (next_unit - first) as usize * self.kind.unit_size();
            self.units.truncate(self.dropped_size + kept);
        }
        self.next_offset = next_offset;
        self.next_unit = next_unit;
        self.epoch = -1;
    }

    pub fn drain_blocks(&mut self) -> Vec<(i64, i64)> {
        std::mem::take(&mut self.blocks)
    }

    /// Units held, not yet in a file.
    pub fn held(&self) -> &[u8] {
        self.units.get(self.dropped_size..).unwrap_or(&[])
    }

    pub fn held_count(&self) -> usize {
        self.held().len() / self.kind.unit_size()
    }

    pub fn first_unit(&self) -> i64 {
        self.next_unit - self.held_count() as i64
    }

    /// Units of `unit..unit+count` that are held; none when `unit` is not.
    pub fn units(&self, unit: i64, count: i64) -> &[u8] {
        let first = self.first_unit();
        if unit < first || unit >= self.next_unit || count <= 0 {
            return &[];
        }
        let end = unit.saturating_add(count).min(self.next_unit);
        let size = self.kind.unit_size();
        self.held()
            .get((unit - first) as usize * size..(end - first) as usize * size)
            .unwrap_or(&[])
    }

    /// Forget units below `until`: they are in a file.
    pub fn drop_units(&mut self, until: i64) {
        let count = until.min(self.next_unit).saturating_sub(self.first_unit());
        if count <= 0 {
            return;
        }
        self.dropped_size += count as usize * self.kind.unit_size();
        if self.dropped_size >= self.units.len() {
            self.clear_units();
        } else if self.dropped_size > self.units.len() / 2 {
            self.units.drain(..self.dropped_size);
            self.dropped_size = 0;
        }
    }

    fn clear_units(&mut self) {
        self.dropped_size = 0;
        // A burst must not keep its memory.
        if self.units.capacity() > 1 << 20 {
            self.units = Vec::new();
        } else {
            self.units.clear();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn queue(kind: Kind) -> Queue {
        let hosts = Hosts { born: vec![0; 8], store: vec![0; 8] };
        Queue::new(b"t", 0, kind, &hosts).unwrap()
    }

    fn unit(offset: i64, count: i64, born_ms: i64) -> Unit {
        Unit { position: 0, size: 100, tag_code: 7, store_ms: 5, born_ms, offset, count }
    }

    #[test]
    fn blocks_are_handed_out_when_complete() {
        let mut queue = queue(Kind::Simple);
        for offset in 0..2049 {
            queue.push(&unit(offset, 1, 1000 - offset));
        }
        assert_eq!(queue.drain_blocks(), [(0, 1000), (1, -1)]);
        assert_eq!(queue.block_max, -1);
        queue.truncate(1500, 1500);
        assert_eq!((queue.block_max, queue.next_offset), (i64::MAX, 1500));
    }

    #[test]
    fn a_batch_counts_for_every_block_it_overlaps() {
        let mut queue = queue(Kind::Batch);
        queue.push(&unit(1000, 3000, 9));
        assert_eq!(queue.drain_blocks(), [(0, 9), (1, 9), (2, 9)]);
        assert_eq!((queue.block_max, queue.next_offset, queue.next_unit), (9, 4000, 1));
        queue.push(&unit(4000, 96, 3));
        assert_eq!((queue.drain_blocks(), queue.block_max), (vec![(3, 9)], -1));
    }

    #[test]
    fn units_are_held_until_dropped() {
        let mut queue = queue(Kind::Simple);
        for offset in 0..10 {
            queue.push(&unit(offset, 1, 0));
        }
        queue.drop_units(4);
        assert_eq!((queue.first_unit(), queue.held_count()), (4, 6));
        assert_eq!(queue.units(3, 2), b"");
        assert_eq!(queue.units(8, 100).len(), 2 * UNIT_SIZE);
        queue.truncate(7, 7);
        assert_eq!((queue.first_unit(), queue.held_count()), (4, 3));
        queue.drop_units(100);
        assert_eq!((queue.first_unit(), queue.held_count()), (7, 0));
        queue.truncate(2, 2);
        assert_eq!((queue.first_unit(), queue.held_count()), (2, 0));
    }

    #[test]
    fn gaps_hold_pre_blanks() {
        let mut queue = queue(Kind::Simple);
        queue.push_pre_blanks(3);
        assert_eq!(queue.next_unit, 3);
        assert_eq!(&queue.held()[..12], b"\0\0\0\0\0\0\0\0\x7f\xff\xff\xff");
    }
}
