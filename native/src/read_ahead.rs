//! Files read and summed ahead of one reader, in the order in which it asked for them.
//!
//!     ask    file 3 ──▶ ┌─────────────────────┐
//!                       │   unclaimed pieces  │ ──▶ a thread of its own
//!     wait   file 1 ◀── └─────────────────────┘ ──▶ the reader itself, while it waits
//!
//! Both take the next piece as soon as they are free, without the interpreter. To wake a
//! thread costs as much as to copy a few MB, so the reader works rather than waits; and while it is
//! busy with what it got, the other goes on.

use std::collections::VecDeque;
use std::fs::File;
use std::io::Error;
use std::path::PathBuf;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, OnceLock, PoisonError};
use std::thread::Builder;

use pyo3::prelude::*;
use pyo3::types::PyBytes;

use crate::block_checksums::{
    check_block_size, os_error, read_at, sum_blocks, READ_SIZE, SUM_SIZE,
};
use crate::bytes::View;
use crate::errors::Refusal;

struct Outcome {
    finished: usize,
    filled: usize,
    sums: Vec<u8>,
    failure: Option<Error>,
    /// Held while a thread may write into it.
    view: Option<View>,
}

struct Asked {
    path: PathBuf,
    file: OnceLock<Result<File, i32>>,
    start: *mut u8,
    size: usize,
    summed: usize,
    block_size: usize,
    outcome: Mutex<Outcome>,
}

// SAFETY: `start` points into the view that `outcome` holds; each piece of it has one writer, the
// thread that took the piece, and it is not read before all pieces are finished.
unsafe impl Send for Asked {}
unsafe impl Sync for Asked {}

impl Asked {
    fn piece_size(&self) -> usize {
        READ_SIZE.div_ceil(self.block_size) * self.block_size
    }

    fn pieces(&self) -> usize {
        self.size.div_ceil(self.piece_size()).max(1)
    }

    fn is_done(&self) -> bool {
        locked(&self.outcome).finished == self.pieces()
    }

    /// Read and sum a piece; only the thread that took it calls this.
    fn run(&self, piece: usize) {
        let begin = piece * self.piece_size();
        let size = self.piece_size().min(self.size - begin);
        // SAFETY: see above; the view is dropped when every piece is finished, or with `self`.
        let place = unsafe { std::slice::from_raw_parts_mut(self.start.add(begin), size) };
        let found = self.open().and_then(|file| read_at(file, place, begin as u64));
        let mut sums = Vec::new();
        if let Ok(count) = found {
            let summed = count.min(self.summed.saturating_sub(begin));
            sum_blocks(&place[..summed], self.block_size, &mut sums);
        }
        let at = begin / self.block_size * SUM_SIZE;
        let mut outcome = locked(&self.outcome);
        match found {
            Ok(count) => {
                outcome.filled += count;
                // A piece after all that is summed has no place there.
                if let Some(place) = outcome.sums.get_mut(at..at + sums.len()) {
                    place.copy_from_slice(&sums);
                }
            }
            Err(error) => outcome.failure = Some(error),
        }
        outcome.finished += 1;
    }

    fn open(&self) -> Result<&File, Error> {
        let opened = || File::open(&self.path).map_err(|error| error.raw_os_error().unwrap_or(0));
        self.file.get_or_init(opened).as_ref().map_err(|number| Error::from_raw_os_error(*number))
    }
}

struct Queue {
    asked: VecDeque<Arc<Asked>>,
    /// Of these files every piece was taken, and of the next one so many.
    taken_files: usize,
    taken_pieces: usize,
    ended: bool,
}

impl Queue {
    fn pop_piece(&mut self) -> Option<(Arc<Asked>, usize)> {
        let asked = self.asked.get(self.taken_files)?.clone();
        let piece = self.taken_pieces;
        self.taken_pieces += 1;
        if self.taken_pieces == asked.pieces() {
            self.taken_files += 1;
            self.taken_pieces = 0;
        }
        Some((asked, piece))
    }
}

