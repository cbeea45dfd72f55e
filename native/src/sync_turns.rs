//! Who syncs the log when several writers wait for the device: one for all.
//!
//!     writer A ──▶ leads: syncs what is there ──▶ done
//!     writer B ──────▶ waits ····················▶ leads: syncs for B, C and D ──▶ done
//!     writers C, D ─────────▶ wait ·················································▶ done
//!
//! Writers wait without the interpreter. Who ends a turn hands the next one to the writer that has
//! waited longest, and lets those go that it covered: the first of them at once, which lets the
//! next one go as soon as it runs, and so on. All at once would only queue up for the interpreter,
//! at the price of one more change of threads each; one that first waits for the interpreter
//! would leave the next processor idle meanwhile.
//!
//! A log whose file has a descriptor of the operating system is synced right here: from one sync to
//! the next nobody needs the interpreter, for which the writers that were let go compete. All else
//! (much at once, a log that went on in another file, a test's disk, a log that failed) is left to
//! `sync`.
//!
//! As soon as somebody waits at the end of such a turn, a thread of its own (`sync_thread`) has the
//! next turns, until nobody waits: it is there already when a sync ends, whereas a writer has to be
//! woken to lead, then keeps a processor from the others, and all the others from itself when the
//! device answers. A writer that is alone syncs by itself: to ask another thread would cost more.

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

/// While turn follows turn, Python hears of them this often: a call for each would take, by estimate,
/// a fifth of the interpreter's time.
const TOLD_EVERY: Duration = Duration::from_millis(2);

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
struct Turns {
    is_led: bool,
    waiting: VecDeque<Arc<Waiter>>,
    /// Covered, to be let go one after the other.
    covered: VecDeque<Arc<Waiter>>,
    untold: Untold,
    /// What the device said to the thread that syncs, for the writer that has the turn now.
    failure: Option<Error>,
}

impl Turns {
    /// What Python is to hear now: everything when nobody else will come to tell it.
    fn take_due(&mut self) -> Option<Untold> {
        let untold = &self.untold;
        let is_last = !self.is_led && self.covered.is_empty();
        let is_due = is_last || untold.since.is_some_and(|since| since.elapsed() >= TOLD_EVERY);
        (is_due && !untold.seconds.is_empty()).then(|| std::mem::take(&mut self.untold))
    }
}

/// Syncs that Python has not heard of: how far, the newest timestamp there, how long each took.
#[derive(Default)]
struct Untold {
    position: i64,
    store_ms: i64,
    seconds: Vec<f64>,
    since: Option<Instant>,
}

/// Who is told about native syncs.
struct Hearers {
    synced: Py<PyAny>,
    failed: Py<PyAny>,
}

/// What writers share with the thread that syncs for them.
pub struct Shared {
    durable: AtomicI64,
    turns: Mutex<Turns>,
    /// Whose log is synced here.
    appender: OnceLock<Py<Appender>>,
    /// None inside: there could be none.
    thread: OnceLock<Option<SyncThread>>,
    has_failed: AtomicBool,
}

#[pyclass(frozen, module = "penstock._native")]
pub struct SyncTurns {
    shared: Arc<Shared>,
    hearers: OnceLock<Hearers>,
}

impl Drop for SyncTurns {
    fn drop(&mut self) {
        if let Some(Some(thread)) = self.shared.thread.get() {
            thread.end();
        }
    }
}

/// What became of a turn.
enum Turn {
    /// Another one's sync was far enough.
    Covered,
    /// The log was synced; the turn is over.
    Synced { has_next: bool },
    /// The device said no; the turn is not over.
    Failed(Error),
    /// The sync is left to Python; the turn is not over.
    ByPython,
}

enum Place {
    Covered,
    Leads,
    Waits(Arc<Waiter>),
}

