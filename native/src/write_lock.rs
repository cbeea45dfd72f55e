//! The lock of the log: one writer at a time.
//!
//! A writer that needs nothing but native code takes it, appends and releases it without giving up the
//! interpreter, so that it is never seen to hold it. Python code that holds it (a roll, a
//! checkpoint, a cut) may lose the interpreter meanwhile: others then wait without it.
//!
//! A thread that waits for the interpreter is not given the lock: one that is notified asks
//! for it again. Otherwise each hand-over would make all writers wait for a change of threads.
//! Writers that keep the lock busy without the interpreter could go on like this without a limit; so
//! Python code that has asked in vain for a while reserves it, and native writers wait meanwhile.

use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering::SeqCst};
use std::sync::{Condvar, Mutex, PoisonError};
use std::time::{Duration, Instant};

use pyo3::exceptions::PyRuntimeError;
use pyo3::prelude::*;

/// How long a thread waits before it looks for signals: an interrupt must reach it.
const SLICE: Duration = Duration::from_millis(500);
/// How long Python code asks again and again before it reserves the lock: some changes of threads.
const UNRESERVED: Duration = Duration::from_millis(20);

#[pyclass(frozen, module = "penstock._native")]
#[derive(Default)]
pub struct WriteLock {
    is_held: AtomicBool,
    waiting: AtomicUsize,
    /// Python code that has waited long; native writers wait for it.
    reserved: AtomicUsize,
    mutex: Mutex<()>,
    freed: Condvar,
}

/// A claim to the lock, until dropped.
struct Reservation<'a>(&'a WriteLock);

impl Drop for Reservation<'_> {
    fn drop(&mut self) {
        self.0.reserved.fetch_sub(1, SeqCst);
        self.0.notify_waiting();
    }
}

/// The lock, held until dropped.
pub struct Held<'a>(&'a WriteLock);

impl Drop for Held<'_> {
    #[inline]
    fn drop(&mut self) {
        self.0.free();
    }
}

impl WriteLock {
    /// A native writer may go on: the lock is neither held nor reserved.
    #[inline]
    pub fn is_free(&self) -> bool {
        !self.is_held() && !self.is_reserved()
    }

    #[inline]
    pub fn try_hold(&self) -> Option<Held<'_>> {
        (!self.is_reserved() && self.try_acquire()).then(|| Held(self))
    }

    /// Wait for the lock; only without the interpreter.
    pub fn hold(&self, patience: Duration) -> Option<Held<'_>> {
        let deadline = Instant::now() + patience;
        loop {
            if let Some(held) = self.try_hold() {
                return Some(held);
            }
            if !self.wait(deadline, || self.is_free()) {
                return None;
            }
        }
    }

    #[inline]
    fn is_held(&self) -> bool {
        self.is_held.load(SeqCst)
    }

    #[inline]
    fn is_reserved(&self) -> bool {
        self.reserved.load(SeqCst) > 0
    }

    #[inline]
    fn try_acquire(&self) -> bool {
        self.is_held.compare_exchange(false, true, SeqCst, SeqCst).is_ok()
    }

    #[inline]
    fn free(&self) {
        self.is_held.store(false, SeqCst);
        self.notify_waiting();
    }

    /// Called after each change that a thread may wait for.
    #[inline]
    fn notify_waiting(&self) {
        // A thread that waits has counted itself before it looked at that: one of us sees the other.
        if self.waiting.load(SeqCst) > 0 {
            let _guard = self.mutex.lock().unwrap_or_else(PoisonError::into_inner);
            self.freed.notify_all();
        }
    }

    /// Wait until the lock `is_ours` to ask for at some moment, or false at the deadline.
    fn wait(&self, deadline: Instant, is_ours: impl Fn() -> bool) -> bool {
        self.waiting.fetch_add(1, SeqCst);
        let mut guard = self.mutex.lock().unwrap_or_else(PoisonError::into_inner);
        let mut is_free = is_ours();
        while !is_free {
            let left = deadline.saturating_duration_since(Instant::now());
            if left.is_zero() {
                break;
            }
            guard = match self.freed.wait_timeout(guard, left) {
                Ok((guard, _)) => guard,
                Err(poisoned) => poisoned.into_inner().0,
            };
            is_free = is_ours();
        }
        drop(guard);
        self.waiting.fetch_sub(1, SeqCst);
        is_free
    }

    fn acquire_within(&self, py: Python<'_>, patience: Option<Duration>) -> PyResult<bool> {
        if self.try_acquire() {
            return Ok(true);
        }
        let started = Instant::now();
        let deadline = patience.map(|patience| started + patience);
        let mut reservation = None;
        loop {
            let slice = if reservation.is_some() { SLICE } else { UNRESERVED };
            let slice = Instant::now() + slice;
            let until = deadline.map_or(slice, |deadline| deadline.min(slice));
            py.detach(|| self.wait(until, || !self.is_held()));
            if self.try_acquire() {
                return Ok(true);
            }
            py.check_signals()?;
            let now = Instant::now();
            if deadline.is_some_and(|deadline| now >= deadline) {
                return Ok(false);
            }
            if reservation.is_none() && now - started >= UNRESERVED {
                reservation = Some(self.reserve());
            }
        }
    }

    fn reserve(&self) -> Reservation<'_> {
        self.reserved.fetch_add(1, SeqCst);
        Reservation(self)
    }
}

