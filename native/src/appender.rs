//! The class `Appender`: the state under a mutex, and Python at its edge.
//!
//! Two rules keep it from dead-locking: no thread waits for the mutex while attached to the
//! interpreter, and nothing is done in Python while the mutex is held.

#[cfg(target_os = "linux")]
use std::os::fd::BorrowedFd;
use std::sync::{Arc, Mutex, TryLockError};

use pyo3::prelude::*;
use pyo3::types::{PyBytes, PyTuple};

use crate::append::{Batch, Stamp};
use crate::bytes::View;
use crate::encode::Hosts;
use crate::errors::{poisoned, Refusal};
use crate::extract::{
    extract_producer, extract_record, extract_tag_header, int64, Bound64, Columns, Many,
};
use crate::message::Message;
use crate::python::{damage_or_none, text, Encoded, Reserved};
use crate::queue::{Admission, Kind, GAP_MAX};
use crate::replay::{replay, Request};
use crate::state::State;

/// Work on more bytes than this is done without the interpreter.
pub const ATTACHED_SIZE_MAX: usize = 4096;

#[pyclass(frozen, module = "penstock._native")]
pub struct Appender {
    state: Mutex<State>,
}

type QueueRow<'py> = (usize, Bound<'py, PyAny>, i32, i64, i64, i64);

impl Appender {
    /// Do something under the mutex; wait for it, if need be, without the interpreter.
    #[inline]
    fn with<R: Send>(
        &self,
        py: Python<'_>,
        work: impl FnOnce(&mut State) -> R + Send,
    ) -> PyResult<R> {
        match self.state.try_lock() {
            Ok(mut state) => Ok(work(&mut state)),
            Err(TryLockError::WouldBlock) => self.detached(py, work),
            Err(TryLockError::Poisoned(_)) => Err(poisoned()),
        }
    }

    /// Do something long under the mutex, without the interpreter.
    fn detached<R: Send>(
        &self,
        py: Python<'_>,
        work: impl FnOnce(&mut State) -> R + Send,
    ) -> PyResult<R> {
        py.detach(|| self.blocking(work)).ok_or_else(poisoned)
    }

    /// Do something under the mutex if no other thread has it; attached to the interpreter or not.
    #[inline]
    pub fn try_with<R>(&self, work: impl FnOnce(&mut State) -> R) -> PyResult<Option<R>> {
        match self.state.try_lock() {
            Ok(mut state) => Ok(Some(work(&mut state))),
            Err(TryLockError::WouldBlock) => Ok(None),
            Err(TryLockError::Poisoned(_)) => Err(poisoned()),
        }
    }

    /// Do something under the mutex; only without the interpreter. None after a panic.
    pub fn blocking<R>(&self, work: impl FnOnce(&mut State) -> R) -> Option<R> {
        self.state.lock().ok().map(|mut state| work(&mut state))
    }

    /// Do something that may be refused.
    #[inline]
    fn ask<R: Send>(
        &self,
        py: Python<'_>,
        work: impl FnOnce(&mut State) -> Result<R, Refusal> + Send,
    ) -> PyResult<R> {
        self.with(py, work)?.map_err(|refusal| refusal.raise(py))
    }
}

#[pymethods]
impl Appender {
    #[new]
    fn new(
        py: Python<'_>,
        store_host: &[u8],
        born_host: &[u8],
        max_record_size: u64,
    ) -> PyResult<Self> {
        for (name, host) in [("store_host", store_host), ("born_host", born_host)] {
            if host.len() != 8 && host.len() != 20 {
                let message = format!("{name} has 8 bytes (IPv4) or 20 (IPv6)");
                return Err(Refusal::bad(message).raise(py));
            }
        }
        let hosts = Hosts { born: born_host.to_vec(), store: store_host.to_vec() };
        let reserved = Arc::new(Reserved::load(py)?);
        Ok(Self { state: Mutex::new(State::new(hosts, reserved, max_record_size)) })
    }

    // ---------------------------------------------------------------------------- the log

    fn attach_log(
        &self,
        py: Python<'_>,
        log: &Bound<'_, PyAny>,
        base: i64,
        start: i64,
    ) -> PyResult<()> {
        let view = View::writable(log)?;
        let replaced = self.ask(py, |state| state.attach_log(view, base, start))?;
        drop(replaced);
        Ok(())
    }

