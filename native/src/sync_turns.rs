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

use std::collections::VecDeque;
use std::io::{Error, ErrorKind};
use std::os::fd::{AsRawFd, OwnedFd};
use std::sync::atomic::{AtomicBool, AtomicI64, AtomicU8, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::thread::{current, park, Thread};
use std::time::Instant;

use pyo3::prelude::*;

use crate::appender::Appender;

const WAITS: u8 = 0;
const COVERED: u8 = 1;
const LEADS: u8 = 2;

/// More than this (a large batch, or many) is left to Python, which prepares the pages for it.
const SYNCED_SIZE_MAX: i64 = 1 << 20;

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
}

/// Whose log is synced here, and who is told about it.
struct Native {
    appender: Py<Appender>,
    synced: Py<PyAny>,
    failed: Py<PyAny>,
}

#[pyclass(frozen, module = "penstock._native")]
pub struct SyncTurns {
    durable: AtomicI64,
    turns: Mutex<Turns>,
    native: OnceLock<Native>,
    has_failed: AtomicBool,
}

/// What became of a writer's turn.
enum Turn {
    /// Another one's sync was far enough.
    Covered,
    /// The log was synced up to a position; the turn is over.
    Synced { position: i64, store_ms: i64, seconds: f64 },
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

impl SyncTurns {
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

    /// End the turn, however it went.
    fn finish(&self, durable: Option<i64>) {
        if let Some(durable) = durable {
            self.durable.fetch_max(durable, Ordering::AcqRel);
        }
        let durable = self.durable.load(Ordering::Acquire);
        let mut turns = self.turns();
        let waiting = std::mem::take(&mut turns.waiting);
        for waiter in waiting {
            if waiter.position <= durable {
                turns.covered.push_back(waiter);
            } else {
                turns.waiting.push_back(waiter);
            }
        }
        let leader = turns.waiting.pop_front();
        turns.is_led = leader.is_some();
        let first = turns.covered.pop_front();
        drop(turns);
        // The device first: what the others do next needs no device.
        if let Some(leader) = leader {
            leader.wake(LEADS);
        }
        if let Some(first) = first {
            first.wake(COVERED);
        }
    }

    /// Let the next one go that was covered.
    fn pass_on(&self) {
        let next = self.turns().covered.pop_front();
        if let Some(next) = next {
            next.wake(COVERED);
        }
    }

    /// Lead a turn without the interpreter, if that can be done.
    ///
    /// Order matters: records are shown (`state.durable`) and acknowledged (`finish`) only after
    /// the device has them. After a failure nobody may sync again, because the kernel may have
    /// dropped the dirty pages and would then report success: the turn stays ours until Python
    /// has stopped the log, and `has_failed` keeps later turns out of here.
    fn lead(&self) -> Turn {
        let native = match self.native.get() {
            Some(native) if !self.has_failed.load(Ordering::Acquire) => native,
            _ => return Turn::ByPython,
        };
        let durable = self.durable.load(Ordering::Acquire);
        let appender = native.appender.get();
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
        self.finish(Some(position));
        Turn::Synced { position, store_ms, seconds }
    }

    /// Do what is left of a turn with the interpreter.
    fn end_turn(&self, py: Python<'_>, turn: &Turn, sync: &Bound<'_, PyAny>) -> PyResult<()> {
        match (turn, self.native.get()) {
            (Turn::Covered, _) => {}
            (&Turn::Synced { position, store_ms, seconds }, Some(native)) => {
                native.synced.call1(py, (position, store_ms, seconds))?;
            }
            (Turn::Failed(error), Some(native)) => {
                let told = native.failed.call1(py, (error.to_string(),));
                self.finish(None);
                told?;
            }
            _ => {
                let done = sync.call0().and_then(|durable| durable.extract::<i64>());
                self.finish(done.as_ref().ok().copied());
                done?;
            }
        }
        Ok(())
    }

    /// Return when the log is on the device up to `position`; `sync` puts it there, and returns
    /// how far it is then.
    pub fn wait_for(&self, position: i64, sync: &Bound<'_, PyAny>) -> PyResult<()> {
        let py = sync.py();
        while self.durable.load(Ordering::Acquire) < position {
            let turn = match self.enter(position) {
                Place::Covered => return Ok(()),
                Place::Leads => py.detach(|| self.lead()),
                Place::Waits(waiter) => py.detach(|| match waiter.wait() {
                    LEADS => self.lead(),
                    _ => {
                        self.pass_on();
                        Turn::Covered
                    }
                }),
            };
            self.end_turn(py, &turn, sync)?;
        }
        Ok(())
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
        Self {
            durable: AtomicI64::new(durable),
            turns: Mutex::default(),
            native: OnceLock::new(),
            has_failed: AtomicBool::new(false),
        }
    }

    fn sync_natively(&self, appender: Py<Appender>, synced: Py<PyAny>, failed: Py<PyAny>) {
        let _ = self.native.set(Native { appender, synced, failed });
    }

    #[getter]
    fn durable(&self) -> i64 {
        self.durable.load(Ordering::Acquire)
    }

    fn settle(&self, durable: i64) {
        self.durable.store(durable, Ordering::Release);
    }

    fn wait(&self, position: i64, sync: &Bound<'_, PyAny>) -> PyResult<()> {
        self.wait_for(position, sync)
    }
}
