//! What an appender knows: the log being written, the queues, the key index. No Python in here.
//!
//! All of it is guarded by one mutex. No reader sees a queue's new end before the whole group of
//! records is in the log, because both change under that mutex.

use std::collections::HashMap;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::time::{SystemTime, UNIX_EPOCH};

use crate::bytes::View;
use crate::encode::Hosts;
use crate::errors::{Refusal, TooLarge};
use crate::index::KeyIndex;
use crate::python::Reserved;
use crate::queue::{Kind, Queue};
use crate::record::{BLANK_SIZE, MAGIC_BLANK};

/// The answers of an append that wrote nothing.
pub const NO_ROOM_IN_LOG: i64 = -1;
pub const NO_ROOM_IN_INDEX: i64 = -2;
pub const UNKNOWN_SHARD: i64 = -3;
pub const NOT_ADMITTED: i64 = -4;
pub const BUSY: i64 = -5;
pub const TOO_LARGE: i64 = -6;

pub struct LogFile {
    pub view: View,
    pub base: i64,
    /// The file itself, by a descriptor of our own, which stays open while it is synced.
    pub device: Option<Arc<OwnedFd>>,
}

impl LogFile {
    fn end(&self) -> i64 {
        self.base + self.view.size() as i64
    }
}

pub struct State {
    pub hosts: Hosts,
    pub reserved: Arc<Reserved>,
    pub max_record_size: u64,
    pub log: Option<LogFile>,
    /// Position after the last record.
    pub end: i64,
    pub last_store_ms: i64,
    /// Appends are not refused at the moment.
    pub is_accepting: bool,
    /// The log is on the device up to here.
    pub durable: i64,
    pub queues: Vec<Option<Box<Queue>>>,
    /// Handles by queue id and topic, in one key.
    handles: HashMap<Vec<u8>, usize>,
    /// A key to look for, kept so that a look-up allocates nothing.
    name: Vec<u8>,
    last_handle: usize,
    holding: Vec<usize>,
    pub index: KeyIndex,
}

impl State {
    pub fn new(hosts: Hosts, reserved: Arc<Reserved>, max_record_size: u64) -> Self {
        Self {
            hosts,
            reserved,
            max_record_size,
            log: None,
            end: 0,
            last_store_ms: 0,
            is_accepting: true,
            durable: 0,
            queues: Vec::new(),
            handles: HashMap::new(),
            name: Vec::new(),
            last_handle: 0,
            holding: Vec::new(),
            index: KeyIndex::default(),
        }
    }

    // ------------------------------------------------------------------------------- the log

    /// Write to `view` from `start` on; returns the buffer that was attached before.
    pub fn attach_log(
        &mut self,
        view: View,
        base: i64,
        start: i64,
    ) -> Result<Option<LogFile>, Refusal> {
        let size = i32::try_from(view.size())
            .map_err(|_| Refusal::bad("a log file has less than 2 GiB"))?;
        let end = base.checked_add(size.into()).filter(|_| base >= 0);
        if !end.is_some_and(|end| (base..=end).contains(&start)) {
            return Err(Refusal::bad("start is outside the log file"));
        }
        self.end = start;
        Ok(self.log.replace(LogFile { view, base, device: None }))
    }

    /// Mark the rest of the file as unused.
    pub fn finish_log(&mut self) -> Result<(), Refusal> {
        let Some(log) = &mut self.log else {
            return Err(Refusal::bad("no log file is attached"));
        };
        let end = log.end();
        let rest = (self.end - log.base) as usize;
        if let Some(blank) = log.view.bytes_mut().get_mut(rest..) {
            if blank.len() >= BLANK_SIZE {
                let size = blank.len() as u32;
                blank[..4].copy_from_slice(&size.to_be_bytes());
                blank[4..BLANK_SIZE].copy_from_slice(&MAGIC_BLANK.to_be_bytes());
            }
        }
        self.end = end;
        Ok(())
    }

    /// Whether records of `size` bytes fit, with the 8 bytes that stay free for a blank. Refuses
    /// what would not fit into an empty file either.
    pub fn has_room(&self, queue: &Queue, what: &'static str, size: u64) -> Result<bool, Refusal> {
        let Some(log) = &self.log else {
            return Ok(false);
        };
        let size_max = (log.view.size() as u64).saturating_sub(BLANK_SIZE as u64);
        if size > size_max {
            return Err(too_large(queue, what, size, size_max));
        }
        Ok(self.end as u64 + size + BLANK_SIZE as u64 <= log.end() as u64)
    }