impl Shared {
    /// Nobody waits for anything while holding this.
    fn turns(&self) -> MutexGuard<'_, Turns> {
        self.turns.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn enter(&self, position: i64) -> Place {
        let mut turns = self.turns();
        if self.durable.load(Ordering::Acquire) >= position {
            return Place::Covered;
        }
        if !turns.is_led {
            turns.is_led = true;
            return Place::Leads;
        }
        let waiter = Waiter { position, thread: current(), signal: AtomicU8::new(WAITS) };
        let waiter = Arc::new(waiter);
        turns.waiting.push_back(Arc::clone(&waiter));
        Place::Waits(waiter)
    }

    /// End a turn that was left to Python, however it went: who has waited longest is next.
    fn finish(&self, durable: Option<i64>) {
        if let Some(durable) = durable {
            self.durable.fetch_max(durable, Ordering::AcqRel);
        }
        let mut turns = self.turns();
        turns.cover(self.durable.load(Ordering::Acquire));
        let leader = turns.waiting.pop_front();
        turns.is_led = leader.is_some();
        let first = turns.covered.pop_front();
        drop(turns);
        // The device first: what the others do next needs no device.
        wake(leader, LEADS);
        wake(first, COVERED);
    }

    /// End a turn after a native sync; return whether there is a next one. The thread that syncs
    /// has it; where there is no such thread, who has waited longest.
    fn finish_synced(&self, position: i64, store_ms: i64, seconds: f64, by_thread: bool) -> bool {
        self.durable.fetch_max(position, Ordering::AcqRel);
        let thread = self.thread.get().and_then(Option::as_ref);
        let mut turns = self.turns();
        turns.untold.add(position, store_ms, seconds);
        turns.cover(position);
        let leader = match thread {
            Some(_) => None,
            None => turns.waiting.pop_front(),
        };
        let has_next = leader.is_some() || !turns.waiting.is_empty();
        turns.is_led = has_next;
        let first = turns.covered.pop_front();
        drop(turns);
        wake(leader, LEADS);
        if let (true, false, Some(thread)) = (has_next, by_thread, thread) {
            thread.ring();
        }
        wake(first, COVERED);
        has_next
    }

    /// Let the next one go that was covered; return what Python is to hear.
    fn pass_on(&self) -> Option<Untold> {
        let mut turns = self.turns();
        let next = turns.covered.pop_front();
        let untold = turns.take_due();
        drop(turns);
        wake(next, COVERED);
        untold
    }

    /// Lead turns for those who wait, until nobody does; without the interpreter. What needs
    /// Python is handed over to one of them.
    pub fn lead_for_others(&self) {
        loop {
            let failure = match self.lead(true) {
                Turn::Synced { has_next: true } => continue,
                Turn::Synced { has_next: false } | Turn::Covered => return,
                Turn::Failed(error) => Some(error),
                Turn::ByPython => None,
            };
            let mut turns = self.turns();
            turns.failure = failure;
            let leader = turns.waiting.pop_front();
            turns.is_led = leader.is_some();
            drop(turns);
            wake(leader, LEADS);
            return;
        }
    }

    /// Lead a turn without the interpreter, if that can be done.
    ///
    /// Order matters: records are shown (`state.durable`) and acknowledged (`finish_synced`) only
    /// after the device has them. After a failure nobody may sync again, because the kernel may
    /// have dropped the dirty pages and would then report success: the turn stays with us, or with
    /// the writer that it is handed to, until Python has stopped the log, and `has_failed` keeps
    /// later turns out of here.
    fn lead(&self, by_thread: bool) -> Turn {
        if self.has_failed.load(Ordering::Acquire) {
            return self.turns().failure.take().map_or(Turn::ByPython, Turn::Failed);
        }
        let Some(appender) = self.appender.get().map(Py::get) else {
            return Turn::ByPython;
        };
        let durable = self.durable.load(Ordering::Acquire);
        let found = appender.blocking(|state| {
            let is_small = state.end - durable <= SYNCED_SIZE_MAX;
            let log = state.log.as_ref().filter(|log| log.base <= durable && is_small)?;
            Some((Arc::clone(log.device.as_ref()?), state.end, state.last_store_ms))
        });
        let Some(Some((device, position, store_ms))) = found else {
            return Turn::ByPython;
        };
        let started = Instant::now();
        if position > durable {
            if let Err(error) = sync_data(&device) {
                self.has_failed.store(true, Ordering::Release);
                return Turn::Failed(error);
            }
        }
        let seconds = started.elapsed().as_secs_f64();
        if appender.blocking(|state| state.durable = state.durable.max(position)).is_none() {
            return Turn::ByPython;
        }
        let has_next = self.finish_synced(position, store_ms, seconds, by_thread);
        Turn::Synced { has_next }
    }

