//! A thread that syncs the log for writers that wait, as long as there are any.
//!
//! It never needs the interpreter. While it sleeps it holds no reference to the shared state, which
//! may be dropped meanwhile.

use std::sync::atomic::{AtomicU8, Ordering};
use std::sync::{Arc, Weak};
use std::thread::{park, Builder, Thread};

use crate::group_commit::Shared;

const RESTS: u8 = 0;
const RUNG: u8 = 1;
const ENDS: u8 = 2;

pub struct SyncThread {
    bell: Arc<AtomicU8>,
    thread: Thread,
}

impl SyncThread {
    /// Start a thread; None where the system refuses one: writers then lead every sync themselves.
    pub fn start(shared: &Arc<Shared>) -> Option<Self> {
        let bell = Arc::new(AtomicU8::new(RESTS));
        let (listened, shared) = (Arc::clone(&bell), Arc::downgrade(shared));
        let spawned = Builder::new().name("penstock-syncs".into()).spawn(move || {
            leave_signals_to_others();
            run(&listened, &shared);
        });
        let thread = spawned.ok()?.thread().clone();
        Some(Self { bell, thread })
    }

    /// Make the thread lead the next syncs; the caller led the last one.
    pub fn ring(&self) {
        self.signal(RUNG);
    }

    /// End the thread.
    pub fn end(&self) {
        self.signal(ENDS);
    }

    fn signal(&self, signal: u8) {
        self.bell.store(signal, Ordering::Release);
        self.thread.unpark();
    }
}

fn run(bell: &AtomicU8, shared: &Weak<Shared>) {
    loop {
        match bell.compare_exchange(RUNG, RESTS, Ordering::AcqRel, Ordering::Acquire) {
            Ok(_) => match shared.upgrade() {
                Some(shared) => shared.lead_for_others(),
                None => return,
            },
            Err(ENDS) => return,
            Err(_) => park(),
        }
    }
}

/// Python answers signals in its main thread, which a signal that came here would not wake.
fn leave_signals_to_others() {
    // SAFETY: the set is filled before it is read; only this thread's mask changes.
    unsafe {
        let mut all = std::mem::MaybeUninit::<libc::sigset_t>::uninit();
        libc::sigfillset(all.as_mut_ptr());
        libc::pthread_sigmask(libc::SIG_SETMASK, all.as_ptr(), std::ptr::null_mut());
    }
}
