//! Parses a Produce request: which batches it holds, and for which partitions.
//!
//!     transactional id · acks 2 · timeout 4 · topics [name · partitions [index 4 · batch]]
//!
//! Flexible versions (9 and later) have compact lengths and tagged fields. Nothing is copied but
//! names: a batch is returned as its place in the request.

use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;
use pyo3::types::{PyBytes, PyList, PyTuple};

use crate::bytes::View;

/// Arrays of all levels together; each element costs an object.
const ITEMS_MAX: usize = 250_000;

/// Return (transactional id, acks, [(topic, [(partition, start, end)])]).
#[pyfunction]
#[pyo3(name = "parse_produce")]
pub fn parse_object<'py>(
    py: Python<'py>,
    request: &Bound<'py, PyAny>,
    is_flexible: bool,
) -> PyResult<Bound<'py, PyTuple>> {
    let view = View::readable(request)?;
    let mut reader = Reader { data: view.bytes(), at: 0, is_flexible, items_left: ITEMS_MAX };
    let id = match reader.text()? {
        Some(bytes) => {
            Some(std::str::from_utf8(bytes).map_err(|_| bad("text that is not UTF-8", 0))?)
        }
        None => None,
    };
    let acks = i16::from_be_bytes(reader.array()?);
    reader.read(4)?; // how long the client waits
    let topics = PyList::empty(py);
    for _ in 0..reader.count()? {
        let name = reader.text()?.ok_or_else(|| bad("a topic without a name", reader.at))?;
        let partitions = PyList::empty(py);
        for _ in 0..reader.count()? {
            let index = i32::from_be_bytes(reader.array()?);
            let size = reader.bytes_size()?;
            let start = reader.at;
            reader.read(size)?;
            partitions.append((index, start, start + size))?;
            reader.skip_tags()?;
        }
        reader.skip_tags()?;
        topics.append((PyBytes::new(py, name), partitions))?;
    }
    reader.skip_tags()?;
    (id, acks, topics).into_pyobject(py)
}

fn bad(what: &str, at: usize) -> PyErr {
    PyValueError::new_err(format!("{what} at byte {at}"))
}

struct Reader<'a> {
    data: &'a [u8],
    at: usize,
    is_flexible: bool,
    items_left: usize,
}

impl<'a> Reader<'a> {
    fn read(&mut self, size: usize) -> PyResult<&'a [u8]> {
        let end = self.at.checked_add(size);
        let taken = end.and_then(|end| self.data.get(self.at..end));
        let taken = taken.ok_or_else(|| bad("the request ends early", self.at))?;
        self.at += size;
        Ok(taken)
    }

    fn array<const SIZE: usize>(&mut self) -> PyResult<[u8; SIZE]> {
        let taken = self.read(SIZE)?;
        taken.try_into().map_err(|_| bad("the request ends early", self.at))
    }

    fn varint(&mut self) -> PyResult<usize> {
        let mut value = 0u64;
        for shift in (0..35).step_by(7) {
            let [byte] = self.array()?;
            value |= u64::from(byte & 0x7F) << shift;
            if byte < 0x80 {
                return usize::try_from(value).map_err(|_| bad("a number too large", self.at));
            }
        }
        Err(bad("a number that is too long", self.at))
    }

    /// A string; None: null.
    fn text(&mut self) -> PyResult<Option<&'a [u8]>> {
        let size = match self.is_flexible {
            true => self.varint()?.checked_sub(1),
            false => usize::try_from(i16::from_be_bytes(self.array()?)).ok(),
        };
        size.map(|size| self.read(size)).transpose()
    }

    /// The size of bytes; those that are null have none.
    fn bytes_size(&mut self) -> PyResult<usize> {
        Ok(match self.is_flexible {
            true => self.varint()?.saturating_sub(1),
            false => usize::try_from(i32::from_be_bytes(self.array()?)).unwrap_or(0),
        })
    }

    fn count(&mut self) -> PyResult<usize> {
        let count = self.bytes_size()?;
        let left = self.items_left.checked_sub(count);
        self.items_left = left.ok_or_else(|| bad("too many elements in arrays", self.at))?;
        Ok(count)
    }

    fn skip_tags(&mut self) -> PyResult<()> {
        if !self.is_flexible {
            return Ok(());
        }
        for _ in 0..self.varint()? {
            self.varint()?;
            let size = self.varint()?;
            self.read(size)?;
        }
        Ok(())
    }
}
