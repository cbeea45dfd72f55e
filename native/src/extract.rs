//! Messages taken from Python: from `Record` objects and from Arrow columns.
//!
//! Only pointers are taken; the objects are held until the append is over, so that the encoding can
//! run without the interpreter. `bytes` and `str` never change, and an Arrow buffer that its owner
//! changes meanwhile yields odd bytes but never an access outside it.

use pyo3::ffi;
use pyo3::prelude::*;
use pyo3::types::{PyBytes, PyInt, PyTuple};

use crate::append::Rows;
use crate::bytes::View;
use crate::errors::Refusal;
use crate::message::{Header, Message, Tags};
use crate::python::{classes, unbound, Encoded, RecordFields};

/// A record's message, and the objects that it points into.
pub struct Taken<'py> {
    pub message: Message<'py>,
    _held: [Bound<'py, PyAny>; 4],
    _texts: Vec<Encoded<'py>>,
}

impl<'py> Taken<'py> {
    #[inline]
    pub fn new(record: &Bound<'py, PyAny>) -> PyResult<Self> {
        let py = record.py();
        let classes = classes(py)?;
        if !record.is_instance(classes.record.bind(py))? {
            let kind = record.get_type().name()?;
            return Err(Refusal::bad(format!("expected a Record, not {kind}")).raise(py));
        }
        let fields = &classes.record_fields;
        let value = fields.get(record, RecordFields::VALUE)?;
        let key = fields.get(record, RecordFields::KEY)?;
        let tags = fields.get(record, RecordFields::TAGS)?;
        let headers = fields.get(record, RecordFields::HEADERS)?;
        let mut texts = Vec::new();
        let message = Message {
            value: take_bytes(&value, "value")?,
            key: take_bytes(&key, "key")?,
            tags: take_tags(&tags, &mut texts)?,
            headers: take_headers(&headers, &mut texts)?,
            timestamp_ms: take_int(&fields.get(record, RecordFields::TIMESTAMP)?, "timestamp_ms")?,
            expires_at_ms: take_int(&fields.get(record, RecordFields::EXPIRES)?, "expires_at_ms")?,
        };
        Ok(Self { message, _held: [value, key, tags, headers], _texts: texts })
    }
}

fn wrong(field: &str, expected: &str, found: &Bound<'_, PyAny>) -> PyErr {
    let kind = found.get_type().name().map_or_else(|_| "?".into(), |name| name.to_string());
    Refusal::bad(format!("{field} must be {expected}, not {kind}")).raise(found.py())
}

/// Bytes, or None. The object must be held as long as they are used.
#[inline]
pub fn take_bytes<'py>(found: &Bound<'py, PyAny>, field: &str) -> PyResult<Option<&'py [u8]>> {
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
pub fn take_int(found: &Bound<'_, PyAny>, field: &str) -> PyResult<Option<i64>> {
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

#[inline]
fn take_tags<'py>(found: &Bound<'py, PyAny>, texts: &mut Vec<Encoded<'py>>) -> PyResult<Tags<'py>> {
    let Ok(tags) = found.cast::<PyTuple>() else {
        return Err(wrong("tags", "a tuple of str", found));
    };
    match tags.len() {
        0 => Ok(Tags::None),
        1 => {
            let tag = Encoded::new(&tags.get_item(0)?, "tags: a tag")?;
            let bytes = tag.bytes();
            keep_copy(tag, texts);
            Ok(Tags::One(bytes))
        }
        count => {
            let mut all = Vec::with_capacity(count);
            for tag in tags.iter() {
                let tag = Encoded::new(&tag, "tags: a tag")?;
                all.push(tag.bytes());
                keep_copy(tag, texts);
            }
            Ok(Tags::Many(all))
        }
    }
}

/// A string of the record lives as long as the record does; a copy must be kept.
#[inline]
fn keep_copy<'py>(text: Encoded<'py>, texts: &mut Vec<Encoded<'py>>) {
    if text.is_copy() {
        texts.push(text);
    }
}

#[inline]
fn take_headers<'py>(
    found: &Bound<'py, PyAny>,
    texts: &mut Vec<Encoded<'py>>,
) -> PyResult<Vec<Header<'py>>> {
    let expected = "a tuple of (str, bytes or None) tuples";
    let Ok(headers) = found.cast::<PyTuple>() else {
        return Err(wrong("headers", expected, found));
    };
    let mut all = Vec::with_capacity(headers.len());
    for header in headers.iter() {
        let pair = header.cast::<PyTuple>().ok().filter(|pair| pair.len() == 2);
        let Some(pair) = pair else {
            return Err(wrong("headers", expected, &header));
        };
        let name = Encoded::new(&pair.get_item(0)?, "headers: a name")?;
        let value = take_bytes(&pair.get_item(1)?, "headers: a value")?;
        all.push((name.bytes(), value));
        keep_copy(name, texts);
    }
    Ok(all)
}

