//! What a record in the log means for its queue and for the key index: RocketMQ's rules.

use crate::hash::{index_hash, java_hash};
use crate::properties::Properties;
use crate::queue::{Kind, Queue, Unit};
use crate::record::{Record, ROLLBACK, TRANSACTION};

const SCHEDULE_TOPIC: &[u8] = b"SCHEDULE_TOPIC_XXXX";
const DELAY_LEVELS_S: [i64; 18] =
    [1, 5, 10, 30, 60, 120, 180, 240, 300, 360, 420, 480, 540, 600, 1200, 1800, 3600, 7200];

impl Queue {
    /// Add the unit of a record whose offset is the next one.
    #[inline]
    pub fn add_record(&mut self, record: &Record<'_>, found: &Properties<'_>, position: i64) {
        let (offset, count) = match self.kind {
            Kind::Simple => (record.queue_offset, 1),
            Kind::Batch => found.inner_range().unwrap_or((record.queue_offset, 1)),
        };
        let tag_code = match delivery_ms(record, found) {
            Some(time_ms) => time_ms,
            None => self.tag_hashes(found.tags()).0,
        };
        self.push(&Unit {
            position,
            size: record.data.len() as i32,
            tag_code,
            store_ms: record.store_ms,
            born_ms: record.born_ms,
            offset,
            count,
        });
        self.epoch = record.leader_epoch();
    }
}

/// When a delayed record is due: that stands in its unit instead of the tag's hash.
#[inline]
fn delivery_ms(record: &Record<'_>, found: &Properties<'_>) -> Option<i64> {
    if found.delay().is_empty() || record.topic != SCHEDULE_TOPIC {
        return None;
    }
    let level = crate::bytes::parse_decimal(found.delay()).filter(|&level| level > 0)?;
    let level = usize::try_from(level).unwrap_or(usize::MAX).min(DELAY_LEVELS_S.len());
    Some(record.store_ms.wrapping_add(DELAY_LEVELS_S[level - 1] * 1000))
}

/// Hashes of a record's index entries, in order. Few records have more than two.
pub struct Hashes {
    few: [u32; 4],
    count: usize,
    many: Vec<u32>,
}

impl Hashes {
    pub fn none() -> Self {
        Self { few: [0; 4], count: 0, many: Vec::new() }
    }

    pub fn without_first(self, count: usize) -> Self {
        let mut rest = Self::none();
        for &hash in self.iter().skip(count) {
            rest.push(hash);
        }
        rest
    }

    #[inline]
    fn push(&mut self, hash: u32) {
        if self.many.is_empty() && self.count < self.few.len() {
            self.few[self.count] = hash;
            self.count += 1;
            return;
        }
        if self.many.is_empty() {
            self.many.extend_from_slice(&self.few);
        }
        self.many.push(hash);
    }
}

impl std::ops::Deref for Hashes {
    type Target = [u32];

    fn deref(&self) -> &[u32] {
        if self.many.is_empty() {
            &self.few[..self.count]
        } else {
            &self.many
        }
    }
}

/// The index entries of a record; its queue knows the hashes of its last tag.
#[inline]
pub fn index_hashes(
    queue: Option<&mut Queue>,
    record: &Record<'_>,
    found: &Properties<'_>,
) -> Hashes {
    let seed = match &queue {
        Some(queue) => queue.hash_seed,
        None => java_hash(java_hash(0, record.topic), b"#"),
    };
    let mut hashes = Hashes::none();
    if record.sys_flag & TRANSACTION == ROLLBACK {
        return hashes;
    }
    if !found.unique_key().is_empty() {
        hashes.push(index_hash(java_hash(seed, found.unique_key())));
    }
    if !found.keys().contains(&b' ') {
        if !found.keys().is_empty() {
            hashes.push(index_hash(java_hash(seed, found.keys())));
        }
    } else {
        for word in found.key_words() {
            hashes.push(index_hash(java_hash(seed, word)));
        }
    }
    if !found.tags().is_empty() {
        hashes.push(match queue {
            Some(queue) => queue.tag_hashes(found.tags()).1,
            None => index_hash(java_hash(java_hash(seed, b"T#"), found.tags())),
        });
    }
    hashes
}
