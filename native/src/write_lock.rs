//! The lock of the log: one writer at a time.
//!
//! A writer that needs nothing but native code takes it, appends and lets go without giving up the
//! interpreter, so that it is never seen to hold it. Python code that holds it (a roll, a
//! checkpoint, a cut) may lose the interpreter meanwhile: others then wait without it.
//!
//! Nobody who waits for the interpreter is given the lock: whoever is told that it is free asks
//! for it again. Otherwise each hand-over would make all writers wait for a change of threads.

use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering::SeqCst};
use std::sync::{Condvar, Mutex, PoisonError};
use std::time::{Duration, Instant};

use pyo3::exceptions::PyRuntimeError;
use pyo3::prelude::*;

/// How long a thread waits before it looks for signals: an interrupt must reach it.
const SLICE: Duration = Duration::from_millis(500);

#[pyclass(frozen, module = "penstock._native")]
#[derive(Default)]
pub struct WriteLock {
    is_held: AtomicBool,
    waiting: AtomicUsize,
    mutex: Mutex<()>,
    freed: Condvar,
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
    #[inline]
    pub fn try_hold(&self) -> Option<Held<'_>> {
        self.try_take().then(|| Held(self))
    }

    /// Wait for the lock; only without the interpreter.
    pub fn hold(&self, patience: Duration) -> Option<Held<'_>> {
        let deadline = Instant::now() + patience;
        while !self.try_take() {
            if !self.wait(deadline) {
                return None;
            }
        }
        Some(Held(self))
    }

    #[inline]
    fn try_take(&self) -> bool {
        self.is_held.compare_exchange(false, true, SeqCst, SeqCst).is_ok()
    }

    #[inline]
    fn free(&self) {
        self.is_held.store(false, SeqCst);
        // Whoever waits has counted itself before it looked at `is_held`: one of us sees the other.
        if self.waiting.load(SeqCst) > 0 {
            let _guard = self.mutex.lock().unwrap_or_else(PoisonError::into_inner);
            self.freed.notify_all();
        }
    }

    /// Wait until the lock is free at some moment, or false at the deadline.
    fn wait(&self, deadline: Instant) -> bool {
        self.waiting.fetch_add(1, SeqCst);
        let mut guard = self.mutex.lock().unwrap_or_else(PoisonError::into_inner);
        let mut is_free = !self.is_held.load(SeqCst);
        while !is_free {
            let left = deadline.saturating_duration_since(Instant::now());
            if left.is_zero() {
                break;
            }
            guard = match self.freed.wait_timeout(guard, left) {
                Ok((guard, _)) => guard,
                Err(poisoned) => poisoned.into_inner().0,
            };
            is_free = !self.is_held.load(SeqCst);
        }
        drop(guard);
        self.waiting.fetch_sub(1, SeqCst);
        is_free
    }

    fn take(&self, py: Python<'_>, patience: Option<Duration>) -> PyResult<bool> {
        if self.try_take() {
            return Ok(true);
        }
        let deadline = patience.map(|patience| Instant::now() + patience);
        loop {
            let slice = Instant::now() + SLICE;
            let until = deadline.map_or(slice, |deadline| deadline.min(slice));
            py.detach(|| self.wait(until));
            if self.try_take() {
                return Ok(true);
            }
            py.check_signals()?;
            if deadline.is_some_and(|deadline| Instant::now() >= deadline) {
                return Ok(false);
            }
        }
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
        self.take(py, patience)
    }

    fn release(&self) -> PyResult<()> {
        if !self.is_held.load(SeqCst) {
            return Err(PyRuntimeError::new_err("the lock is not held"));
        }
        self.free();
        Ok(())
    }

    fn __enter__(&self, py: Python<'_>) -> PyResult<()> {
        self.take(py, None).map(|_| ())
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
    fn patience_ends() {
        let lock = WriteLock::default();
        let held = lock.try_hold();
        assert!(lock.try_hold().is_none() && lock.try_hold().is_none());
        assert!(lock.hold(Duration::from_millis(5)).is_none());
        drop(held);
        assert!(lock.hold(Duration::from_millis(5)).is_some());
    }
}