struct Shared {
    queue: Mutex<Queue>,
    asked: Condvar,
    finished: Condvar,
}

impl Shared {
    /// Take pieces until there are no more to come.
    fn help(&self) {
        let mut queue = locked(&self.queue);
        while !queue.ended {
            if let Some((asked, piece)) = queue.pop_piece() {
                drop(queue);
                asked.run(piece);
                // Its memory may have no other owner by now: it is freed before the lock is taken.
                drop(asked);
                queue = locked(&self.queue);
                self.finished.notify_one();
            } else {
                queue = self.asked.wait(queue).unwrap_or_else(PoisonError::into_inner);
            }
        }
    }

    /// Return the oldest file when it is finished; None when nothing was asked for.
    fn wait(&self) -> Option<Arc<Asked>> {
        let mut queue = locked(&self.queue);
        let oldest = queue.asked.front()?.clone();
        while !oldest.is_done() {
            if let Some((asked, piece)) = queue.pop_piece() {
                drop(queue);
                asked.run(piece);
                queue = locked(&self.queue);
            } else {
                queue = self.finished.wait(queue).unwrap_or_else(PoisonError::into_inner);
            }
        }
        queue.asked.pop_front();
        queue.taken_files = queue.taken_files.saturating_sub(1);
        Some(oldest)
    }
}

#[pyclass(frozen)]
pub struct ReadAhead {
    shared: Arc<Shared>,
    block_size: usize,
}

#[pymethods]
impl ReadAhead {
    #[new]
    fn new(py: Python<'_>, block_size: usize) -> PyResult<Self> {
        check_block_size(py, block_size)?;
        let asked = VecDeque::new();
        let queue = Queue { asked, taken_files: 0, taken_pieces: 0, ended: false };
        let shared = Arc::new(Shared {
            queue: Mutex::new(queue),
            asked: Condvar::new(),
            finished: Condvar::new(),
        });
        let helped = shared.clone();
        // Without it the reader does all by itself.
        let _ = Builder::new().name("penstock-ahead".into()).spawn(move || helped.help());
        Ok(Self { shared, block_size })
    }

    fn ask(
        &self,
        py: Python<'_>,
        path: PathBuf,
        buffer: &Bound<'_, PyAny>,
        summed: usize,
    ) -> PyResult<()> {
        let mut view = View::writable(buffer)?;
        let (start, size) = (view.bytes_mut().as_mut_ptr(), view.size());
        if summed > size {
            return Err(Refusal::bad("a file's sums are those of what is read").raise(py));
        }
        let sums = vec![0; summed.div_ceil(self.block_size) * SUM_SIZE];
        let outcome = Outcome { finished: 0, filled: 0, sums, failure: None, view: Some(view) };
        let asked = Arc::new(Asked {
            path,
            file: OnceLock::new(),
            start,
            size,
            summed,
            block_size: self.block_size,
            outcome: Mutex::new(outcome),
        });
        locked(&self.shared.queue).asked.push_back(asked);
        self.shared.asked.notify_one();
        Ok(())
    }

    fn wait<'py>(&self, py: Python<'py>) -> PyResult<(usize, Bound<'py, PyBytes>)> {
        let found = py.detach(|| self.shared.wait());
        let found = found.ok_or_else(|| Refusal::bad("no file was asked for").raise(py))?;
        let mut outcome = locked(&found.outcome);
        outcome.view = None;
        match outcome.failure.take() {
            Some(error) => Err(os_error(error)),
            None => Ok((outcome.filled, PyBytes::new(py, &outcome.sums))),
        }
    }

    /// Begin nothing more. What is being read keeps its memory until it is there.
    fn close(&self) {
        let mut queue = locked(&self.shared.queue);
        queue.ended = true;
        queue.taken_files = 0;
        queue.taken_pieces = 0;
        let left = std::mem::take(&mut queue.asked);
        drop(queue);
        self.shared.asked.notify_one();
        drop(left);
    }
}

impl Drop for ReadAhead {
    fn drop(&mut self) {
        self.close();
    }
}

fn locked<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
