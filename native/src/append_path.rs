//! The way in for records that need nothing but the appender: one call from shard to offset.
//!
//! A writer that finds the log free appends immediately, attached to the interpreter; otherwise it
//! waits and appends without it, so that no thread ever holds the log while waiting for the
//! interpreter. Whatever needs more than the appender (a sealed shard, a full file) is left to
//! Python: the answer is then negative, and nothing was written. For single records, the most
//! frequent of all calls, Python is asked from here: one frame less for those who need it not.

use std::time::Duration;

use pyo3::prelude::*;
use pyo3::types::PyDict;

use crate::appender::{Appender, ATTACHED_SIZE_MAX};
use crate::errors::Refusal;
use crate::extract::{extract_record, int64, Many};
use crate::group_commit::GroupCommit;
use crate::message::Message;
use crate::state::{State, BUSY, NOT_ADMITTED, TOO_LARGE, UNKNOWN_SHARD};
use crate::write_lock::WriteLock;

/// What is copied while an event loop waits.
const TRY_SIZE_MAX: usize = 64 << 10;

#[pyclass(frozen, module = "penstock._native")]
pub struct AppendPath {
    appender: Py<Appender>,
    lock: Py<WriteLock>,
    group_commit: Py<GroupCommit>,
    sync: Py<PyAny>,
    handles: Py<PyDict>,
    now: Option<Py<PyAny>>,
    patience: Duration,
    otherwise: Py<PyAny>,
}

/// The offset, or why there is none, and the position up to which to wait for the device.
type Appended = Result<(i64, Option<i64>), Refusal>;

impl AppendPath {
    fn handle(&self, shard: &Bound<'_, PyAny>) -> PyResult<Option<i64>> {
        match self.handles.bind(shard.py()).get_item(shard)? {
            Some(handle) => int64(&handle, "handle").map(Some),
            None => Ok(None),
        }
    }

    fn now_ms(&self, py: Python<'_>) -> PyResult<i64> {
        match &self.now {
            Some(now) => int64(&now.bind(py).call0()?, "now_ms"),
            None => Ok(-1),
        }
    }

    #[inline]
    fn append_one(
        &self,
        py: Python<'_>,
        shard: &Bound<'_, PyAny>,
        record: &Bound<'_, PyAny>,
        size_max: Option<usize>,
        without_waiting: bool,
    ) -> PyResult<i64> {
        let Some(handle) = self.handle(shard)? else {
            return Ok(UNKNOWN_SHARD);
        };
        let now_ms = self.now_ms(py)?;
        let (message, _held) = extract_record(record)?;
        if size_max.is_some_and(|size_max| message.size() > size_max) {
            return Ok(TOO_LARGE);
        }
        let append = |state: &mut State| {
            if without_waiting && state.queue(handle)?.admission.is_sync {
                return Ok((NOT_ADMITTED, None));
            }
            state.admit(handle, now_ms, |state, stamp| state.append_one(handle, &message, stamp))
        };
        if without_waiting {
            return self.try_append_alone(py, append);
        }
        self.append_alone(py, message.payload_size(), append)
    }

    /// Append if no other thread does.
    fn try_append_alone(
        &self,
        py: Python<'_>,
        work: impl FnOnce(&mut State) -> Appended,
    ) -> PyResult<i64> {
        match self.try_alone(work)? {
            Some(done) => done.map(|(offset, _)| offset).map_err(|refusal| refusal.raise(py)),
            None => Ok(BUSY),
        }
    }

    /// Append if the lock is free, without acquiring it: a thread that acquires it meanwhile
    /// has to wait for the mutex before it reads anything of the log, and so finds this append done.
    #[inline]
    fn try_alone<R>(&self, work: impl FnOnce(&mut State) -> R) -> PyResult<Option<R>> {
        let lock = self.lock.get();
        let done = self.appender.get().try_with(|state| lock.is_free().then(|| work(state)))?;
        Ok(done.flatten())
    }

    /// Append as the only writer, then wait for the device if the shard is synced.
    #[inline]
    fn append_alone(
        &self,
        py: Python<'_>,
        size: usize,
        work: impl Fn(&mut State) -> Appended + Send + Sync,
    ) -> PyResult<i64> {
        let (lock, appender) = (self.lock.get(), self.appender.get());
        let mut done = None;
        if size <= ATTACHED_SIZE_MAX {
            done = self.try_alone(&work)?;
        }
        let done = match done {
            Some(done) => done,
            None => {
                let patience = self.patience;
                py.detach(|| match lock.hold(patience) {
                    Some(_held) => appender.blocking(&work),
                    None => Some(Ok((BUSY, None))),
                })
                .ok_or_else(crate::errors::poisoned)?
            }
        };
        let (offset, position) = done.map_err(|refusal| refusal.raise(py))?;
        if let Some(position) = position {
            self.group_commit.get().wait_for(position, self.sync.bind(py))?;
        }
        Ok(offset)
    }
}

