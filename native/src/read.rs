//! Pages of messages: queue units in, entries out, everything checked on the way.
//!
//! A unit and its record must agree on size, topic, queue and offset, and the record's checksums
//! must hold; otherwise the page ends before it and says why. Nothing that failed a check is ever
//! handed on.

use crate::bytes::{i16_at, i32_at, i64_at};
use crate::encode::MULTI_TAG;
use crate::entry::{Arena, Entry, Stamps};
use crate::hash::java_hash;
use crate::inflate::inflate_body;
use crate::kafka::{read_kafka, read_rocketmq};
use crate::properties::Properties;
use crate::queue::{BATCH_UNIT_SIZE, UNIT_SIZE};
use crate::record::{Reason, Record, INNER_BATCH};

/// Memory that is reserved on the word of units, before their records were seen.
const RESERVED_SIZE_MAX: usize = 16 << 20;

/// Takes the messages of a page.
pub trait Sink<'a> {
    fn add(&mut self, entry: &Entry<'a>);
}

impl<'a> Sink<'a> for Vec<Entry<'a>> {
    #[inline]
    fn add(&mut self, entry: &Entry<'a>) {
        self.push(*entry);
    }
}

/// Which messages a reader wants to see.
pub struct Wanted<'a> {
    /// Sorted, half-open ranges.
    pub deleted: Vec<(i64, i64)>,
    pub now_ms: i64,
    pub tag: Option<&'a [u8]>,
    pub key: Option<&'a [u8]>,
}

impl Wanted<'_> {
    #[inline]
    fn is_deleted(&self, offset: i64) -> bool {
        if self.deleted.is_empty() {
            return false;
        }
        let after = self.deleted.partition_point(|range| range.0 <= offset);
        after > 0 && offset < self.deleted[after - 1].1
    }

    /// The codes of units that may have the tag.
    fn codes(&self) -> Option<[i64; 2]> {
        let code = |tag| i64::from(java_hash(0, tag) as i32);
        self.tag.map(|tag| [code(tag), code(MULTI_TAG)])
    }

    #[inline]
    fn matches(&self, entry: &Entry<'_>, found: Option<&Properties<'_>>) -> bool {
        entry.expires_at_ms.is_none_or(|expires| expires > self.now_ms)
            && self.tag.is_none_or(|tag| entry.tags.has(tag))
            && self.key.is_none_or(|key| entry.has_key(key, found))
    }
}

/// How far a page has come, within the caller's limits.
pub struct Page {
    pub next_offset: i64,
    pub count: usize,
    pub size: i64,
    pub damage: Option<(i64, Reason)>,
    max_records: usize,
    max_size: i64,
}

impl Page {
    pub fn new(next_offset: i64, max_records: i64, max_size: i64) -> Self {
        let max_records = if max_size > 0 { usize::try_from(max_records).unwrap_or(0) } else { 0 };
        Self { next_offset, count: 0, size: 0, damage: None, max_records, max_size }
    }

    #[inline]
    fn is_full(&self) -> bool {
        self.count >= self.max_records
    }

    /// Whether one more record fits; the first always does.
    #[inline]
    fn has_room(&self, size: i64) -> bool {
        self.count == 0 || self.size.saturating_add(size) <= self.max_size
    }

    /// How many messages the page may get at most, of simple units.
    pub fn capacity(&self, units: usize) -> usize {
        self.max_records.min(units)
    }

    /// How many bytes, if the records of that many units have `size` bytes.
    pub fn size_capacity(&self, size: usize) -> usize {
        usize::try_from(self.max_size).unwrap_or(0).min(size).min(RESERVED_SIZE_MAX)
    }
}

/// One file of the log, and the queue whose records are looked for in it.
pub struct LogFile<'a> {
    pub log: &'a [u8],
    pub base: i64,
    pub topic: &'a [u8],
    pub queue_id: i32,
    /// All records of this log have a checksum of their own.
    pub strict: bool,
}

impl<'a> LogFile<'a> {
    #[inline]
    pub fn index(&self, position: i64) -> Option<usize> {
        let index = usize::try_from(position.checked_sub(self.base)?).ok()?;
        (index < self.log.len()).then_some(index)
    }