    #[cfg(target_os = "linux")]
    fn attach_device(&self, py: Python<'_>, descriptor: i32) -> PyResult<()> {
        // SAFETY: the caller holds the file open during this call.
        let device = unsafe { BorrowedFd::borrow_raw(descriptor) }.try_clone_to_owned()?;
        self.with(py, |state| {
            if let Some(log) = &mut state.log {
                log.device = Some(Arc::new(device));
            }
        })
    }

    /// Only Linux reaches the device with fdatasync.
    #[cfg(not(target_os = "linux"))]
    fn attach_device(&self, _descriptor: i32) {}

    fn finish_log(&self, py: Python<'_>) -> PyResult<()> {
        self.ask(py, State::finish_log)
    }

    fn detach_log(&self, py: Python<'_>) -> PyResult<()> {
        let log = self.with(py, |state| state.log.take())?;
        drop(log);
        Ok(())
    }

    #[getter]
    fn end(&self, py: Python<'_>) -> PyResult<i64> {
        self.with(py, |state| state.end)
    }

    #[getter]
    fn last_store_timestamp_ms(&self, py: Python<'_>) -> PyResult<i64> {
        self.with(py, |state| state.last_store_ms)
    }

    #[setter]
    fn set_last_store_timestamp_ms(&self, py: Python<'_>, value: i64) -> PyResult<()> {
        self.with(py, |state| state.last_store_ms = value)
    }

    #[getter]
    fn accepting(&self, py: Python<'_>) -> PyResult<bool> {
        self.with(py, |state| state.is_accepting)
    }

    #[setter]
    fn set_accepting(&self, py: Python<'_>, value: bool) -> PyResult<()> {
        self.with(py, |state| state.is_accepting = value)
    }

    #[getter]
    fn durable(&self, py: Python<'_>) -> PyResult<i64> {
        self.with(py, |state| state.durable)
    }

    #[setter]
    fn set_durable(&self, py: Python<'_>, value: i64) -> PyResult<()> {
        self.with(py, |state| state.durable = value)
    }

    // -------------------------------------------------------------------------- the queues

    fn add_queue(
        &self,
        py: Python<'_>,
        topic: &Bound<'_, PyAny>,
        queue_id: i32,
        kind: i64,
        next_offset: i64,
        next_unit: i64,
    ) -> PyResult<usize> {
        let topic = Encoded::new(topic, "topic")?;
        let kind = match kind {
            0 => Kind::Simple,
            1 => Kind::Batch,
            _ => return Err(Refusal::bad(format!("{kind} is not a kind of queue")).raise(py)),
        };
        let (name, next) = (topic.bytes(), (next_offset, next_unit));
        self.ask(py, |state| state.add_queue(name, queue_id, kind, next))
    }

    fn remove_queue(&self, py: Python<'_>, handle: i64) -> PyResult<()> {
        self.ask(py, |state| state.remove_queue(handle))
    }

