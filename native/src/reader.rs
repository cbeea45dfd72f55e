//! Reading, for Python: pages of objects, pages of columns, single inner batches.
//!
//! Everything that touches the log happens without the interpreter (a cold page may take as long as
//! the disk does), then the objects are built.

use pyo3::prelude::*;
use pyo3::types::{PyList, PyTuple};

use crate::bytes::{i32_at, View};
use crate::codec::maybe_detached;
use crate::columns::Columns;
use crate::entry::{Arena, Entry, Stamps};
use crate::errors::Refusal;
use crate::extract::{extract_bytes, Bound64};
use crate::kafka::{read_kafka, read_rocketmq};
use crate::python::{damage_or_none, Encoded};
use crate::queue::Kind;
use crate::read::{read_batches as scan_batches, read_simple, LogFile, Page, Sink, Wanted};

/// So many units tell whether there is much to read.
const WORK_UNITS: usize = 64;
const ROWS_RESERVED_MAX: usize = 1 << 16;

/// What the readers have in common.
pub struct Request<'py> {
    log: View,
    units: View,
    base: i64,
    topic: Encoded<'py>,
    queue_id: i32,
    deleted: Vec<(i64, i64)>,
    now_ms: i64,
    tag: Option<Encoded<'py>>,
    strict: bool,
}

impl<'py> Request<'py> {
    #[allow(clippy::too_many_arguments)]
    pub fn new(
        log: &Bound<'py, PyAny>,
        base: i64,
        units: &Bound<'py, PyAny>,
        topic: &Bound<'py, PyAny>,
        queue_id: i32,
        deleted: &Bound<'py, PyAny>,
        now_ms: Bound64,
        tag: &Bound<'py, PyAny>,
        strict: bool,
    ) -> PyResult<Self> {
        Ok(Self {
            log: View::readable(log)?,
            units: View::readable(units)?,
            base,
            topic: Encoded::new(topic, "topic")?,
            queue_id,
            deleted: extract_ranges(deleted)?,
            now_ms: now_ms.0,
            tag: if tag.is_none() { None } else { Some(Encoded::new(tag, "tag")?) },
            strict,
        })
    }

    pub fn topic(&self) -> &[u8] {
        self.topic.bytes()
    }

    /// Read into `sink`.
    pub fn read<'a>(
        &'a mut self,
        py: Python<'_>,
        kind: Kind,
        key: Option<&[u8]>,
        page: &mut Page,
        arena: &'a Arena,
        sink: &mut (impl Sink<'a> + Send),
    ) {
        let units = self.units.bytes();
        let wanted = Wanted {
            deleted: std::mem::take(&mut self.deleted),
            now_ms: self.now_ms,
            tag: self.tag.as_ref().map(Encoded::bytes),
            key,
        };
        let file = LogFile {
            log: self.log.bytes(),
            base: self.base,
            topic: self.topic.bytes(),
            queue_id: self.queue_id,
            strict: self.strict,
        };
        maybe_detached(py, sizes_of(units, kind, WORK_UNITS), || match kind {
            Kind::Simple => read_simple(&file, units, &wanted, page, sink, arena),
            Kind::Batch => scan_batches(&file, units, &wanted, page, sink, arena),
        });
    }
}

pub fn extract_ranges(ranges: &Bound<'_, PyAny>) -> PyResult<Vec<(i64, i64)>> {
    if ranges.len()? == 0 {
        return Ok(Vec::new());
    }
    let ranges: Vec<(Bound64, Bound64)> = ranges.extract()?;
    Ok(ranges.into_iter().map(|(start, end)| (start.0, end.0)).collect())
}

/// How many bytes of the log the first units say that there are to read.
fn sizes_of(units: &[u8], kind: Kind, count: usize) -> usize {
    let sizes = units.chunks_exact(kind.unit_size()).take(count);
    sizes.map(|unit| i32_at(unit, 8).unwrap_or(0).max(0) as usize).sum()
}

pub fn kind_of(py: Python<'_>, kind: i64) -> PyResult<Kind> {
    match kind {
        0 => Ok(Kind::Simple),
        1 => Ok(Kind::Batch),
        _ => Err(Refusal::bad(format!("{kind} is not a kind of queue")).raise(py)),
    }
}

#[pyfunction]
#[pyo3(signature = (
    log, base, units, first_offset, topic, queue_id, max_records, max_size, deleted, now_ms, tag, key,
    strict = false
))]
#[allow(clippy::too_many_arguments)]
pub fn read_records<'py>(
    py: Python<'py>,
    log: &Bound<'py, PyAny>,
    base: i64,
    units: &Bound<'py, PyAny>,
    first_offset: i64,
    topic: &Bound<'py, PyAny>,
    queue_id: i32,
    max_records: Bound64,
    max_size: Bound64,
    deleted: &Bound<'py, PyAny>,
    now_ms: Bound64,
    tag: &Bound<'py, PyAny>,
    key: &Bound<'py, PyAny>,
    strict: bool,
) -> PyResult<Bound<'py, PyTuple>> {
    let asked = Request::new(log, base, units, topic, queue_id, deleted, now_ms, tag, strict)?;
    let page = Page::new(first_offset, max_records.0, max_size.0);
    read_objects(py, asked, Kind::Simple, page, key)
}

