//! Checksums of blocks: of bytes that are there, or of a file's while they are read.
//!
//! A file is read a few blocks at a time, and these are summed before the next are read: they are
//! still in the processor's cache then, so that a checked read takes little longer than a read.

use std::fs::File;
use std::io::{Error, ErrorKind};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

use pyo3::exceptions::PyOSError;
use pyo3::prelude::*;
use pyo3::types::PyBytes;

use crate::bytes::View;
use crate::codec::maybe_detached;
use crate::errors::Refusal;

/// What is read in one call: a system call takes as long as copying 30 KB, and what was read is summed
/// while it is in the cache that the processors share.
pub const READ_SIZE: usize = 1 << 20;
pub const SUM_SIZE: usize = 4;

pub fn sum_blocks(data: &[u8], block_size: usize, sums: &mut Vec<u8>) {
    for block in data.chunks(block_size) {
        sums.extend_from_slice(&crc32fast::hash(block).to_be_bytes());
    }
}

/// Read until `buffer` is full or the file ends; return how many bytes came.
pub fn read_at(file: &File, buffer: &mut [u8], start: u64) -> Result<usize, Error> {
    let mut filled = 0;
    while filled < buffer.len() {
        match file.read_at(&mut buffer[filled..], start + filled as u64) {
            Ok(0) => break,
            Ok(count) => filled += count,
            Err(error) if error.kind() == ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
    Ok(filled)
}

/// Fill `buffer` from a file, and sum the blocks of its first `summed` bytes as far as they came.
fn read_and_sum(
    path: &Path,
    start: u64,
    buffer: &mut [u8],
    summed: usize,
    block_size: usize,
) -> Result<(usize, Vec<u8>), Error> {
    let file = File::open(path)?;
    let mut sums = Vec::with_capacity(summed.div_ceil(block_size) * SUM_SIZE);
    let step = READ_SIZE.div_ceil(block_size) * block_size;
    let mut filled = 0;
    for part in buffer.chunks_mut(step) {
        let count = read_at(&file, part, start + filled as u64)?;
        sum_blocks(&part[..count.min(summed.saturating_sub(filled))], block_size, &mut sums);
        filled += count;
        if count < part.len() {
            break;
        }
    }
    Ok((filled, sums))
}

#[pyfunction]
pub fn block_checksums<'py>(
    py: Python<'py>,
    data: &Bound<'py, PyAny>,
    block_size: usize,
) -> PyResult<Bound<'py, PyBytes>> {
    check_block_size(py, block_size)?;
    let view = View::readable(data)?;
    let bytes = view.bytes();
    let sums = maybe_detached(py, bytes.len(), || {
        let mut sums = Vec::with_capacity(bytes.len().div_ceil(block_size) * SUM_SIZE);
        sum_blocks(bytes, block_size, &mut sums);
        sums
    });
    Ok(PyBytes::new(py, &sums))
}

#[pyfunction]
pub fn read_blocks<'py>(
    py: Python<'py>,
    path: PathBuf,
    start: u64,
    buffer: &Bound<'py, PyAny>,
    summed: usize,
    block_size: usize,
) -> PyResult<(usize, Bound<'py, PyBytes>)> {
    check_block_size(py, block_size)?;
    let mut view = View::writable(buffer)?;
    let bytes = view.bytes_mut();
    if start > i64::MAX as u64 || summed > bytes.len() {
        return Err(Refusal::bad("a read begins in its file and sums what it reads").raise(py));
    }
    let found = py.detach(|| read_and_sum(&path, start, bytes, summed, block_size));
    let (filled, sums) = found.map_err(os_error)?;
    Ok((filled, PyBytes::new(py, &sums)))
}

/// With its number, by which Python tells a missing file from a failing disk.
pub fn os_error(error: Error) -> PyErr {
    PyOSError::new_err((error.raw_os_error(), error.to_string()))
}

pub fn check_block_size(py: Python<'_>, block_size: usize) -> PyResult<()> {
    if block_size == 0 || block_size > isize::MAX as usize / 2 {
        return Err(Refusal::bad("a block has at least a byte").raise(py));
    }
    Ok(())
}