    /// Wait for a turn or its end, and go through it, without the interpreter.
    fn take_part(self: &Arc<Self>, place: Place) -> (Turn, Option<Untold>) {
        let leads = match place {
            Place::Covered => return (Turn::Covered, None),
            Place::Leads => true,
            Place::Waits(waiter) => {
                if self.appender.get().is_some() {
                    self.thread.get_or_init(|| SyncThread::start(self));
                }
                waiter.wait() == LEADS
            }
        };
        if !leads {
            return (Turn::Covered, self.pass_on());
        }
        let turn = self.lead(false);
        let untold = match turn {
            Turn::Synced { .. } => self.turns().take_due(),
            _ => None,
        };
        (turn, untold)
    }
}

impl Turns {
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

impl Untold {
    fn add(&mut self, position: i64, store_ms: i64, seconds: f64) {
        self.position = self.position.max(position);
        self.store_ms = self.store_ms.max(store_ms);
        self.seconds.push(seconds);
        self.since.get_or_insert_with(Instant::now);
    }
}

impl SyncTurns {
    /// Do what is left of a turn with the interpreter.
    fn end_turn(&self, py: Python<'_>, turn: &Turn, sync: &Bound<'_, PyAny>) -> PyResult<()> {
        match (turn, self.hearers.get()) {
            (Turn::Covered | Turn::Synced { .. }, _) => {}
            (Turn::Failed(error), Some(hearers)) => {
                let told = hearers.failed.call1(py, (error.to_string(),));
                self.shared.finish(None);
                told?;
            }
            _ => {
                let done = sync.call0().and_then(|durable| durable.extract::<i64>());
                self.shared.finish(done.as_ref().ok().copied());
                done?;
            }
        }
        Ok(())
    }

    fn tell(&self, py: Python<'_>, untold: Untold) -> PyResult<()> {
        if let Some(hearers) = self.hearers.get() {
            hearers.synced.call1(py, (untold.position, untold.store_ms, untold.seconds))?;
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
            let (turn, untold) = py.detach(|| shared.take_part(place));
            self.end_turn(py, &turn, sync)?;
            if let Some(untold) = untold {
                self.tell(py, untold)?;
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
impl SyncTurns {
    #[new]
    fn new(durable: i64) -> Self {
        let shared = Shared {
            durable: AtomicI64::new(durable),
            turns: Mutex::default(),
            appender: OnceLock::new(),
            thread: OnceLock::new(),
            has_failed: AtomicBool::new(false),
        };
        Self { shared: Arc::new(shared), hearers: OnceLock::new() }
    }

    fn sync_natively(&self, appender: Py<Appender>, synced: Py<PyAny>, failed: Py<PyAny>) {
        let _ = self.hearers.set(Hearers { synced, failed });
        let _ = self.shared.appender.set(appender);
    }

    #[getter]
    fn durable(&self) -> i64 {
        self.shared.durable.load(Ordering::Acquire)
    }

    fn settle(&self, durable: i64) {
        self.shared.durable.store(durable, Ordering::Release);
    }

    fn wait(&self, position: i64, sync: &Bound<'_, PyAny>) -> PyResult<()> {
        self.wait_for(position, sync)
    }
}