    /// The bytes of the log for `size` bytes of records after the last one.
    #[inline]
    pub fn log_space(log: &mut Option<LogFile>, position: i64, size: usize) -> &mut [u8] {
        let Some(log) = log else {
            return &mut [];
        };
        let start = (position - log.base) as usize;
        log.view.bytes_mut().get_mut(start..start + size).unwrap_or(&mut [])
    }

    // ----------------------------------------------------------------------------- the queues

    pub fn add_queue(
        &mut self,
        topic: &[u8],
        queue_id: i32,
        kind: Kind,
        (next_offset, next_unit): (i64, i64),
    ) -> Result<usize, Refusal> {
        if next_offset < 0 || next_unit < 0 {
            return Err(Refusal::bad("a queue starts at offset and unit 0 or later"));
        }
        self.set_name(topic, queue_id);
        if self.handles.contains_key(&self.name) {
            let topic = String::from_utf8_lossy(topic);
            return Err(Refusal::Exists(format!("shard '{topic}_{queue_id}' has a queue")));
        }
        let mut queue = Queue::new(topic, queue_id, kind, &self.hosts)?;
        (queue.next_offset, queue.next_unit) = (next_offset, next_unit);
        let handle = self.queues.len();
        self.queues.push(Some(Box::new(queue)));
        self.handles.insert(self.name.clone(), handle);
        Ok(handle)
    }

    #[inline]
    fn set_name(&mut self, topic: &[u8], queue_id: i32) {
        self.name.clear();
        self.name.extend_from_slice(&queue_id.to_be_bytes());
        self.name.extend_from_slice(topic);
    }

    pub fn remove_queue(&mut self, handle: i64) -> Result<(), Refusal> {
        find_queue(&self.queues, handle)?;
        if let Some(queue) = self.queues[handle as usize].take() {
            self.set_name(&queue.topic, queue.queue_id);
            self.handles.remove(&self.name);
        }
        Ok(())
    }

    #[inline]
    pub fn queue(&mut self, handle: i64) -> Result<&mut Queue, Refusal> {
        let at = usize::try_from(handle).unwrap_or(usize::MAX);
        match self.queues.get_mut(at) {
            Some(Some(queue)) => Ok(queue),
            _ => Err(Refusal::bad(format!("no queue has the handle {handle}"))),
        }
    }

    /// The handle of a queue by its name. Scans meet the same queue many times in a row.
    #[inline]
    pub fn find_queue(&mut self, topic: &[u8], queue_id: i32) -> Option<usize> {
        if let Some(Some(queue)) = self.queues.get(self.last_handle) {
            if queue.queue_id == queue_id && queue.topic == topic {
                return Some(self.last_handle);
            }
        }
        self.set_name(topic, queue_id);
        self.last_handle = *self.handles.get(&self.name)?;
        Some(self.last_handle)
    }

    /// Note that a queue got records from `first` on, which are hidden until they are on the device
    /// if the queue promises that.
    #[inline]
    pub fn list_appended(&mut self, handle: usize, first: i64) {
        if let Some(Some(queue)) = self.queues.get_mut(handle) {
            if queue.admission.is_sync {
                queue.hide(first, self.end, self.durable);
            }
        }
        self.list(handle);
    }

    /// Note that a queue holds units, to be found by `holding`.
    #[inline]
    pub fn list(&mut self, handle: usize) {
        if let Some(Some(queue)) = self.queues.get_mut(handle) {
            if !queue.is_listed {
                queue.is_listed = true;
                self.holding.push(handle);
            }
        }
    }

    /// Handles of the queues that hold units, ascending.
    pub fn holding(&mut self) -> Vec<usize> {
        let queues = &mut self.queues;
        self.holding.retain(|&handle| match queues.get_mut(handle) {
            Some(Some(queue)) => {
                queue.is_listed = !queue.held().is_empty();
                queue.is_listed
            }
            _ => false,
        });
        self.holding.sort_unstable();
        self.holding.clone()
    }
}

#[inline]
pub fn find_queue(queues: &[Option<Box<Queue>>], handle: i64) -> Result<&Queue, Refusal> {
    match queues.get(usize::try_from(handle).unwrap_or(usize::MAX)) {
        Some(Some(queue)) => Ok(queue),
        _ => Err(Refusal::bad(format!("no queue has the handle {handle}"))),
    }
}

pub fn too_large(queue: &Queue, what: &'static str, size: u64, size_max: u64) -> Refusal {
    Refusal::TooLarge(Box::new(TooLarge {
        what,
        topic: queue.topic.clone(),
        queue_id: queue.queue_id,
        size,
        size_max,
    }))
}

/// The caller's clock, or the system's.
#[inline]
pub fn clock(now_ms: i64) -> i64 {
    if now_ms >= 0 {
        return now_ms;
    }
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    since.as_millis() as i64
}
