//! Messages taken from Python: from `Record` objects and from Arrow columns.
//!
//! Only pointers are taken; the objects are held until the append is over, so that the encoding can
//! run without the interpreter. `bytes` and `str` never change, and an Arrow buffer that its owner
//! changes meanwhile yields odd bytes but never an access outside it.

use pyo3::ffi;
use pyo3::prelude::*;
use pyo3::types::{PyBytes, PyInt, PyList, PyString, PyTuple};
use pyo3::Borrowed;

use crate::bytes::View;
use crate::errors::Refusal;
use crate::message::{Header, Message, Tags};
use crate::python::{classes, unbound, Encoded, RecordFields};

/// The most that a character takes in UTF-8.
const BYTES_PER_CHARACTER: usize = 4;

/// What a message points into.
pub struct Held<'py> {
    _objects: [Bound<'py, PyAny>; 4],
    _lists: Option<Box<Lists<'py>>>,
}

/// Lists that only some messages need: several tags, headers, text with escapes.
#[derive(Default)]
struct Lists<'py> {
    tags: Vec<&'py [u8]>,
    headers: Vec<Header<'py>>,
    copies: Vec<Encoded<'py>>,
}

/// Take a record's message. It must not be used longer than what holds it.
#[inline]
pub fn extract_record<'py>(record: &Bound<'py, PyAny>) -> PyResult<(Message<'py>, Held<'py>)> {
    let py = record.py();
    let classes = classes(py)?;
    let fields = &classes.record_fields;
    if !fields.is_exact(record) && !record.is_instance(classes.record.bind(py))? {
        return Err(wrong("record", "a Record", record));
    }
    let value = fields.get(record, RecordFields::VALUE)?;
    let key = fields.get(record, RecordFields::KEY)?;
    let tags = fields.get(record, RecordFields::TAGS)?;
    let headers = fields.get(record, RecordFields::HEADERS)?;
    let mut lists = None;
    let message = Message {
        value: extract_bytes(&value, "value")?,
        key: extract_bytes(&key, "key")?,
        tags: extract_tags(&tags, &mut lists)?,
        headers: extract_headers(&headers, &mut lists)?,
        timestamp_ms: extract_int(&fields.get(record, RecordFields::TIMESTAMP)?, "timestamp_ms")?,
        expires_at_ms: extract_int(&fields.get(record, RecordFields::EXPIRES)?, "expires_at_ms")?,
    };
    Ok((message, Held { _objects: [value, key, tags, headers], _lists: lists }))
}

fn wrong(field: &str, expected: &str, found: &Bound<'_, PyAny>) -> PyErr {
    let kind = found.get_type().name().map_or_else(|_| "?".into(), |name| name.to_string());
    Refusal::bad(format!("{field} must be {expected}, not {kind}")).raise(found.py())
}

/// Bytes, or None. The object must be held as long as they are used.
#[inline]
pub fn extract_bytes<'py>(found: &Bound<'py, PyAny>, field: &str) -> PyResult<Option<&'py [u8]>> {
    if found.is_none() {
        return Ok(None);
    }
    match found.cast::<PyBytes>() {
        // SAFETY: bytes never change, and `Taken` holds the object.
        Ok(bytes) => Ok(Some(unsafe { unbound(bytes.as_bytes()) })),
        Err(_) => Err(wrong(field, "bytes or None", found)),
    }
}

/// An int64, or None.
#[inline]
pub fn extract_int(found: &Bound<'_, PyAny>, field: &str) -> PyResult<Option<i64>> {
    if found.is_none() {
        return Ok(None);
    }
    int64(found, field).map(Some)
}

/// An int64.
#[inline]
pub fn int64(found: &Bound<'_, PyAny>, field: &str) -> PyResult<i64> {
    if found.cast::<PyInt>().is_err() {
        return Err(wrong(field, "a 64-bit int", found));
    }
    // SAFETY: the object is an int; -1 may be an error.
    let value = unsafe { ffi::PyLong_AsLongLong(found.as_ptr()) };
    if value == -1 && PyErr::take(found.py()).is_some() {
        return Err(wrong(field, "a 64-bit int", found));
    }
    Ok(value)
}

/// A bound: an int of any size, of which int64 keeps what matters.
#[derive(Clone, Copy)]
pub struct Bound64(pub i64);