#[pymethods]
impl WriteLock {
    #[new]
    fn new() -> Self {
        Self::default()
    }

    fn acquire(&self, py: Python<'_>, timeout_s: f64) -> PyResult<bool> {
        let patience = Duration::try_from_secs_f64(timeout_s.max(0.0)).ok();
        self.acquire_within(py, patience)
    }

    fn release(&self) -> PyResult<()> {
        if !self.is_held() {
            return Err(PyRuntimeError::new_err("the lock is not held"));
        }
        self.free();
        Ok(())
    }

    fn __enter__(&self, py: Python<'_>) -> PyResult<()> {
        self.acquire_within(py, None).map(|_| ())
    }

    fn __exit__(
        &self,
        _kind: &Bound<'_, PyAny>,
        _error: &Bound<'_, PyAny>,
        _traceback: &Bound<'_, PyAny>,
    ) -> PyResult<()> {
        self.release()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::Arc;

    #[test]
    fn one_at_a_time_holds_it() {
        let lock = Arc::new(WriteLock::default());
        let total = Arc::new(AtomicUsize::new(0));
        let threads: Vec<_> = (0..4)
            .map(|_| {
                let (lock, total) = (Arc::clone(&lock), Arc::clone(&total));
                std::thread::spawn(move || {
                    for _ in 0..20_000 {
                        let held = lock.hold(Duration::from_secs(30));
                        let before = total.load(SeqCst);
                        total.store(before + 1, SeqCst);
                        drop(held.expect("the lock is free soon"));
                    }
                })
            })
            .collect();
        for thread in threads {
            thread.join().expect("no thread fails");
        }
        assert_eq!(total.load(SeqCst), 80_000);
        assert_eq!(lock.waiting.load(SeqCst), 0);
    }

    #[test]
    fn a_reservation_keeps_native_writers_out_until_it_ends() {
        let lock = Arc::new(WriteLock::default());
        let reservation = lock.reserve();
        assert!(lock.try_hold().is_none());
        assert!(lock.hold(Duration::from_millis(5)).is_none());
        let writer = {
            let lock = Arc::clone(&lock);
            std::thread::spawn(move || lock.hold(Duration::from_secs(30)).is_some())
        };
        std::thread::sleep(Duration::from_millis(20));
        assert!(lock.try_acquire());
        drop(reservation);
        assert!(!writer.is_finished());
        lock.free();
        assert!(writer.join().expect("no thread fails"));
    }

    #[test]
    fn patience_ends() {
        let lock = WriteLock::default();
        let held = lock.try_hold();
        assert!(lock.try_hold().is_none() && lock.try_hold().is_none());
        assert!(lock.hold(Duration::from_millis(5)).is_none());
        drop(held);
        assert!(lock.hold(Duration::from_millis(5)).is_some());
    }
}
