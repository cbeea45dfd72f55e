//! Who syncs the log when several writers wait for the device: one for all.
//!
//!     writer A ──▶ leads: syncs what is there ──▶ done
//!     writer B ──────▶ waits ····················▶ leads: syncs for B, C and D ──▶ done
//!     writers C, D ─────────▶ wait ·················································▶ done
//!
//! Writers wait without the interpreter. Who ends a turn hands the next one to the writer that has
//! waited longest, and lets those go that it covered: the first of them at once, which lets the
//! next one go as soon as it has the interpreter, and so on. All at once would only queue up for
//! the interpreter, at the price of one more change of threads each.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicI64, AtomicU8, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::{current, park, Thread};

use pyo3::prelude::*;

const WAITS: u8 = 0;
const COVERED: u8 = 1;
const LEADS: u8 = 2;

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

#[pyclass(frozen, module = "penstock._native")]
pub struct SyncTurns {
    durable: AtomicI64,
    turns: Mutex<Turns>,
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

    /// Return when the log is on the device up to `position`; `sync` puts it there, and returns
    /// how far it is then.
    pub fn wait_for(&self, position: i64, sync: &Bound<'_, PyAny>) -> PyResult<()> {
        let py = sync.py();
        while self.durable.load(Ordering::Acquire) < position {
            let leads = match self.enter(position) {
                Place::Covered => return Ok(()),
                Place::Leads => true,
                Place::Waits(waiter) => py.detach(|| waiter.wait()) == LEADS,
            };
            if leads {
                let done = sync.call0().and_then(|durable| durable.extract::<i64>());
                self.finish(done.as_ref().ok().copied());
                done?;
            } else {
                self.pass_on();
            }
        }
        Ok(())
    }
}

#[pymethods]
impl SyncTurns {
    #[new]
    fn new(durable: i64) -> Self {
        Self { durable: AtomicI64::new(durable), turns: Mutex::default() }
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
