//! Builds queues, time blocks and index entries again from the records of a log.
//!
//! A record with an offset below its queue's end replaces everything from that offset on: the shard
//! was cut there, and the bytes of the cut records are dead. A group is taken whole or not at all.

use crate::copying::group_size;
use crate::dispatch::{index_hashes, Hashes};
use crate::properties::Properties;
use crate::queue::{Kind, GAP_MAX};
use crate::record::{step, Reason, Record, Step, INNER_BATCH};
use crate::state::State;

/// A status of 0 says that all is done.
pub const DAMAGED: i64 = 1;
pub const NO_INDEX_ROOM: i64 = 2;
pub const TRUNCATE_BATCH_QUEUE: i64 = 3;
/// A record is further ahead of its queue than a gap may be: the queue may begin anew there.
pub const LEAP: i64 = 4;

/// What to replay, and how.
pub struct Request<'a> {
    pub log: &'a [u8],
    pub base: i64,
    pub start: i64,
    pub end: i64,
    pub index: bool,
    pub special_suffix: &'a [u8],
    pub groups: bool,
    /// Every record has a checksum of its own.
    pub strict: bool,
}

#[derive(Default)]
pub struct Replayed {
    pub position: i64,
    pub records: u64,
    pub status: i64,
    pub damage: Option<(i64, Reason)>,
    pub specials: Vec<(i64, i64)>,
}

/// Why a record is not dispatched now.
enum Stop {
    Status(i64),
    Damage(i64, Reason),
}

pub fn replay(state: &mut State, asked: &Request<'_>) -> Replayed {
    let mut run = Run { state, asked, checked_until: 0, specials: Vec::new() };
    let mut done = run.run();
    done.specials = run.specials;
    done
}

struct Run<'a> {
    state: &'a mut State,
    asked: &'a Request<'a>,
    /// Records below this index were verified with their group.
    checked_until: usize,
    specials: Vec<(i64, i64)>,
}

impl<'a> Run<'a> {
    fn run(&mut self) -> Replayed {
        let asked = self.asked;
        let mut done = Replayed { position: asked.start, ..Replayed::default() };
        let limit = limit(asked.log, asked.base, asked.end);
        let Ok(mut index) = usize::try_from(asked.start - asked.base) else {
            done.status = DAMAGED;
            done.damage = Some((asked.start, "outside the file"));
            return done;
        };
        while index < limit {
            let stop = match step(asked.log, index, limit) {
                Step::Record(record) => {
                    self.dispatch(&record, index, limit).map(|()| record.data.len())
                }
                Step::Blank => {
                    index = asked.log.len();
                    break;
                }
                Step::Fresh => break,
                Step::Damaged(reason) => Err(Stop::Damage(self.position(index), reason)),
            };
            match stop {
                Ok(size) => {
                    index += size;
                    done.records += 1;
                }
                Err(Stop::Status(status)) => {
                    done.status = status;
                    break;
                }
                Err(Stop::Damage(position, reason)) => {
                    done.status = DAMAGED;
                    done.damage = Some((position, reason));
                    break;
                }
            }
        }
        done.position = self.position(index);
        done
    }

    fn position(&self, index: usize) -> i64 {
        self.asked.base + index as i64
    }

    /// Dispatch one record.
    #[inline]
    fn dispatch(&mut self, record: &Record<'_>, index: usize, limit: usize) -> Result<(), Stop> {
        let position = self.position(index);
        let damaged = |reason| Stop::Damage(position, reason);
        let found = if index < self.checked_until {
            Properties::parse(record.properties)
        } else {
            record.verify(Some(position), self.asked.strict).map_err(damaged)?;
            let found = Properties::parse(record.properties);
            if self.asked.groups && found.has_group() {
                self.check_group(record, &found, index, limit)?;
            }
            found
        };
        let handle = self.state.find_queue(record.topic, record.queue_id);
        let hashes = self.hashes(record, &found, handle, position)?;
        if record.is_queued() {
            self.add_to_queue(record, &found, handle, position)?;
        }
        self.state.index.add(&hashes, position, record.store_ms);
        if !self.is_copied(handle) {
            self.state.last_store_ms = self.state.last_store_ms.max(record.store_ms);
        }
        Ok(())
    }

    /// Whether the records of a queue may have the times of another node's clock, which does not
    /// move that of this log.
    #[inline]
    fn is_copied(&self, handle: Option<usize>) -> bool {
        let known = handle.and_then(|handle| self.state.queues.get(handle)?.as_ref());
        known.is_some_and(|queue| queue.admission.is_following)
    }