impl<'a, 'py> FromPyObject<'a, 'py> for Bound64 {
    type Error = PyErr;

    fn extract(object: Borrowed<'a, 'py, PyAny>) -> PyResult<Self> {
        let mut overflow = 0;
        // SAFETY: the object is live; -1 may be an error, which is then set.
        let value = unsafe { ffi::PyLong_AsLongLongAndOverflow(object.as_ptr(), &mut overflow) };
        match overflow {
            0 if value == -1 => match PyErr::take(object.py()) {
                Some(error) => Err(error),
                None => Ok(Self(value)),
            },
            0 => Ok(Self(value)),
            1.. => Ok(Self(i64::MAX)),
            _ => Ok(Self(i64::MIN)),
        }
    }
}

#[inline]
fn extract_tags<'py>(
    found: &Bound<'py, PyAny>,
    lists: &mut Option<Box<Lists<'py>>>,
) -> PyResult<Tags<'py>> {
    let Ok(tags) = found.cast::<PyTuple>() else {
        return Err(wrong("tags", "a tuple of str", found));
    };
    match tags.len() {
        0 => Ok(Tags::None),
        1 => {
            let tag = Encoded::new(&tags.get_item(0)?, "tags: a tag")?;
            let bytes = tag.bytes();
            keep_copy(tag, lists);
            Ok(Tags::One(bytes))
        }
        count => {
            let mut all = Vec::with_capacity(count);
            for tag in tags.iter() {
                let tag = Encoded::new(&tag, "tags: a tag")?;
                all.push(tag.bytes());
                keep_copy(tag, lists);
            }
            let lists = lists.get_or_insert_default();
            lists.tags = all;
            // SAFETY: the list is on the heap, held with the message and not changed any more.
            Ok(Tags::Many(unsafe { unbound_list(&lists.tags) }))
        }
    }
}

/// A string of the record lives as long as the record's fields are held; a copy must be kept.
#[inline]
fn keep_copy<'py>(text: Encoded<'py>, lists: &mut Option<Box<Lists<'py>>>) {
    if text.is_copy() {
        lists.get_or_insert_default().copies.push(text);
    }
}

#[inline]
fn extract_headers<'py>(
    found: &Bound<'py, PyAny>,
    lists: &mut Option<Box<Lists<'py>>>,
) -> PyResult<&'py [Header<'py>]> {
    let expected = "a tuple of (str, bytes or None) tuples";
    let Ok(headers) = found.cast::<PyTuple>() else {
        return Err(wrong("headers", expected, found));
    };
    if headers.is_empty() {
        return Ok(&[]);
    }
    let mut all = Vec::with_capacity(headers.len());
    for header in headers.iter() {
        let pair = header.cast::<PyTuple>().ok().filter(|pair| pair.len() == 2);
        let Some(pair) = pair else {
            return Err(wrong("headers", expected, &header));
        };
        let name = Encoded::new(&pair.get_item(0)?, "headers: a name")?;
        let value = extract_bytes(&pair.get_item(1)?, "headers: a value")?;
        all.push((name.bytes(), value));
        keep_copy(name, lists);
    }
    let lists = lists.get_or_insert_default();
    lists.headers = all;
    // SAFETY: as for the tags.
    Ok(unsafe { unbound_list(&lists.headers) })
}

/// A list freed from the borrow of its owner; see `unbound`.
unsafe fn unbound_list<'a, T>(list: &[T]) -> &'a [T] {
    std::slice::from_raw_parts(list.as_ptr(), list.len())
}

/// The producer's text, which must be able to stand in a property.
pub fn extract_producer<'py>(found: &Bound<'py, PyAny>) -> PyResult<Option<Encoded<'py>>> {
    if found.is_none() {
        return Ok(None);
    }
    let text = Encoded::new(found, "producer")?;
    if text.is_copy() || !crate::message::is_plain_text(text.bytes()) {
        return Err(Refusal::bad("producer cannot stand in a property").raise(found.py()));
    }
    Ok(Some(text))
}

