//! Appends of several groups under one hold of the log: all of them, or none.
//!
//! Nothing is changed before the last check of the last group has passed.

use crate::append::{tail, Stamp};
use crate::append_path::Group;
use crate::encode::{Plan, Tail};
use crate::message::Message;
use crate::queue::Kind;
use crate::state::{find_queue, State};

/// A group that fits: its plans, its first offset, its bytes, and the epoch of its records.
struct Planned {
    plans: Vec<Plan>,
    first: i64,
    size: u64,
    epoch: i64,
}

impl Planned {
    /// The same properties as of a group that is appended alone.
    fn tail<'a>(&self, row: usize, message: &Message<'_>) -> Tail<'a> {
        let mut found = tail(message, Kind::Simple, self.first + row as i64);
        found.group = (row == 0 && self.plans.len() != 1).then_some(self.size);
        found
    }
}

impl State {
    /// Append groups to different queues that are simple and not synced; return the first offset of
    /// each. `None`: nothing was written, because an append alone could be refused, or needs more
    /// than the appender.
    pub fn append_groups(&mut self, groups: &[Group<'_>], now_ms: i64) -> Option<Vec<i64>> {
        let planned = self.plan_groups(groups)?;
        let stamp = self.stamp(Stamp { now_ms, epoch: 0 });
        for (group, planned) in groups.iter().zip(&planned) {
            let stamp = Stamp { epoch: planned.epoch, ..stamp };
            let mut target = self.target(group.handle)?;
            for (row, (message, plan)) in group.messages.iter().zip(&planned.plans).enumerate() {
                target.write(message, plan, &planned.tail(row, message), stamp);
            }
            self.list_appended(group.handle as usize, planned.first);
        }
        Some(planned.iter().map(|planned| planned.first).collect())
    }

    fn plan_groups(&self, groups: &[Group<'_>]) -> Option<Vec<Planned>> {
        if !self.is_accepting || self.log.is_none() {
            return None;
        }
        let mut all = Vec::with_capacity(groups.len());
        let (mut size, mut entries) = (0, 0);
        for group in groups {
            let planned = self.plan_group(group)?;
            size += planned.size;
            entries += group.messages.iter().map(Plan::index_count).sum::<usize>();
            all.push(planned);
        }
        let queue = find_queue(&self.queues, groups.first()?.handle).ok()?;
        let has_room = self.has_room(queue, "group", size).ok()?;
        (has_room && entries as u64 <= self.index.room()).then_some(all)
    }

    fn plan_group(&self, group: &Group<'_>) -> Option<Planned> {
        let queue = find_queue(&self.queues, group.handle).ok()?;
        let admission = queue.admission;
        if queue.kind != Kind::Simple || !admission.is_open || admission.is_sync {
            return None;
        }
        let count = group.messages.len();
        let plans = Vec::with_capacity(count);
        let mut planned =
            Planned { plans, first: queue.next_offset, size: 0, epoch: admission.epoch };
        for (row, message) in group.messages.iter().enumerate() {
            let mut tail = tail(message, Kind::Simple, planned.first + row as i64);
            tail.group = (row == 0 && count > 1).then_some(0);
            let plan = Plan::of_message(message, queue, &tail, &self.reserved).ok()?;
            if plan.size as u64 > self.max_record_size {
                return None;
            }
            planned.size += plan.size as u64;
            planned.plans.push(plan);
        }
        (count > 0).then_some(planned)
    }
}