/// The producer's text, which must be able to stand in a property.
pub fn take_producer<'py>(found: &Bound<'py, PyAny>) -> PyResult<Option<Encoded<'py>>> {
    if found.is_none() {
        return Ok(None);
    }
    let text = Encoded::new(found, "producer")?;
    if text.is_copy() || !crate::message::is_plain_text(text.bytes()) {
        return Err(Refusal::bad("producer cannot stand in a property").raise(found.py()));
    }
    Ok(Some(text))
}

pub struct Many<'py>(pub Vec<Taken<'py>>);

/// The messages of many records, without the objects that they point into: those stay behind with
/// the interpreter.
pub struct Messages<'a>(pub Vec<&'a Message<'a>>);

impl<'py> Many<'py> {
    pub fn new(records: &Bound<'py, PyAny>) -> PyResult<Self> {
        let mut all = Vec::with_capacity(records.len().unwrap_or(0));
        for record in records.try_iter()? {
            all.push(Taken::new(&record?)?);
        }
        Ok(Self(all))
    }

    pub fn messages(&self) -> Messages<'_> {
        Messages(self.0.iter().map(|taken| &taken.message).collect())
    }
}

impl Rows for Messages<'_> {
    fn count(&self) -> usize {
        self.0.len()
    }

    #[inline]
    fn message<R>(&self, row: usize, look: impl FnOnce(&Message<'_>) -> R) -> R {
        look(self.0[row])
    }
}

/// A binary or string column of Arrow: data, offsets, validity.
struct Column {
    data: View,
    offsets: View,
    width: usize,
    validity: Option<View>,
    first: usize,
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
        let validity = parts.get_item(3)?;
        let width = int64(&parts.get_item(2)?, name)?;
        let first = int64(&parts.get_item(4)?, name)?;
        let column = Self {
            data: View::readable(&parts.get_item(0)?)?,
            offsets: View::readable(&parts.get_item(1)?)?,
            width: if width == 4 { 4 } else { 8 },
            validity: if validity.is_none() { None } else { Some(View::readable(&validity)?) },
            first: usize::try_from(first).map_err(|_| refused("the first row is negative"))?,
        };
        if width != 4 && width != 8 {
            return Err(refused("offsets have 4 or 8 bytes"));
        }
        let last = column.first.checked_add(count).ok_or_else(|| refused("too many rows"))?;
        let has_validity =
            column.validity.as_ref().is_none_or(|view| view.size() >= last.div_ceil(8));
        if column.offsets.size() / column.width <= last || !has_validity {
            return Err(refused("the buffers are too small for the rows"));
        }
        for row in 0..count {
            if column.range(row).is_none() {
                return Err(refused("a row lies outside the data"));
            }
        }
        Ok(column)
    }

    #[inline]
    fn offset(&self, at: usize) -> Option<usize> {
        let field = self.offsets.bytes().get(at * self.width..(at + 1) * self.width)?;
        if self.width == 4 {
            usize::try_from(i32::from_le_bytes(field.try_into().ok()?)).ok()
        } else {
            usize::try_from(i64::from_le_bytes(field.try_into().ok()?)).ok()
        }
    }

    #[inline]
    fn range(&self, row: usize) -> Option<&[u8]> {
        let at = self.first + row;
        self.data.bytes().get(self.offset(at)?..self.offset(at + 1)?)
    }

    /// The cell of a row; `None` is null.
    #[inline]
    fn get(&self, row: usize) -> Option<&[u8]> {
        let at = self.first + row;
        if let Some(validity) = &self.validity {
            let byte = validity.bytes().get(at / 8).copied().unwrap_or(0);
            if byte >> (at % 8) & 1 == 0 {
                return None;
            }
        }
        self.range(row)
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

impl Rows for Columns {
    fn count(&self) -> usize {
        self.count
    }

    #[inline]
    fn message<R>(&self, row: usize, look: impl FnOnce(&Message<'_>) -> R) -> R {
        look(&Message {
            value: self.values.get(row),
            key: self.keys.as_ref().and_then(|keys| keys.get(row)),
            tags: match self.tags.as_ref().and_then(|tags| tags.get(row)) {
                Some(tag) => Tags::One(tag),
                None => Tags::None,
            },
            headers: Vec::new(),
            timestamp_ms: self.timestamp(row),
            expires_at_ms: None,
        })
    }
}
