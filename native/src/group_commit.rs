//! Group commit: one writer syncs the log for all writers that wait for the device.
//!
//!     writer A ──▶ leads: syncs what is there ──▶ done
//!     writer B ──────▶ waits ····················▶ leads: syncs for B, C and D ──▶ done
//!     writers C, D ─────────▶ wait ·················································▶ done
//!
//! Writers wait without the interpreter. The leader of a sync hands the lead to the writer that has
//! waited longest, and wakes the first of the writers that the sync covered; each of these wakes the
//! next one as soon as it runs. If the leader woke all of them, they would queue up for the
//! interpreter, at the price of one more context switch each; if each waited for the interpreter
//! first, the next processor would be idle meanwhile.
//!
//! A log whose file has a descriptor of the operating system is synced right here: from one sync to
//! the next, no thread needs the interpreter, for which the woken writers compete. Everything else
//! (a large amount of data, a log that continues in another file, a disk of a test, a log that
//! failed) is left to `sync`.
//!
//! When a writer waits at the end of such a sync, a dedicated thread (`sync_thread`) leads the next
//! syncs until no writer waits: it is ready when a sync ends, whereas a writer has to be woken to
//! lead, and then competes with the other writers for a processor when the device answers. A writer
//! that is alone syncs by itself: to ask another thread would cost more.