    /// Verify that all of a group is there.
    fn check_group(
        &mut self,
        first: &Record<'_>,
        found: &Properties<'_>,
        index: usize,
        limit: usize,
    ) -> Result<(), Stop> {
        let start = self.position(index);
        let Some(size) = group_size(found) else {
            return Err(Stop::Damage(start, "the group's size is not a number of ten digits"));
        };
        let end = index.saturating_add(size);
        if size < first.data.len() || end > limit {
            return Err(Stop::Damage(start, "the group is cut short"));
        }
        let mut at = index + first.data.len();
        while at < end {
            let position = self.position(at);
            let damaged = |reason| Stop::Damage(position, reason);
            let member = match step(self.asked.log, at, limit) {
                Step::Record(member) => member,
                Step::Damaged(reason) => return Err(damaged(reason)),
                Step::Blank | Step::Fresh => return Err(damaged("the group is incomplete")),
            };
            member.verify(Some(position), self.asked.strict).map_err(damaged)?;
            if member.topic != first.topic || member.queue_id != first.queue_id {
                return Err(damaged("the group holds a record of another queue"));
            }
            if Properties::parse(member.properties).has_group() {
                return Err(damaged("the group holds the start of another group"));
            }
            at += member.data.len();
        }
        if at != end {
            return Err(Stop::Damage(start, "the group does not end with a record"));
        }
        self.checked_until = end;
        Ok(())
    }

    /// The index entries that the record needs and does not have yet.
    #[inline]
    fn hashes(
        &mut self,
        record: &Record<'_>,
        found: &Properties<'_>,
        handle: Option<usize>,
        position: i64,
    ) -> Result<Hashes, Stop> {
        let index = &self.state.index;
        if !self.asked.index || position < index.end_position() {
            return Ok(Hashes::none());
        }
        let queue = handle.and_then(|handle| self.state.queues.get_mut(handle)?.as_deref_mut());
        let mut hashes = index_hashes(queue, record, found);
        let count = index.count_of(position);
        if count > 0 {
            hashes = hashes.without_first(count);
        }
        if hashes.len() as u64 > index.room() {
            return Err(Stop::Status(NO_INDEX_ROOM));
        }
        for &hash in hashes.iter() {
            index.prefetch(hash);
        }
        Ok(hashes)
    }

    #[inline]
    fn add_to_queue(
        &mut self,
        record: &Record<'_>,
        found: &Properties<'_>,
        handle: Option<usize>,
        position: i64,
    ) -> Result<(), Stop> {
        let known = handle.and_then(|handle| self.state.queues.get(handle)?.as_ref());
        let kind = known.map_or_else(|| kind_of(record, found), |queue| queue.kind);
        let (offset, count) = match kind {
            Kind::Simple => (record.queue_offset, 1),
            Kind::Batch => match found.inner_range() {
                Some(range) => range,
                // RocketMQ's batch queues pass over such a record.
                None => return Ok(()),
            },
        };
        if offset < 0 || offset.checked_add(count).is_none() || record.topic.is_empty() {
            return Err(Stop::Damage(position, "offset or topic make no sense"));
        }
        let handle = match handle {
            Some(handle) => self.make_way(handle, offset, position)?,
            None => {
                let first_unit = if kind == Kind::Simple { offset } else { 0 };
                self.state
                    .add_queue(record.topic, record.queue_id, kind, (offset, first_unit))
                    .map_err(|_| Stop::Damage(position, "the topic makes no queue"))?
            }
        };
        let suffix = self.asked.special_suffix;
        let is_special_topic = !suffix.is_empty() && record.topic.ends_with(suffix);
        if let Some(Some(queue)) = self.state.queues.get_mut(handle) {
            let is_new_epoch = queue.epoch != record.leader_epoch();
            if is_special_topic || is_new_epoch || found.has_producer() {
                self.specials.push((position, handle as i64));
            }
            queue.add_record(record, found, position);
        }
        self.state.list(handle);
        Ok(())
    }

    /// Let `offset` be the next one of a queue.
    #[inline]
    fn make_way(&mut self, handle: usize, offset: i64, position: i64) -> Result<usize, Stop> {
        let Some(Some(queue)) = self.state.queues.get_mut(handle) else {
            return Ok(handle);
        };
        let gap = offset - queue.next_offset;
        if gap > GAP_MAX {
            self.specials.push((position, handle as i64));
            return Err(Stop::Status(LEAP));
        }
        if gap > 0 && queue.kind == Kind::Simple {
            queue.push_pre_blanks(offset);
        }
        if gap < 0 && queue.kind == Kind::Batch {
            self.specials.push((position, handle as i64));
            return Err(Stop::Status(TRUNCATE_BATCH_QUEUE));
        }
        if gap < 0 {
            queue.truncate(offset, (queue.next_unit + gap).max(0));
        }
        Ok(handle)
    }
}

fn kind_of(record: &Record<'_>, found: &Properties<'_>) -> Kind {
    if record.sys_flag & INNER_BATCH != 0 || found.inner_range().is_some() {
        Kind::Batch
    } else {
        Kind::Simple
    }
}

/// The index up to which a log is looked at.
pub fn limit(log: &[u8], base: i64, end: i64) -> usize {
    usize::try_from(end.saturating_sub(base)).unwrap_or(0).min(log.len())
}
