//! Commits of offsets, as the offset state machine stores them.
//!
//! `penstock.meta.state.offset_codec` has the reference implementations, which are the specification.

use pyo3::prelude::*;
use pyo3::types::{PyBytes, PyDict, PyList, PyString};

const OFFSETS_TABLE: u8 = 0x21;
const NAME_SIZE_MAX: usize = 65_535;
const METADATA_SIZE_MAX: usize = 4_096;
const ROW_OVERHEAD: usize = 16;

/// Reads MessagePack; None wherever it finds what it does not expect.
struct Parser<'a> {
    data: &'a [u8],
    at: usize,
}

impl<'a> Parser<'a> {
    fn read(&mut self, size: usize) -> Option<&'a [u8]> {
        let end = self.at.checked_add(size)?;
        let found = self.data.get(self.at..end)?;
        self.at = end;
        Some(found)
    }

    fn number(&mut self, size: usize) -> Option<u64> {
        Some(self.read(size)?.iter().fold(0, |number, byte| number << 8 | u64::from(*byte)))
    }

    fn array(&mut self) -> Option<usize> {
        match self.number(1)? as u8 {
            head @ 0x90..=0x9f => Some(usize::from(head & 0x0f)),
            0xdc => Some(self.number(2)? as usize),
            0xdd => Some(self.number(4)? as usize),
            _ => None,
        }
    }

    fn text(&mut self) -> Option<&'a str> {
        let size = match self.number(1)? as u8 {
            head @ 0xa0..=0xbf => usize::from(head & 0x1f),
            0xd9 => self.number(1)? as usize,
            0xda => self.number(2)? as usize,
            0xdb => self.number(4)? as usize,
            _ => return None,
        };
        std::str::from_utf8(self.read(size)?).ok()
    }

    fn name(&mut self) -> Option<&'a str> {
        let name = self.text()?;
        let fits = name.len() <= NAME_SIZE_MAX || name.chars().count() <= NAME_SIZE_MAX;
        (!name.is_empty() && fits).then_some(name)
    }

    fn int(&mut self) -> Option<i64> {
        match self.number(1)? as u8 {
            head @ 0x00..=0x7f => Some(i64::from(head)),
            head @ 0xe0..=0xff => Some(i64::from(head as i8)),
            0xcc => Some(self.number(1)? as i64),
            0xcd => Some(self.number(2)? as i64),
            0xce => Some(self.number(4)? as i64),
            0xcf => i64::try_from(self.number(8)?).ok(),
            0xd0 => Some(i64::from(self.number(1)? as i8)),
            0xd1 => Some(i64::from(self.number(2)? as i16)),
            0xd2 => Some(i64::from(self.number(4)? as i32)),
            0xd3 => Some(self.number(8)? as i64),
            _ => None,
        }
    }

    fn at_least(&mut self, least: i64) -> Option<i64> {
        self.int().filter(|number| *number >= least)
    }
}

fn push_text(key: &mut Vec<u8>, text: &str) {
    for byte in text.bytes() {
        key.push(byte);
        if byte == 0 {
            key.push(0xff);
        }
    }
    key.extend_from_slice(&[0, 1]);
}

/// (namespace, group, keys, rows, lowest epoch, highest epoch, newest commit)
type Packed<'py> = (
    Bound<'py, PyString>,
    Bound<'py, PyString>,
    Bound<'py, PyList>,
    Bound<'py, PyList>,
    i64,
    i64,
    i64,
);