    fn queues<'py>(&self, py: Python<'py>) -> PyResult<Vec<QueueRow<'py>>> {
        let rows = self.with(py, |state| {
            let queues = state.queues.iter().enumerate();
            let known = queues.filter_map(|(handle, queue)| Some((handle, queue.as_ref()?)));
            known
                .map(|(handle, queue)| {
                    let kind = i32::from(queue.kind == Kind::Batch);
                    let ids = (handle, queue.queue_id, kind);
                    (queue.topic.clone(), ids, queue.next_offset, queue.next_unit)
                })
                .collect::<Vec<_>>()
        })?;
        rows.into_iter()
            .map(|(topic, (handle, queue_id, kind), next_offset, next_unit)| {
                let row =
                    (handle, text(py, &topic)?, queue_id, kind.into(), next_offset, next_unit);
                Ok(row)
            })
            .collect()
    }

    fn next_offsets<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyBytes>> {
        let offsets: Vec<u8> = self.with(py, |state| {
            let ends = state.queues.iter().map(|queue| queue.as_ref().map_or(0, |q| q.next_offset));
            ends.flat_map(i64::to_ne_bytes).collect()
        })?;
        Ok(PyBytes::new(py, &offsets))
    }

    fn shown_offsets<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyBytes>> {
        let offsets: Vec<u8> = self.with(py, |state| {
            let durable = state.durable;
            let queues = state.queues.iter_mut();
            let shown = queues.map(|queue| queue.as_mut().map_or(0, |q| q.shown_offset(durable)));
            shown.flat_map(i64::to_ne_bytes).collect()
        })?;
        Ok(PyBytes::new(py, &offsets))
    }

    fn next_offset(&self, py: Python<'_>, handle: i64) -> PyResult<i64> {
        self.ask(py, |state| Ok(state.queue(handle)?.next_offset))
    }

    fn shown_offset(&self, py: Python<'_>, handle: i64) -> PyResult<i64> {
        self.ask(py, |state| {
            let durable = state.durable;
            Ok(state.queue(handle)?.shown_offset(durable))
        })
    }

    #[pyo3(signature = (handle, is_open, is_sync, epoch, is_following=false))]
    fn set_admission(
        &self,
        py: Python<'_>,
        handle: i64,
        is_open: bool,
        is_sync: bool,
        epoch: &Bound<'_, PyAny>,
        is_following: bool,
    ) -> PyResult<()> {
        let epoch = int64(epoch, "epoch")?;
        let admission = Admission { is_open, is_sync, epoch, is_following };
        self.ask(py, |state| {
            state.queue(handle)?.admission = admission;
            Ok(())
        })
    }

    fn next_unit(&self, py: Python<'_>, handle: i64) -> PyResult<i64> {
        self.ask(py, |state| Ok(state.queue(handle)?.next_unit))
    }

    fn dirty_queues(&self, py: Python<'_>) -> PyResult<Vec<usize>> {
        self.with(py, State::holding)
    }

    fn held_units(&self, py: Python<'_>, handle: i64) -> PyResult<(i64, usize)> {
        self.ask(py, |state| {
            let queue = state.queue(handle)?;
            Ok((queue.first_unit(), queue.held_count()))
        })
    }

    fn peek_units<'py>(
        &self,
        py: Python<'py>,
        handle: i64,
    ) -> PyResult<(i64, Bound<'py, PyBytes>)> {
        let (first, units) = self.ask(py, |state| {
            let queue = state.queue(handle)?;
            Ok((queue.first_unit(), queue.held().to_vec()))
        })?;
        Ok((first, PyBytes::new(py, &units)))
    }

    fn drop_units(&self, py: Python<'_>, handle: i64, until_unit: i64) -> PyResult<()> {
        self.ask(py, |state| {
            state.queue(handle)?.drop_units(until_unit);
            Ok(())
        })
    }

    fn read_units<'py>(
        &self,
        py: Python<'py>,
        handle: i64,
        unit: i64,
        count: i64,
    ) -> PyResult<Bound<'py, PyBytes>> {
        let units = self.ask(py, |state| Ok(state.queue(handle)?.units(unit, count).to_vec()))?;
        Ok(PyBytes::new(py, &units))
    }

    fn truncate_queue(
        &self,
        py: Python<'_>,
        handle: i64,
        next_offset: i64,
        next_unit: i64,
    ) -> PyResult<()> {
        self.ask(py, |state| {
            let queue = state.queue(handle)?;
            let is_back = (0..=queue.next_offset).contains(&next_offset)
                && (0..=queue.next_unit).contains(&next_unit);
            if !is_back {
                return Err(Refusal::bad(format!(
                    "shard '{}' cannot be truncated to offset {next_offset}, unit {next_unit}: \
                     it ends at offset {}, unit {}",
                    queue.shard(),
                    queue.next_offset,
                    queue.next_unit
                )));
            }
            queue.truncate(next_offset, next_unit);
            Ok(())
        })
    }

    fn restart_queue(
        &self,
        py: Python<'_>,
        handle: i64,
        next_offset: i64,
        next_unit: i64,
    ) -> PyResult<()> {
        self.ask(py, |state| {
            if next_offset < 0 || next_unit < 0 {
                return Err(Refusal::bad("a queue starts at offset and unit 0 or later"));
            }
            state.queue(handle)?.restart(next_offset, next_unit);
            Ok(())
        })
    }

    fn skip_offsets(&self, py: Python<'_>, handle: i64, until: i64) -> PyResult<()> {
        self.ask(py, |state| {
            let queue = state.queue(handle)?;
            if !(0..=GAP_MAX).contains(&until.saturating_sub(queue.next_offset)) {
                return Err(Refusal::bad(format!(
                    "shard '{}' ends at offset {}, it cannot go on at {until}",
                    queue.shard(),
                    queue.next_offset
                )));
            }
            queue.skip_to(until);
            state.list(usize::try_from(handle).unwrap_or(usize::MAX));
            Ok(())
        })
    }

    fn drain_times(&self, py: Python<'_>, handle: i64) -> PyResult<Vec<(i64, i64)>> {
        self.ask(py, |state| Ok(state.queue(handle)?.drain_blocks()))
    }

    fn block_max(&self, py: Python<'_>, handle: i64) -> PyResult<i64> {
        self.ask(py, |state| Ok(state.queue(handle)?.block_max))
    }

    fn set_block_max(&self, py: Python<'_>, handle: i64, timestamp_ms: i64) -> PyResult<()> {
        self.ask(py, |state| {
            state.queue(handle)?.block_max = timestamp_ms;
            Ok(())
        })
    }

    // ----------------------------------------------------------------------- the key index

    fn attach_index(
        &self,
        py: Python<'_>,
        index: &Bound<'_, PyAny>,
        slots: i64,
        entries_max: i64,
    ) -> PyResult<()> {
        let view = View::writable(index)?;
        self.ask(py, |state| state.index.attach(view, slots, entries_max))
    }

    fn release_index(&self, py: Python<'_>) -> PyResult<()> {
        match self.with(py, |state| state.index.release())? {
            Some(view) => {
                drop(view);
                Ok(())
            }
            None => Err(Refusal::bad("no index file is attached").raise(py)),
        }
    }

    fn set_index_end(&self, py: Python<'_>, position: i64, count: usize) -> PyResult<()> {
        self.with(py, |state| state.index.set_last(position, count))
    }

    #[getter]
    fn index_attached(&self, py: Python<'_>) -> PyResult<usize> {
        self.with(py, |state| state.index.attached())
    }

    #[getter]
    fn index_full(&self, py: Python<'_>) -> PyResult<usize> {
        self.with(py, |state| state.index.full())
    }

    #[getter]
    fn index_room(&self, py: Python<'_>) -> PyResult<u64> {
        self.with(py, |state| state.index.room())
    }

    // --------------------------------------------------------------------------- appending

    fn append(
        &self,
        py: Python<'_>,
        handle: i64,
        record: &Bound<'_, PyAny>,
        now_ms: i64,
        epoch: &Bound<'_, PyAny>,
    ) -> PyResult<i64> {
        let stamp = Stamp { now_ms, epoch: int64(epoch, "epoch")? };
        let (message, _held) = extract_record(record)?;
        let work = |state: &mut State| state.append_one(handle, &message, stamp);
        let done = if message.payload_size() > ATTACHED_SIZE_MAX {
            self.detached(py, work)
        } else {
            self.with(py, work)
        };
        done?.map_err(|refusal| refusal.raise(py))
    }

    #[allow(clippy::too_many_arguments)]
    #[pyo3(signature = (handle, records, now_ms, epoch, producer, transaction=None))]
    fn append_many(
        &self,
        py: Python<'_>,
        handle: i64,
        records: &Bound<'_, PyAny>,
        now_ms: i64,
        epoch: &Bound<'_, PyAny>,
        producer: &Bound<'_, PyAny>,
        transaction: Option<&Bound<'_, PyAny>>,
    ) -> PyResult<i64> {
        let stamp = Stamp { now_ms, epoch: int64(epoch, "epoch")? };
        let producer = extract_producer(producer)?;
        let transaction = match transaction {
            Some(text) => extract_producer(text)?,
            None => None,
        };
        let many = Many::new(records)?;
        let producer = producer.as_ref().map(Encoded::bytes);
        let transaction = transaction.as_ref().map(Encoded::bytes);
        let messages = &many.messages[..];
        let work =
            |state: &mut State| state.append_group(handle, messages, stamp, producer, transaction);
        let size: usize = messages.iter().map(Message::payload_size).sum();
        let done =
            if size > ATTACHED_SIZE_MAX { self.detached(py, work) } else { self.with(py, work) };
        done?.map_err(|refusal| refusal.raise(py))
    }

    #[allow(clippy::too_many_arguments)]
    fn append_columns(
        &self,
        py: Python<'_>,
        handle: i64,
        count: i64,
        values: &Bound<'_, PyAny>,
        keys: &Bound<'_, PyAny>,
        tags: &Bound<'_, PyAny>,
        timestamps: &Bound<'_, PyAny>,
        now_ms: i64,
        epoch: &Bound<'_, PyAny>,
        producer: &Bound<'_, PyAny>,
    ) -> PyResult<i64> {
        let stamp = Stamp { now_ms, epoch: int64(epoch, "epoch")? };
        let producer = extract_producer(producer)?;
        let columns = Columns::new(count, values, keys, tags, timestamps)?;
        let producer = producer.as_ref().map(Encoded::bytes);
        let done = py.detach(|| {
            let messages = match columns.messages() {
                Ok(messages) => messages,
                Err(refusal) => return Some(Err(refusal)),
            };
            let mut state = self.state.lock().ok()?;
            Some(state.append_group(handle, &messages, stamp, producer, None))
        });
        done.ok_or_else(poisoned)?.map_err(|refusal| refusal.raise(py))
    }

    #[allow(clippy::too_many_arguments)]
    #[pyo3(signature = (
        handle, body, count, now_ms, epoch, born_ms, producer, kafka, tag_header=None
    ))]
    fn append_batch(
        &self,
        py: Python<'_>,
        handle: i64,
        body: &Bound<'_, PyAny>,
        count: i64,
        now_ms: i64,
        epoch: &Bound<'_, PyAny>,
        born_ms: &Bound<'_, PyAny>,
        producer: &Bound<'_, PyAny>,
        kafka: bool,
        tag_header: Option<&Bound<'_, PyAny>>,
    ) -> PyResult<i64> {
        let stamp = Stamp { now_ms, epoch: int64(epoch, "epoch")? };
        let producer = extract_producer(producer)?;
        let tag_header = extract_tag_header(tag_header)?;
        let body = View::readable(body)?;
        let batch = Batch {
            body: body.bytes(),
            count,
            born_ms: int64(born_ms, "born_ms")?,
            producer: producer.as_ref().map(Encoded::bytes),
            is_kafka: kafka,
            tag_header: tag_header.as_ref().map(Encoded::bytes),
        };
        let work = |state: &mut State| state.append_batch(handle, &batch, stamp);
        let done = if batch.body.len() > ATTACHED_SIZE_MAX {
            self.detached(py, work)
        } else {
            self.with(py, work)
        };
        done?.map_err(|refusal| refusal.raise(py))
    }

    #[pyo3(signature = (handle, data, strict=false))]
    fn append_encoded(
        &self,
        py: Python<'_>,
        handle: i64,
        data: &Bound<'_, PyAny>,
        strict: bool,
    ) -> PyResult<i64> {
        let view = View::readable(data)?;
        // What is verified must be what is written: a buffer that could change is copied first.
        let copy = (!data.is_instance_of::<PyBytes>()).then(|| view.bytes().to_vec());
        let bytes = copy.as_deref().unwrap_or(view.bytes());
        let work = |state: &mut State| state.append_encoded(handle, bytes, strict);
        self.detached(py, work)?.map_err(|refusal| refusal.raise(py))
    }

    #[allow(clippy::too_many_arguments)]
    #[pyo3(signature = (
        log, base, start, end, index, special_topic_suffix, groups=true, strict=false
    ))]
    fn replay<'py>(
        &self,
        py: Python<'py>,
        log: &Bound<'_, PyAny>,
        base: i64,
        start: i64,
        end: Bound64,
        index: bool,
        special_topic_suffix: &Bound<'_, PyAny>,
        groups: bool,
        strict: bool,
    ) -> PyResult<Bound<'py, PyTuple>> {
        let view = View::readable(log)?;
        let suffix = Encoded::new(special_topic_suffix, "special_topic_suffix")?;
        let request = Request {
            log: view.bytes(),
            base,
            start,
            end: end.0,
            index,
            special_suffix: suffix.bytes(),
            groups,
            strict,
        };
        let done = self.detached(py, |state| replay(state, &request))?;
        let damage = damage_or_none(py, done.damage)?;
        (done.position, done.records, done.status, damage, done.specials).into_pyobject(py)
    }
}