/// The header of a Kafka batch whose values are tags; empty: none is.
pub fn extract_tag_header<'py>(
    found: Option<&Bound<'py, PyAny>>,
) -> PyResult<Option<Encoded<'py>>> {
    let Some(found) = found.filter(|found| !found.is_none()) else {
        return Ok(None);
    };
    let text = Encoded::new(found, "tag_header")?;
    let is_plain = text.bytes().is_empty() || crate::message::is_plain_text(text.bytes());
    if text.is_copy() || !is_plain {
        return Err(Refusal::bad("tag_header cannot stand in a property").raise(found.py()));
    }
    Ok(Some(text))
}

/// The messages of many records.
pub struct Many<'py> {
    pub messages: Vec<Message<'py>>,
    _held: Vec<Held<'py>>,
}

impl<'py> Many<'py> {
    pub fn new(records: &Bound<'py, PyAny>) -> PyResult<Self> {
        let count = records.len().unwrap_or(0);
        let mut messages = Vec::with_capacity(count);
        let mut held = Vec::with_capacity(count);
        if let Ok(list) = records.cast_exact::<PyList>() {
            for record in list.iter() {
                let (message, objects) = extract_record(&record)?;
                messages.push(message);
                held.push(objects);
            }
        } else {
            for record in records.try_iter()? {
                let (message, objects) = extract_record(&record?)?;
                messages.push(message);
                held.push(objects);
            }
        }
        Ok(Self { messages, _held: held })
    }
}

/// Whether every one of a list's records surely has at most `size_max` bytes. False may only mean
/// that the caller has to check more closely.
#[pyfunction]
pub fn all_fit(records: &Bound<'_, PyAny>, size_max: usize) -> PyResult<bool> {
    let Ok(list) = records.cast_exact::<PyList>() else {
        return Ok(false);
    };
    let fields = &classes(records.py())?.record_fields;
    for record in list.iter() {
        if !fields.is_exact(&record) {
            return Ok(false);
        }
        let headers = fields.get(&record, RecordFields::HEADERS)?;
        if !headers.cast::<PyTuple>().is_ok_and(|headers| headers.is_empty()) {
            return Ok(false);
        }
        let mut size = 0;
        for field in [RecordFields::VALUE, RecordFields::KEY] {
            let found = fields.get(&record, field)?;
            match found.cast::<PyBytes>() {
                Ok(bytes) => size += bytes.as_bytes().len(),
                Err(_) if found.is_none() => (),
                Err(_) => return Ok(false),
            }
        }
        let tags = fields.get(&record, RecordFields::TAGS)?;
        let Ok(tags) = tags.cast::<PyTuple>() else {
            return Ok(false);
        };
        for tag in tags.iter() {
            let Ok(tag) = tag.cast::<PyString>() else {
                return Ok(false);
            };
            size += BYTES_PER_CHARACTER * tag.len()?;
        }
        if size > size_max {
            return Ok(false);
        }
    }
    Ok(!list.is_empty())
}

/// A binary or string column of Arrow: data, offsets, validity.
struct Column {
    data: &'static [u8],
    offsets: &'static [u8],
    is_wide: bool,
    validity: Option<&'static [u8]>,
    first: usize,
    _held: [Option<View>; 3],
}

impl Column {
    fn new(name: &str, column: &Bound<'_, PyAny>, count: usize) -> PyResult<Self> {
        let py = column.py();
        let refused = |what: &str| Refusal::bad(format!("{name}: {what}")).raise(py);
        let parts = column
            .cast::<PyTuple>()
            .ok()
            .filter(|parts| parts.len() == 5)
            .ok_or_else(|| refused("expected data, offsets, width, validity, first row"))?;
        let width = match int64(&parts.get_item(2)?, name)? {
            4 => 4,
            8 => 8,
            _ => return Err(refused("offsets have 4 or 8 bytes")),
        };
        let first = usize::try_from(int64(&parts.get_item(4)?, name)?)
            .map_err(|_| refused("the first row is negative"))?;
        let data = View::readable(&parts.get_item(0)?)?;
        let offsets = View::readable(&parts.get_item(1)?)?;
        let validity = parts.get_item(3)?;
        let validity = if validity.is_none() { None } else { Some(View::readable(&validity)?) };
        let last = first.checked_add(count).ok_or_else(|| refused("too many rows"))?;
        let has_validity = validity.as_ref().is_none_or(|view| view.size() >= last.div_ceil(8));
        if offsets.size() / width <= last || !has_validity {
            return Err(refused("the buffers are too small for the rows"));
        }
        // SAFETY: the views are kept beside the slices, and their memory does not move.
        Ok(unsafe {
            Self {
                data: unbound(data.bytes()),
                offsets: unbound(offsets.bytes()),
                is_wide: width == 8,
                validity: validity.as_ref().map(|view| unbound(view.bytes())),
                first,
                _held: [Some(data), Some(offsets), validity],
            }
        })
    }