fn pack_group<'py>(py: Python<'py>, parser: &mut Parser<'_>) -> Option<Packed<'py>> {
    if parser.array()? != 3 {
        return None;
    }
    let (namespace, group) = (parser.name()?, parser.name()?);
    let mut key = vec![OFFSETS_TABLE];
    push_text(&mut key, namespace);
    push_text(&mut key, group);
    let prefix = key.len();
    let (keys, rows) = (PyList::empty(py), PyList::empty(py));
    let (mut epoch_min, mut epoch_max, mut newest) = (i64::MAX, 0, 0);
    let mut row = Vec::with_capacity(64);
    for _ in 0..parser.array()? {
        let fields = parser.array()?;
        if !(5..=7).contains(&fields) {
            return None;
        }
        key.truncate(prefix);
        push_text(&mut key, parser.name()?);
        let (offset, epoch) = (parser.at_least(0)?, parser.at_least(1)?);
        let (sequence, committed) = (parser.at_least(0)?, parser.at_least(0)?);
        let leader_epoch = if fields > 5 { parser.at_least(-i64::MAX)? } else { -1 };
        let metadata = if fields > 6 { parser.text()? } else { "" };
        if metadata.len() > METADATA_SIZE_MAX && metadata.chars().count() > METADATA_SIZE_MAX {
            return None;
        }
        row.clear();
        for number in [epoch, sequence, offset, leader_epoch, committed] {
            row.extend_from_slice(&number.to_be_bytes());
        }
        row.extend_from_slice(metadata.as_bytes());
        keys.append(PyBytes::new(py, &key)).ok()?;
        rows.append(PyBytes::new(py, &row)).ok()?;
        epoch_min = epoch_min.min(epoch);
        epoch_max = epoch_max.max(epoch);
        newest = newest.max(committed);
    }
    let names = (PyString::new(py, namespace), PyString::new(py, group));
    Some((names.0, names.1, keys, rows, epoch_min, epoch_max, newest))
}

/// The rows of a request that saves offsets and has no id; None for any other request, and for one
/// that is not as it should be: who decodes it says what is wrong.
#[pyfunction]
pub fn pack_offsets<'py>(py: Python<'py>, data: &[u8]) -> Option<(i64, Vec<Packed<'py>>)> {
    let mut parser = Parser { data, at: 0 };
    if parser.array()? != 3 {
        return None;
    }
    let time_ms = parser.at_least(0)?;
    if parser.array()? != 2 || parser.text()? != "save-offsets" {
        return None;
    }
    let mut groups = Vec::new();
    for _ in 0..parser.array()? {
        groups.push(pack_group(py, &mut parser)?);
    }
    (parser.text()?.is_empty() && parser.at == data.len()).then_some((time_ms, groups))
}

/// The number of each row that was not put, with the row that is there.
type Refused<'py> = Vec<(usize, Bound<'py, PyAny>)>;

/// Put each row into `changes` whose first `compared` bytes are greater than those of the row that
/// is there: in `changes`, in the two caches, or as `get` finds it. Return the bytes that were put,
/// and (number, row that is there) of those that were not.
#[pyfunction]
pub fn put_newer<'py>(
    keys: &Bound<'py, PyList>,
    rows: &Bound<'py, PyList>,
    compared: usize,
    changes: &Bound<'py, PyDict>,
    caches: (Bound<'py, PyDict>, Bound<'py, PyDict>),
    get: &Bound<'py, PyAny>,
) -> PyResult<(usize, Refused<'py>)> {
    let (mut size, mut refused) = (0, Vec::new());
    for (number, (key, row)) in keys.iter().zip(rows.iter()).enumerate() {
        let known = match changes.get_item(&key)? {
            Some(known) => Some(known),
            None => match caches.0.get_item(&key)? {
                Some(known) => Some(known),
                None => caches.1.get_item(&key)?,
            },
        };
        let found = match known {
            Some(known) => known,
            None => get.call1((&key,))?,
        };
        let bytes = row.cast::<PyBytes>()?.as_bytes();
        if !found.is_none() {
            let held = found.cast::<PyBytes>()?.as_bytes();
            if held[..compared.min(held.len())] >= bytes[..compared.min(bytes.len())] {
                refused.push((number, found));
                continue;
            }
        }
        size += key.cast::<PyBytes>()?.as_bytes().len() + bytes.len() + ROW_OVERHEAD;
        changes.set_item(key, row)?;
    }
    Ok((size, refused))
}