/// Messages for one queue, in the order of their offsets.
pub struct Group<'a> {
    pub handle: i64,
    pub messages: Vec<Message<'a>>,
}

impl AppendPath {
    /// The queue of a shard, by its id.
    pub fn find_handle(&self, shard: &Bound<'_, PyAny>) -> PyResult<Option<i64>> {
        self.handle(shard)
    }

    /// Append groups to several queues without waiting for the device, all of them or none. `None`:
    /// nothing was written, because something else than the appender is needed.
    pub fn append_groups(
        &self,
        py: Python<'_>,
        groups: &[Group<'_>],
    ) -> PyResult<Option<Vec<i64>>> {
        let now_ms = self.now_ms(py)?;
        let work = |state: &mut State| state.append_groups(groups, now_ms);
        if let Some(done) = self.try_alone(work)? {
            return Ok(done);
        }
        let (lock, appender, patience) = (self.lock.get(), self.appender.get(), self.patience);
        py.detach(|| match lock.hold(patience) {
            Some(_held) => appender.blocking(work),
            None => Some(None),
        })
        .ok_or_else(crate::errors::poisoned)
    }
}

#[pymethods]
impl AppendPath {
    #[new]
    #[allow(clippy::too_many_arguments)]
    fn new(
        appender: Py<Appender>,
        lock: Py<WriteLock>,
        group_commit: Py<GroupCommit>,
        sync: Py<PyAny>,
        handles: Py<PyDict>,
        now: Option<Py<PyAny>>,
        patience_s: f64,
        otherwise: Py<PyAny>,
    ) -> Self {
        let patience = Duration::try_from_secs_f64(patience_s.max(0.0)).unwrap_or(Duration::MAX);
        Self { appender, lock, group_commit, sync, handles, now, patience, otherwise }
    }

    #[pyo3(signature = (shard, record, size_max=None))]
    fn append(
        &self,
        py: Python<'_>,
        shard: &Bound<'_, PyAny>,
        record: &Bound<'_, PyAny>,
        size_max: Option<usize>,
    ) -> PyResult<i64> {
        let offset = self.append_one(py, shard, record, size_max, false)?;
        if offset >= 0 {
            return Ok(offset);
        }
        self.otherwise.bind(py).call1((shard, record, size_max, offset))?.extract()
    }

    fn try_append(
        &self,
        py: Python<'_>,
        shard: &Bound<'_, PyAny>,
        record: &Bound<'_, PyAny>,
        size_max: usize,
    ) -> PyResult<i64> {
        self.append_one(py, shard, record, Some(size_max.min(TRY_SIZE_MAX)), true)
    }

    #[pyo3(signature = (shard, records, size_max=None))]
    fn append_many(
        &self,
        py: Python<'_>,
        shard: &Bound<'_, PyAny>,
        records: &Bound<'_, PyAny>,
        size_max: Option<usize>,
    ) -> PyResult<i64> {
        let Some(handle) = self.handle(shard)? else {
            return Ok(UNKNOWN_SHARD);
        };
        let now_ms = self.now_ms(py)?;
        let many = Many::new(records)?;
        let messages = &many.messages[..];
        let is_too_large = |size_max| messages.iter().any(|message| message.size() > size_max);
        if size_max.is_some_and(is_too_large) {
            return Ok(TOO_LARGE);
        }
        let size = messages.iter().map(Message::payload_size).sum();
        self.append_alone(py, size, |state| {
            state.admit(handle, now_ms, |state, stamp| {
                state.append_group(handle, messages, stamp, None, None)
            })
        })
    }
}

impl State {
    /// Run an append if log and queue admit it.
    #[inline]
    fn admit(
        &mut self,
        handle: i64,
        now_ms: i64,
        append: impl FnOnce(&mut Self, crate::append::Stamp) -> Result<i64, Refusal>,
    ) -> Appended {
        let is_accepting = self.is_accepting;
        let admission = self.queue(handle)?.admission;
        if !is_accepting || !admission.is_open {
            return Ok((NOT_ADMITTED, None));
        }
        let offset = append(self, crate::append::Stamp { now_ms, epoch: admission.epoch })?;
        Ok((offset, (admission.is_sync && offset >= 0).then_some(self.end)))
    }
}