use std::collections::VecDeque;
use std::io::{Error, ErrorKind};
use std::os::fd::{AsRawFd, OwnedFd};
use std::sync::atomic::{AtomicBool, AtomicI64, AtomicU8, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::thread::{current, park, Thread};
use std::time::{Duration, Instant};

use pyo3::prelude::*;

use crate::appender::Appender;
use crate::sync_thread::SyncThread;

const WAITS: u8 = 0;
const COVERED: u8 = 1;
const LEADS: u8 = 2;

/// More than this (a large batch, or many) is left to Python, which prepares the pages for it.
const SYNCED_SIZE_MAX: i64 = 1 << 20;

/// How often a sequence of syncs is reported to Python: a call for each sync would take, by estimate,
/// a fifth of the interpreter's time.
const REPORT_INTERVAL: Duration = Duration::from_millis(2);

struct Waiter {
    position: i64,
    thread: Thread,
    signal: AtomicU8,
}

impl Waiter {
    fn wake(&self, signal: u8) {
        self.signal.store(signal, Ordering::Release);
        self.thread.unpark();
    }

    /// Wait for a signal; only without the interpreter.
    fn wait(&self) -> u8 {
        loop {
            let signal = self.signal.load(Ordering::Acquire);
            if signal != WAITS {
                return signal;
            }
            park();
        }
    }
}

#[derive(Default)]
struct CommitQueue {
    is_led: bool,
    waiting: VecDeque<Arc<Waiter>>,
    /// Covered by a sync; each wakes the next one.
    covered: VecDeque<Arc<Waiter>>,
    unreported: Unreported,
    /// The error of the thread that syncs, for the writer that leads now.
    failure: Option<Error>,
}

impl CommitQueue {
    /// What is to be reported to Python now: everything when no other thread will report it.
    fn drain_due(&mut self) -> Option<Unreported> {
        let unreported = &self.unreported;
        let is_last = !self.is_led && self.covered.is_empty();
        let is_due =
            is_last || unreported.since.is_some_and(|since| since.elapsed() >= REPORT_INTERVAL);
        (is_due && !unreported.seconds.is_empty()).then(|| std::mem::take(&mut self.unreported))
    }
}

/// Syncs not yet reported to Python: how far, the newest timestamp there, how long each took.
#[derive(Default)]
struct Unreported {
    position: i64,
    store_ms: i64,
    seconds: Vec<f64>,
    since: Option<Instant>,
}

/// Called after native syncs.
struct Callbacks {
    synced: Py<PyAny>,
    failed: Py<PyAny>,
}

/// What writers share with the thread that syncs for them.
pub struct Shared {
    durable: AtomicI64,
    queue: Mutex<CommitQueue>,
    /// Whose log is synced here.
    appender: OnceLock<Py<Appender>>,
    /// None inside: there could be none.
    thread: OnceLock<Option<SyncThread>>,
    has_failed: AtomicBool,
}

#[pyclass(frozen, module = "penstock._native")]
pub struct GroupCommit {
    shared: Arc<Shared>,
    callbacks: OnceLock<Callbacks>,
}

impl Drop for GroupCommit {
    fn drop(&mut self) {
        if let Some(Some(thread)) = self.shared.thread.get() {
            thread.end();
        }
    }
}

/// How a sync ended.
enum SyncOutcome {
    /// The sync of another writer was far enough.
    Covered,
    /// The log was synced; the lead is passed on.
    Synced { has_next: bool },
    /// The device failed; the caller still leads.
    Failed(Error),
    /// The sync is left to Python; the caller still leads.
    ByPython,
}

enum Place {
    Covered,
    Leads,
    Waits(Arc<Waiter>),
}

impl Shared {
    /// A thread that holds this lock waits for nothing.
    fn queue(&self) -> MutexGuard<'_, CommitQueue> {
        self.queue.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn enter(&self, position: i64) -> Place {
        let mut queue = self.queue();
        if self.durable.load(Ordering::Acquire) >= position {
            return Place::Covered;
        }
        if !queue.is_led {
            queue.is_led = true;
            return Place::Leads;
        }
        let waiter = Waiter { position, thread: current(), signal: AtomicU8::new(WAITS) };
        let waiter = Arc::new(waiter);
        queue.waiting.push_back(Arc::clone(&waiter));
        Place::Waits(waiter)
    }

    /// End a sync that was left to Python, whatever its result: the longest waiter leads next.
    fn finish(&self, durable: Option<i64>) {
        if let Some(durable) = durable {
            self.durable.fetch_max(durable, Ordering::AcqRel);
        }
        let mut queue = self.queue();
        queue.cover(self.durable.load(Ordering::Acquire));
        let leader = queue.waiting.pop_front();
        queue.is_led = leader.is_some();
        let first = queue.covered.pop_front();
        drop(queue);
        // The device first: what the others do next needs no device.
        wake(leader, LEADS);
        wake(first, COVERED);
    }

    /// End a native sync; return whether another one follows. The thread that syncs leads it; where
    /// there is no such thread, the longest waiter does.
    fn finish_synced(&self, position: i64, store_ms: i64, seconds: f64, by_thread: bool) -> bool {
        self.durable.fetch_max(position, Ordering::AcqRel);
        let thread = self.thread.get().and_then(Option::as_ref);
        let mut queue = self.queue();
        queue.unreported.add(position, store_ms, seconds);
        queue.cover(position);
        let leader = match thread {
            Some(_) => None,
            None => queue.waiting.pop_front(),
        };
        let has_next = leader.is_some() || !queue.waiting.is_empty();
        queue.is_led = has_next;
        let first = queue.covered.pop_front();
        drop(queue);
        wake(leader, LEADS);
        if let (true, false, Some(thread)) = (has_next, by_thread, thread) {
            thread.ring();
        }
        wake(first, COVERED);
        has_next
    }

    /// Wake the next covered writer; return what is to be reported to Python.
    fn pass_on(&self) -> Option<Unreported> {
        let mut queue = self.queue();
        let next = queue.covered.pop_front();
        let unreported = queue.drain_due();
        drop(queue);
        wake(next, COVERED);
        unreported
    }

    /// Lead syncs for waiting writers until none waits; without the interpreter. What needs
    /// Python is handed over to one of them.
    pub fn lead_for_others(&self) {
        loop {
            let failure = match self.lead(true) {
                SyncOutcome::Synced { has_next: true } => continue,
                SyncOutcome::Synced { has_next: false } | SyncOutcome::Covered => return,
                SyncOutcome::Failed(error) => Some(error),
                SyncOutcome::ByPython => None,
            };
            let mut queue = self.queue();
            queue.failure = failure;
            let leader = queue.waiting.pop_front();
            queue.is_led = leader.is_some();
            drop(queue);
            wake(leader, LEADS);
            return;
        }
    }

    /// Lead a sync without the interpreter, if that can be done.
    ///
    /// Order matters: records are shown (`state.durable`) and acknowledged (`finish_synced`) only
    /// after the device has them. After a failure no thread may sync again, because the kernel may
    /// have dropped the dirty pages and would then report success: the lead stays with us, or with
    /// the writer that it is handed to, until Python has stopped the log, and `has_failed` keeps
    /// later syncs out of here.
    fn lead(&self, by_thread: bool) -> SyncOutcome {
        if self.has_failed.load(Ordering::Acquire) {
            return self.queue().failure.take().map_or(SyncOutcome::ByPython, SyncOutcome::Failed);
        }
        let Some(appender) = self.appender.get().map(Py::get) else {
            return SyncOutcome::ByPython;
        };
        let durable = self.durable.load(Ordering::Acquire);
        let found = appender.blocking(|state| {
            let is_small = state.end - durable <= SYNCED_SIZE_MAX;
            let log = state.log.as_ref().filter(|log| log.base <= durable && is_small)?;
            Some((Arc::clone(log.device.as_ref()?), state.end, state.last_store_ms))
        });
        let Some(Some((device, position, store_ms))) = found else {
            return SyncOutcome::ByPython;
        };
        let started = Instant::now();
        if position > durable {
            if let Err(error) = sync_data(&device) {
                self.has_failed.store(true, Ordering::Release);
                return SyncOutcome::Failed(error);
            }
        }
        let seconds = started.elapsed().as_secs_f64();
        if appender.blocking(|state| state.durable = state.durable.max(position)).is_none() {
            return SyncOutcome::ByPython;
        }
        let has_next = self.finish_synced(position, store_ms, seconds, by_thread);
        SyncOutcome::Synced { has_next }
    }

    /// Wait for the lead or for a covering sync, and lead if asked to, without the interpreter.
    fn wait_or_lead(self: &Arc<Self>, place: Place) -> (SyncOutcome, Option<Unreported>) {
        let leads = match place {
            Place::Covered => return (SyncOutcome::Covered, None),
            Place::Leads => true,
            Place::Waits(waiter) => {
                if self.appender.get().is_some() {
                    self.thread.get_or_init(|| SyncThread::start(self));
                }
                waiter.wait() == LEADS
            }
        };
        if !leads {
            return (SyncOutcome::Covered, self.pass_on());
        }
        let outcome = self.lead(false);
        let unreported = match outcome {
            SyncOutcome::Synced { .. } => self.queue().drain_due(),
            _ => None,
        };
        (outcome, unreported)
    }
}

impl CommitQueue {
    /// Find those who need not wait any longer.
    fn cover(&mut self, durable: i64) {
        for waiter in std::mem::take(&mut self.waiting) {
            if waiter.position <= durable {
                self.covered.push_back(waiter);
            } else {
                self.waiting.push_back(waiter);
            }
        }
    }
}

impl Unreported {
    fn add(&mut self, position: i64, store_ms: i64, seconds: f64) {
        self.position = self.position.max(position);
        self.store_ms = self.store_ms.max(store_ms);
        self.seconds.push(seconds);
        self.since.get_or_insert_with(Instant::now);
    }
}

impl GroupCommit {
    /// Do what is left of a sync with the interpreter.
    fn end_sync(
        &self,
        py: Python<'_>,
        outcome: &SyncOutcome,
        sync: &Bound<'_, PyAny>,
    ) -> PyResult<()> {
        match (outcome, self.callbacks.get()) {
            (SyncOutcome::Covered | SyncOutcome::Synced { .. }, _) => {}
            (SyncOutcome::Failed(error), Some(callbacks)) => {
                let reported = callbacks.failed.call1(py, (error.to_string(),));
                self.shared.finish(None);
                reported?;
            }
            _ => {
                let done = sync.call0().and_then(|durable| durable.extract::<i64>());
                self.shared.finish(done.as_ref().ok().copied());
                done?;
            }
        }
        Ok(())
    }

    fn report(&self, py: Python<'_>, unreported: Unreported) -> PyResult<()> {
        if let Some(callbacks) = self.callbacks.get() {
            callbacks
                .synced
                .call1(py, (unreported.position, unreported.store_ms, unreported.seconds))?;
        }
        Ok(())
    }

    /// Return when the log is on the device up to `position`; `sync` puts it there, and returns
    /// how far it is then.
    pub fn wait_for(&self, position: i64, sync: &Bound<'_, PyAny>) -> PyResult<()> {
        let py = sync.py();
        let shared = &self.shared;
        while shared.durable.load(Ordering::Acquire) < position {
            let place = shared.enter(position);
            let (outcome, unreported) = py.detach(|| shared.wait_or_lead(place));
            self.end_sync(py, &outcome, sync)?;
            if let Some(unreported) = unreported {
                self.report(py, unreported)?;
            }
        }
        Ok(())
    }
}

fn wake(waiter: Option<Arc<Waiter>>, signal: u8) {
    if let Some(waiter) = waiter {
        waiter.wake(signal);
    }
}

/// Put a file's bytes on the device.
fn sync_data(device: &OwnedFd) -> Result<(), Error> {
    loop {
        // SAFETY: the descriptor is open for as long as it is owned.
        if unsafe { libc::fdatasync(device.as_raw_fd()) } == 0 {
            return Ok(());
        }
        let error = Error::last_os_error();
        if error.kind() != ErrorKind::Interrupted {
            return Err(error);
        }
    }
}

#[pymethods]
impl GroupCommit {
    #[new]
    fn new(durable: i64) -> Self {
        let shared = Shared {
            durable: AtomicI64::new(durable),
            queue: Mutex::default(),
            appender: OnceLock::new(),
            thread: OnceLock::new(),
            has_failed: AtomicBool::new(false),
        };
        Self { shared: Arc::new(shared), callbacks: OnceLock::new() }
    }

    fn sync_natively(&self, appender: Py<Appender>, synced: Py<PyAny>, failed: Py<PyAny>) {
        let _ = self.callbacks.set(Callbacks { synced, failed });
        let _ = self.shared.appender.set(appender);
    }

    #[getter]
    fn durable(&self) -> i64 {
        self.shared.durable.load(Ordering::Acquire)
    }

    fn set_durable(&self, durable: i64) {
        self.shared.durable.store(durable, Ordering::Release);
    }

    fn wait(&self, position: i64, sync: &Bound<'_, PyAny>) -> PyResult<()> {
        self.wait_for(position, sync)
    }
}