#[pyfunction]
#[pyo3(signature = (
    log, base, units, start_offset, topic, queue_id, max_records, max_size, deleted, now_ms, tag, key,
    strict = false
))]
#[allow(clippy::too_many_arguments)]
pub fn read_batches<'py>(
    py: Python<'py>,
    log: &Bound<'py, PyAny>,
    base: i64,
    units: &Bound<'py, PyAny>,
    start_offset: i64,
    topic: &Bound<'py, PyAny>,
    queue_id: i32,
    max_records: Bound64,
    max_size: Bound64,
    deleted: &Bound<'py, PyAny>,
    now_ms: Bound64,
    tag: &Bound<'py, PyAny>,
    key: &Bound<'py, PyAny>,
    strict: bool,
) -> PyResult<Bound<'py, PyTuple>> {
    let asked = Request::new(log, base, units, topic, queue_id, deleted, now_ms, tag, strict)?;
    let page = Page::new(start_offset, max_records.0, max_size.0);
    read_objects(py, asked, Kind::Batch, page, key)
}

fn read_objects<'py>(
    py: Python<'py>,
    mut asked: Request<'py>,
    kind: Kind,
    mut page: Page,
    key: &Bound<'py, PyAny>,
) -> PyResult<Bound<'py, PyTuple>> {
    let key = extract_bytes(key, "key")?;
    let arena = Arena::default();
    let rows = page.capacity(asked.units.size() / kind.unit_size()).min(ROWS_RESERVED_MAX);
    let mut entries = Vec::with_capacity(rows);
    asked.read(py, kind, key, &mut page, &arena, &mut entries);
    let records = build(py, &entries)?;
    let damage = damage_or_none(py, page.damage)?;
    (records, page.next_offset, page.size, damage).into_pyobject(py)
}

fn build<'py>(py: Python<'py>, entries: &[Entry<'_>]) -> PyResult<Bound<'py, PyList>> {
    crate::stored::Builder::new(py)?.list(entries)
}

#[pyfunction]
#[pyo3(signature = (
    log, base, units, kind, start_offset, topic, queue_id, max_records, max_size, deleted, now_ms,
    tag, fields, strict = false
))]
#[allow(clippy::too_many_arguments)]
pub fn read_columns<'py>(
    py: Python<'py>,
    log: &Bound<'py, PyAny>,
    base: i64,
    units: &Bound<'py, PyAny>,
    kind: i64,
    start_offset: i64,
    topic: &Bound<'py, PyAny>,
    queue_id: i32,
    max_records: Bound64,
    max_size: Bound64,
    deleted: &Bound<'py, PyAny>,
    now_ms: Bound64,
    tag: &Bound<'py, PyAny>,
    fields: i64,
    strict: bool,
) -> PyResult<Bound<'py, PyTuple>> {
    let kind = kind_of(py, kind)?;
    let mut asked = Request::new(log, base, units, topic, queue_id, deleted, now_ms, tag, strict)?;
    let mut page = Page::new(start_offset, max_records.0, max_size.0);
    let arena = Arena::default();
    let units_size = asked.units.size();
    let rows = page.capacity(units_size / kind.unit_size()).min(ROWS_RESERVED_MAX);
    let size = page.size_capacity(sizes_of(asked.units.bytes(), kind, usize::MAX));
    let mut columns = Columns::with_capacity(fields, rows, size);
    asked.read(py, kind, None, &mut page, &arena, &mut columns);
    let columns = columns.into_dict(py)?;
    let damage = damage_or_none(py, page.damage)?;
    (columns, page.next_offset, page.size, damage).into_pyobject(py)
}

#[pyfunction]
pub fn decode_inner<'py>(
    py: Python<'py>,
    body: &Bound<'py, PyAny>,
    kafka: bool,
    base_offset: i64,
    store_timestamp_ms: i64,
    leader_epoch: i64,
) -> PyResult<Bound<'py, PyList>> {
    let view = View::readable(body)?;
    let bytes = view.bytes();
    let first = Stamps {
        offset: base_offset,
        timestamp_ms: store_timestamp_ms,
        store_ms: store_timestamp_ms,
        epoch: leader_epoch,
    };
    let arena = Arena::default();
    let mut entries = Vec::new();
    let read = maybe_detached(py, bytes.len(), || match kafka {
        true => read_kafka(bytes, first, None, &arena, |entry| entries.push(entry)),
        false => read_rocketmq(bytes, first, |entry, _| entries.push(entry)),
    });
    if let Err(reason) = read {
        return Err(Refusal::bad(format!("no inner batch: {reason}")).raise(py));
    }
    build(py, &entries)
}
