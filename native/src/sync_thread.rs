//! A thread that syncs the log for writers that wait, as long as there are any.
//!
//! It never needs the interpreter, and sleeps without a hold on the turns: they may go meanwhile.

use std::sync::atomic::{AtomicU8, Ordering};
use std::sync::{Arc, Weak};
use std::thread::{park, Builder, Thread};

use crate::sync_turns::Shared;

const RESTS: u8 = 0;
const RUNG: u8 = 1;
const ENDS: u8 = 2;

pub struct SyncThread {
    bell: Arc<AtomicU8>,
    thread: Thread,
}

impl SyncThread {
    /// Start one; None where the system has none to give: writers then lead every turn themselves.
    pub fn start(turns: &Arc<Shared>) -> Option<Self> {
        let bell = Arc::new(AtomicU8::new(RESTS));
        let (listened, turns) = (Arc::clone(&bell), Arc::downgrade(turns));
        let spawned = Builder::new().name("penstock-syncs".into()).spawn(move || {
            leave_signals_to_others();
            run(&listened, &turns);
        });
        let thread = spawned.ok()?.thread().clone();
        Some(Self { bell, thread })
    }

    /// Have the next turns led; the caller had the last one.
    pub fn ring(&self) {
        self.signal(RUNG);
    }

    /// Nobody will ring again.
    pub fn end(&self) {
        self.signal(ENDS);
    }

    fn signal(&self, signal: u8) {
        self.bell.store(signal, Ordering::Release);
        self.thread.unpark();
    }
}

fn run(bell: &AtomicU8, turns: &Weak<Shared>) {
    loop {
        match bell.compare_exchange(RUNG, RESTS, Ordering::AcqRel, Ordering::Acquire) {
            Ok(_) => match turns.upgrade() {
                Some(turns) => turns.lead_for_others(),
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