    #[inline(always)]
    fn offset(&self, at: usize) -> Option<usize> {
        if self.is_wide {
            let field = self.offsets.get(at * 8..at * 8 + 8)?;
            usize::try_from(i64::from_le_bytes(field.try_into().ok()?)).ok()
        } else {
            let field = self.offsets.get(at * 4..at * 4 + 4)?;
            usize::try_from(i32::from_le_bytes(field.try_into().ok()?)).ok()
        }
    }

    #[inline(always)]
    fn range(&self, row: usize) -> Option<&[u8]> {
        let at = self.first + row;
        self.data.get(self.offset(at)?..self.offset(at + 1)?)
    }

    /// The cell of a row, which may be null; `None` when it is outside the data.
    #[inline(always)]
    fn get(&self, row: usize) -> Option<Option<&[u8]>> {
        let at = self.first + row;
        let cell = self.range(row)?;
        if let Some(validity) = self.validity {
            let byte = validity.get(at / 8).copied().unwrap_or(0);
            if byte >> (at % 8) & 1 == 0 {
                return Some(None);
            }
        }
        Some(Some(cell))
    }
}

#[inline(always)]
fn cell(column: &Option<Column>, row: usize) -> Option<Option<&[u8]>> {
    match column {
        Some(column) => column.get(row),
        None => Some(None),
    }
}

/// Rows of Arrow columns.
pub struct Columns {
    count: usize,
    values: Column,
    keys: Option<Column>,
    tags: Option<Column>,
    timestamps: Option<View>,
}

impl Columns {
    pub fn new(
        count: i64,
        values: &Bound<'_, PyAny>,
        keys: &Bound<'_, PyAny>,
        tags: &Bound<'_, PyAny>,
        timestamps: &Bound<'_, PyAny>,
    ) -> PyResult<Self> {
        let py = values.py();
        let Some(count) = usize::try_from(count).ok().filter(|&count| count > 0) else {
            return Err(Refusal::bad("count: an append takes at least one row").raise(py));
        };
        let optional = |name: &str, column: &Bound<'_, PyAny>| {
            if column.is_none() {
                Ok(None)
            } else {
                Column::new(name, column, count).map(Some)
            }
        };
        let stamps = if timestamps.is_none() { None } else { Some(View::readable(timestamps)?) };
        if stamps.as_ref().is_some_and(|stamps| stamps.size() / 8 < count) {
            return Err(Refusal::bad("timestamps: there are fewer than rows").raise(py));
        }
        Ok(Self {
            count,
            values: Column::new("values", values, count)?,
            keys: optional("keys", keys)?,
            tags: optional("tags", tags)?,
            timestamps: stamps,
        })
    }

    fn timestamp(&self, row: usize) -> Option<i64> {
        let field = self.timestamps.as_ref()?.bytes().get(row * 8..row * 8 + 8)?;
        Some(i64::from_le_bytes(field.try_into().ok()?))
    }
}

impl Columns {
    /// The rows as messages.
    pub fn messages(&self) -> Result<Vec<Message<'_>>, Refusal> {
        let mut messages = Vec::with_capacity(self.count);
        for row in 0..self.count {
            let Some(message) = self.message(row) else {
                let message = format!("row {row} of the columns is outside their data");
                return Err(Refusal::bad(message));
            };
            messages.push(message);
        }
        Ok(messages)
    }

    #[inline(always)]
    fn message(&self, row: usize) -> Option<Message<'_>> {
        Some(Message {
            value: self.values.get(row)?,
            key: cell(&self.keys, row)?,
            tags: match cell(&self.tags, row)? {
                Some(tag) => Tags::One(tag),
                None => Tags::None,
            },
            headers: &[],
            timestamp_ms: self.timestamp(row),
            expires_at_ms: None,
        })
    }
}
