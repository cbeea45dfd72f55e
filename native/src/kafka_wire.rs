//! Kafka batches on their way to a client: found, checked, and handed on as they lie in the log.

use pyo3::prelude::*;
use pyo3::types::{PyBytes, PyList, PyTuple};

use crate::bytes::{i16_at, i32_at, i64_at, View};
use crate::codec::maybe_detached;
use crate::kafka::use_tag_header;
use crate::properties::Properties;
use crate::python::{damage_or_none, Encoded};
use crate::queue::BATCH_UNIT_SIZE;
use crate::record::{Reason, Record, INNER_BATCH};

/// Bodies below this size are copied together: a part of its own costs more than the copy.
const JOINED_SIZE_MAX: usize = 2 << 10;

/// A run of the answer: a range of the log file, or small bodies one after the other.
enum Part {
    Range(usize, usize),
    Joined(Vec<u8>),
}

struct Page {
    parts: Vec<Part>,
    next_offset: i64,
    size: usize,
    damage: Option<(i64, Reason)>,
    is_foreign: bool,
}

struct Wanted<'a> {
    log: &'a [u8],
    base: i64,
    topic: &'a [u8],
    queue_id: i32,
    until: i64,
    max_size: usize,
    deleted: &'a [(i64, i64)],
    strict: bool,
}

#[pyfunction]
pub fn crc32c(py: Python<'_>, data: &Bound<'_, PyAny>) -> PyResult<u32> {
    let view = View::readable(data)?;
    let bytes = view.bytes();
    Ok(maybe_detached(py, bytes.len(), || ::crc32c::crc32c(bytes)))
}

#[pyfunction]
pub fn set_tag_header(name: &Bound<'_, PyAny>) -> PyResult<()> {
    use_tag_header(Encoded::new(name, "name")?.bytes());
    Ok(())
}

/// The bodies of consecutive batch-queue units from `start_offset` on, below `until`, at most
/// `max_size` bytes but at least one: (parts, next offset, size, whether the record at the next
/// offset is not a whole Kafka batch, damage). A part is bytes, or (index, size) in `log`.
#[pyfunction]
#[pyo3(signature = (
    log, base, units, start_offset, until, topic, queue_id, max_size, deleted, strict = false
))]
#[allow(clippy::too_many_arguments)]
pub fn slice_batches<'py>(
    py: Python<'py>,
    log: &Bound<'py, PyAny>,
    base: i64,
    units: &Bound<'py, PyAny>,
    start_offset: i64,
    until: i64,
    topic: &Bound<'py, PyAny>,
    queue_id: i32,
    max_size: i64,
    deleted: Vec<(i64, i64)>,
    strict: bool,
) -> PyResult<Bound<'py, PyTuple>> {
    let log = View::readable(log)?;
    let units = View::readable(units)?;
    let topic = Encoded::new(topic, "topic")?;
    let wanted = Wanted {
        log: log.bytes(),
        base,
        topic: topic.bytes(),
        queue_id,
        until,
        max_size: usize::try_from(max_size).unwrap_or(0),
        deleted: &deleted,
        strict,
    };
    let units = units.bytes();
    let page = maybe_detached(py, wanted.max_size, || slice(&wanted, units, start_offset));
    let parts = PyList::empty(py);
    for part in &page.parts {
        match part {
            Part::Range(index, size) => parts.append((*index, *size))?,
            Part::Joined(data) => parts.append(PyBytes::new(py, data))?,
        }
    }
    let damage = damage_or_none(py, page.damage)?;
    (parts, page.next_offset, page.size, page.is_foreign, damage).into_pyobject(py)
}

fn slice(wanted: &Wanted<'_>, units: &[u8], start_offset: i64) -> Page {
    let mut page = Page {
        parts: Vec::new(),
        next_offset: start_offset,
        size: 0,
        damage: None,
        is_foreign: false,
    };
    for unit in units.chunks_exact(BATCH_UNIT_SIZE) {
        let (Some(position), Some(size), Some(base), Some(count)) =
            (i64_at(unit, 0), i32_at(unit, 8), i64_at(unit, 28), i16_at(unit, 36))
        else {
            break;
        };
        let end = base.saturating_add(count.into());
        if end <= start_offset {
            continue;
        }
        let index = usize::try_from(position - wanted.base).unwrap_or(usize::MAX);
        if end > wanted.until || index >= wanted.log.len() {
            break;
        }
        match body_of(wanted, (index, position, size), (base, count.into())) {
            Ok(Some((at, length))) => {
                let fits = page.size + length <= wanted.max_size;
                if page.size > 0 && !fits {
                    break;
                }
                page.add(wanted.log, at, length);
                page.next_offset = end;
                if page.size >= wanted.max_size {
                    break;
                }
            }
            Ok(None) => {
                page.is_foreign = true;
                break;
            }
            Err(reason) => {
                page.damage = Some((position, reason));
                break;
            }
        }
    }
    page
}

impl Page {
    fn add(&mut self, log: &[u8], at: usize, length: usize) {
        self.size += length;
        if length >= JOINED_SIZE_MAX {
            self.parts.push(Part::Range(at, length));
            return;
        }
        let body = log.get(at..at + length).unwrap_or(&[]);
        match self.parts.last_mut() {
            Some(Part::Joined(data)) => data.extend_from_slice(body),
            _ => self.parts.push(Part::Joined(body.to_vec())),
        }
    }
}

/// Where the Kafka batch of a unit is stored; None when the record holds something else, or not all of
/// its messages may be shown.
fn body_of(
    wanted: &Wanted<'_>,
    (index, position, size): (usize, i64, i32),
    (base, count): (i64, i64),
) -> Result<Option<(usize, usize)>, Reason> {
    let record = Record::parse(wanted.log, index)?;
    if record.data.len() as i64 != i64::from(size) {
        return Err("unit and record do not agree on the size");
    }
    record.verify_once(position, wanted.strict)?;
    if record.queue_id != wanted.queue_id || record.topic != wanted.topic {
        return Err("the unit points at a record of another queue");
    }
    let found = Properties::parse(record.properties);
    if found.inner_range() != Some((base, count)) || record.queue_offset != base {
        return Err("unit and record do not agree on the offsets");
    }
    let end = base.saturating_add(count);
    let is_whole = !wanted.deleted.iter().any(|range| range.0 < end && base < range.1);
    let is_batch = record.sys_flag & INNER_BATCH != 0 && !record.is_compressed();
    if !is_batch || !found.is_kafka() || !is_whole {
        return Ok(None);
    }
    let at = record.body.as_ptr() as usize - wanted.log.as_ptr() as usize;
    Ok(Some((at, record.body.len())))
}