    /// The undamaged record that a unit points at.
    #[inline(always)]
    pub fn record(&self, index: usize, position: i64, size: i32) -> Result<Record<'a>, Reason> {
        let record = Record::parse(self.log, index)?;
        if record.data.len() as i64 != i64::from(size) {
            return Err("unit and record do not agree on the size");
        }
        record.verify_once(position, self.strict)?;
        if record.queue_id != self.queue_id || record.topic != self.topic {
            return Err("the unit points at a record of another queue");
        }
        Ok(record)
    }
}

pub fn stamps_of(record: &Record<'_>) -> Stamps {
    Stamps {
        offset: record.queue_offset,
        timestamp_ms: record.born_ms,
        store_ms: record.store_ms,
        epoch: record.leader_epoch(),
    }
}

/// Read the records of consecutive simple-queue units; the first is that of the page's next offset.
pub fn read_simple<'a>(
    file: &LogFile<'a>,
    units: &[u8],
    wanted: &Wanted<'_>,
    page: &mut Page,
    sink: &mut impl Sink<'a>,
    arena: &'a Arena,
) {
    let codes = wanted.codes();
    for unit in units.chunks_exact(UNIT_SIZE) {
        let (Some(position), Some(size), Some(code)) =
            (i64_at(unit, 0), i32_at(unit, 8), i64_at(unit, 12))
        else {
            return;
        };
        if page.is_full() {
            return;
        }
        let is_pre_blank = position == 0 && size == i32::MAX && code == 0;
        if !is_pre_blank && !wanted.is_deleted(page.next_offset) {
            let Some(index) = file.index(position) else {
                return;
            };
            // Codes beyond 32 bits are not hashes: they address an extension unit, or are the
            // delivery time of a delayed record.
            let may_have_tag =
                codes.is_none_or(|codes| i32::try_from(code).is_err() || codes.contains(&code));
            if may_have_tag {
                match read_one(file, (index, position, size), wanted, page, sink, arena) {
                    Ok(true) => (),
                    Ok(false) => return,
                    Err(reason) => {
                        page.damage = Some((position, reason));
                        return;
                    }
                }
            }
        }
        page.next_offset += 1;
    }
}

/// Put the record of the page's next offset on the page, if it is wanted; false: no room for it.
#[inline]
fn read_one<'a>(
    file: &LogFile<'a>,
    (index, position, size): (usize, i64, i32),
    wanted: &Wanted<'_>,
    page: &mut Page,
    sink: &mut impl Sink<'a>,
    arena: &'a Arena,
) -> Result<bool, Reason> {
    let record = file.record(index, position, size)?;
    if record.queue_offset != page.next_offset {
        return Err("unit and record do not agree on the offset");
    }
    let found = Properties::parse(record.properties);
    let mut entry = Entry::new(record.body, record.properties, &found, stamps_of(&record))?;
    if wanted.matches(&entry, Some(&found)) {
        let mut size = i64::from(size);
        if !page.has_room(size) {
            return Ok(false);
        }
        if record.is_compressed() {
            size += inflate_value(&record, arena, &mut entry)?;
            if !page.has_room(size) {
                return Ok(false);
            }
        }
        sink.add(&entry);
        page.count += 1;
        page.size += size;
    }
    Ok(true)
}

/// Give an entry the value that its record's body holds; by how many bytes that is longer. (Only
/// clients of RocketMQ compress, and never an envelope: that is ours.)
#[cold]
fn inflate_value<'a>(
    record: &Record<'a>,
    arena: &'a Arena,
    entry: &mut Entry<'a>,
) -> Result<i64, Reason> {
    let body = arena.keep(inflate_body(record.sys_flag, record.body)?);
    entry.value = Some(body);
    Ok((body.len() as i64 - record.body.len() as i64).max(0))
}

/// Read the messages from the page's next offset on of consecutive batch-queue units.
pub fn read_batches<'a>(
    file: &LogFile<'a>,
    units: &[u8],
    wanted: &Wanted<'_>,
    page: &mut Page,
    sink: &mut impl Sink<'a>,
    arena: &'a Arena,
) {
    let mut messages = Vec::new();
    for unit in units.chunks_exact(BATCH_UNIT_SIZE) {
        let (Some(position), Some(size), Some(base), Some(count)) =
            (i64_at(unit, 0), i32_at(unit, 8), i64_at(unit, 28), i16_at(unit, 36))
        else {
            return;
        };
        if page.is_full() {
            return;
        }
        let end = base.saturating_add(count.into());
        let Some(index) = file.index(position) else {
            if end <= page.next_offset {
                continue;
            }
            return;
        };
        // A batch wholly below the start is checked, too: its unit may be there because damage made
        // its offset smaller, and passing over it would be a silent hole.
        messages.clear();
        let place = (index, position, size);
        let inflated_before = arena.size();
        let judge =
            |entry: &Entry<'_>, found: Option<&Properties<'_>>| wanted.matches(entry, found);
        let read = open_batch(file, place, (base, count.into()), arena, judge, &mut messages);
        if let Err(reason) = read {
            page.damage = Some((position, reason));
            return;
        }
        let size = i64::from(size) + (arena.size() - inflated_before) as i64;
        if !add_messages(&mut messages, size, wanted, page, sink) {
            return;
        }
        page.next_offset = page.next_offset.max(end);
    }
}

/// A message, and whether the reader wants it.
type Judged<'a> = (Entry<'a>, bool);

/// Read the messages of the batch that a unit points at, each with what `judge` says of it.
pub fn open_batch<'a, J>(
    file: &LogFile<'a>,
    (index, position, size): (usize, i64, i32),
    (base, count): (i64, i64),
    arena: &'a Arena,
    mut judge: impl FnMut(&Entry<'a>, Option<&Properties<'a>>) -> J,
    messages: &mut Vec<(Entry<'a>, J)>,
) -> Result<(), Reason> {
    let record = file.record(index, position, size)?;
    let found = Properties::parse(record.properties);
    if found.inner_range() != Some((base, count)) || record.queue_offset != base {
        return Err("unit and record do not agree on the offsets");
    }
    let stamps = stamps_of(&record);
    if record.sys_flag & INNER_BATCH == 0 {
        let mut entry = Entry::new(record.body, record.properties, &found, stamps)?;
        if record.is_compressed() {
            inflate_value(&record, arena, &mut entry)?;
        }
        let judged = judge(&entry, Some(&found));
        messages.push((entry, judged));
        return Ok(());
    }
    let body = match record.is_compressed() {
        true => arena.keep(inflate_body(record.sys_flag, record.body)?),
        false => record.body,
    };
    let agrees = if found.is_kafka() {
        read_kafka(body, stamps, found.tag_header(), arena, |entry| {
            let judged = judge(&entry, None);
            messages.push((entry, judged));
        })?;
        messages
            .iter()
            .all(|(entry, _)| (base..base.saturating_add(count)).contains(&entry.stamps.offset))
    } else {
        read_rocketmq(body, stamps, |entry, found| {
            let judged = judge(&entry, Some(found));
            messages.push((entry, judged));
        })?;
        messages.len() as i64 == count
    };
    agrees.then_some(()).ok_or("the inner batch does not hold the messages that it should")
}

/// Put the wanted messages of one batch on the page; false when it is full.
fn add_messages<'a>(
    messages: &mut Vec<Judged<'a>>,
    size: i64,
    wanted: &Wanted<'_>,
    page: &mut Page,
    sink: &mut impl Sink<'a>,
) -> bool {
    let mut is_counted = false;
    for (entry, is_wanted) in messages.drain(..) {
        let offset = entry.stamps.offset;
        if offset < page.next_offset {
            continue;
        }
        if page.is_full() {
            return false;
        }
        if is_wanted && !wanted.is_deleted(offset) {
            if !is_counted {
                if !page.has_room(size) {
                    return false;
                }
                page.size += size;
                is_counted = true;
            }
            sink.add(&entry);
            page.count += 1;
        }
        page.next_offset = offset + 1;
    }
    true
}
