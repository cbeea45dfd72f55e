//! Pages as ready Arrow buffers, with 64-bit offsets.
//!
//!     value, key    validity, offsets, data
//!     tags          list offsets, string offsets, data
//!     headers       list offsets, name offsets, names, value validity, value offsets, values
//!     all others    int64 values (expires: validity first)
//!
//! Offsets and validity are always there, also for no rows; bitmaps have their first row in bit 0.
//! Narrow columns have 32-bit offsets and times in microseconds.

use std::borrow::Cow;

use pyo3::prelude::*;
use pyo3::types::{PyBytes, PyDict, PyTuple};

use crate::bytes::extend;
use crate::entry::Entry;
use crate::errors::Refusal;
use crate::read::Sink;

const VALUE: i64 = 1;
const KEY: i64 = 2;
const TAGS: i64 = 4;
const HEADERS: i64 = 8;
const TIMESTAMP: i64 = 16;
const STORED: i64 = 32;
const NARROW: i64 = 64;

/// One bit a row. Mostly all rows have the same, so the first ones that do are only counted.
#[derive(Default)]
struct Bitmap {
    same: bool,
    same_count: usize,
    /// Bits from the first that differs on are written down, and those before it with them.
    bytes: Vec<u8>,
    count: usize,
}

impl Bitmap {
    #[inline]
    fn push(&mut self, bit: bool) {
        if self.count == 0 {
            self.same = bit;
        }
        if self.same == bit && self.same_count == self.count {
            self.same_count += 1;
            self.count += 1;
        } else {
            self.push_other(bit);
        }
    }

    #[cold]
    fn push_other(&mut self, bit: bool) {
        if self.same_count == self.count {
            self.bytes = Self::uniform(self.same, self.count);
        }
        if self.count % 8 == 0 {
            self.bytes.push(0);
        }
        if let Some(last) = self.bytes.last_mut() {
            *last |= u8::from(bit) << (self.count % 8);
        }
        self.count += 1;
    }

    fn uniform(bit: bool, count: usize) -> Vec<u8> {
        let mut bytes = vec![if bit { 0xFF } else { 0 }; count.div_ceil(8)];
        if let (Some(last), true) = (bytes.last_mut(), count % 8 != 0) {
            *last &= (1 << (count % 8)) - 1;
        }
        bytes
    }

    fn into_bytes(self) -> Vec<u8> {
        if self.same_count == self.count {
            return Self::uniform(self.same, self.count);
        }
        self.bytes
    }
}

/// Little-endian 64-bit numbers.
#[derive(Default)]
struct Numbers(Vec<u8>);

impl Numbers {
    fn with_capacity(rows: usize) -> Self {
        Self(Vec::with_capacity(8 * rows))
    }

    /// Offsets, which begin with a 0.
    fn offsets(rows: usize) -> Self {
        let mut offsets = Self::with_capacity(rows + 1);
        offsets.push(0);
        offsets
    }

    #[inline]
    fn push(&mut self, number: i64) {
        self.0.extend_from_slice(&number.to_le_bytes());
    }

    fn each(&self) -> impl Iterator<Item = i64> + '_ {
        self.0.chunks_exact(8).map(Self::number)
    }

    #[inline]
    fn number(bytes: &[u8]) -> i64 {
        bytes.try_into().map_or(0, i64::from_le_bytes)
    }

    /// Ascending numbers as 32-bit ones, if they are to be.
    fn as_offsets(&self, narrow: bool) -> Result<Cow<'_, [u8]>, Refusal> {
        if !narrow {
            return Ok(Cow::Borrowed(&self.0));
        }
        let last = self.0.rchunks_exact(8).next().map_or(0, Self::number);
        if i32::try_from(last).is_err() {
            return Err(Refusal::bad(format!("{last} bytes do not fit in a narrow column")));
        }
        let mut numbers = Vec::with_capacity(self.0.len() / 2);
        self.each().for_each(|number| numbers.extend_from_slice(&(number as i32).to_le_bytes()));
        Ok(Cow::Owned(numbers))
    }

    /// Milliseconds as microseconds, if they are to be; what is out of reach becomes the last one.
    fn as_times(&self, narrow: bool) -> Cow<'_, [u8]> {
        if !narrow {
            return Cow::Borrowed(&self.0);
        }
        let mut times = Vec::with_capacity(self.0.len());
        self.each().for_each(|ms| times.extend_from_slice(&ms.saturating_mul(1000).to_le_bytes()));
        Cow::Owned(times)
    }
}

struct Texts {
    offsets: Numbers,
    data: Vec<u8>,
    count: i64,
}

impl Texts {
    fn with_capacity(rows: usize, size: usize) -> Self {
        Self { offsets: Numbers::offsets(rows), data: Vec::with_capacity(size), count: 0 }
    }

    #[inline]
    fn push(&mut self, text: &[u8]) {
        extend(&mut self.data, text);
        self.offsets.push(self.data.len() as i64);
        self.count += 1;
    }
}

struct Binaries {
    validity: Bitmap,
    texts: Texts,
}

impl Binaries {
    fn with_capacity(rows: usize, size: usize) -> Self {
        Self { validity: Bitmap::default(), texts: Texts::with_capacity(rows, size) }
    }

    #[inline]
    fn push(&mut self, cell: Option<&[u8]>) {
        self.validity.push(cell.is_some());
        self.texts.push(cell.unwrap_or(&[]));
    }
}

pub struct Columns {
    fields: i64,
    count: i64,
    offsets: Numbers,
    values: Binaries,
    keys: Binaries,
    tag_lists: Numbers,
    tags: Texts,
    header_lists: Numbers,
    header_names: Texts,
    header_values: Binaries,
    timestamps: Numbers,
    expires_validity: Bitmap,
    expires: Numbers,
    store_timestamps: Numbers,
    epochs: Numbers,
}

impl Columns {
    /// Columns for about so many rows with so many bytes of values.
    pub fn with_capacity(fields: i64, rows: usize, size: usize) -> Self {
        let wanted = |field: i64| if fields & field != 0 { rows } else { 0 };
        let sized = |field: i64, size: usize| if fields & field != 0 { size } else { 0 };
        Self {
            fields,
            count: 0,
            offsets: Numbers::with_capacity(rows),
            values: Binaries::with_capacity(wanted(VALUE), sized(VALUE, size)),
            keys: Binaries::with_capacity(wanted(KEY), sized(KEY, 16 * rows)),
            tag_lists: Numbers::offsets(wanted(TAGS)),
            tags: Texts::with_capacity(wanted(TAGS), sized(TAGS, 8 * rows)),
            header_lists: Numbers::offsets(wanted(HEADERS)),
            header_names: Texts::with_capacity(0, 0),
            header_values: Binaries::with_capacity(0, 0),
            timestamps: Numbers::with_capacity(wanted(TIMESTAMP)),
            expires_validity: Bitmap::default(),
            expires: Numbers::with_capacity(wanted(TIMESTAMP)),
            store_timestamps: Numbers::with_capacity(wanted(STORED)),
            epochs: Numbers::with_capacity(wanted(STORED)),
        }
    }

    fn has(&self, field: i64) -> bool {
        self.fields & field != 0
    }

    pub fn into_dict<'py>(self, py: Python<'py>) -> PyResult<Bound<'py, PyDict>> {
        let columns = PyDict::new(py);
        let set = |name: &str, buffers: &[&[u8]]| {
            let buffers = buffers.iter().map(|buffer| PyBytes::new(py, buffer));
            columns.set_item(name, PyTuple::new(py, buffers.collect::<Vec<_>>())?)
        };
        set("count", &[&self.count.to_le_bytes()])?;
        set("offset", &[&self.offsets.0])?;
        let fields = self.fields;
        let narrow = fields & NARROW != 0;
        for (field, name, cells) in [(VALUE, "value", self.values), (KEY, "key", self.keys)] {
            if fields & field != 0 {
                let ends = offsets_of(py, &cells.texts.offsets, narrow)?;
                let validity = cells.validity.into_bytes();
                set(name, &[&validity, &ends, &cells.texts.data])?;
            }
        }
        if fields & TAGS != 0 {
            let lists = offsets_of(py, &self.tag_lists, narrow)?;
            let ends = offsets_of(py, &self.tags.offsets, narrow)?;
            set("tags", &[&lists, &ends, &self.tags.data])?;
        }
        if fields & HEADERS != 0 {
            let (names, values) = (self.header_names, self.header_values);
            set(
                "headers",
                &[
                    &offsets_of(py, &self.header_lists, narrow)?,
                    &offsets_of(py, &names.offsets, narrow)?,
                    &names.data,
                    &values.validity.into_bytes(),
                    &offsets_of(py, &values.texts.offsets, narrow)?,
                    &values.texts.data,
                ],
            )?;
        }
        if fields & TIMESTAMP != 0 {
            set("timestamp", &[&self.timestamps.as_times(narrow)])?;
            let expires = self.expires.as_times(narrow);
            set("expires", &[&self.expires_validity.into_bytes(), &expires])?;
        }
        if fields & STORED != 0 {
            set("store_timestamp", &[&self.store_timestamps.as_times(narrow)])?;
            set("leader_epoch", &[&self.epochs.0])?;
        }
        Ok(columns)
    }
}

fn offsets_of<'a>(py: Python<'_>, numbers: &'a Numbers, narrow: bool) -> PyResult<Cow<'a, [u8]>> {
    numbers.as_offsets(narrow).map_err(|refused| refused.raise(py))
}

impl<'a> Sink<'a> for Columns {
    #[inline]
    fn add(&mut self, entry: &Entry<'a>) {
        self.count += 1;
        self.offsets.push(entry.stamps.offset);
        if self.has(VALUE) {
            self.values.push(entry.value);
        }
        if self.has(KEY) {
            self.keys.push(entry.key);
        }
        if self.has(TAGS) {
            entry.tags.each(|tag| self.tags.push(tag));
            self.tag_lists.push(self.tags.count);
        }
        if self.has(HEADERS) {
            entry.headers.each(|name, value| {
                self.header_names.push(name);
                self.header_values.push(value);
            });
            self.header_lists.push(self.header_names.count);
        }
        if self.has(TIMESTAMP) {
            self.timestamps.push(entry.stamps.timestamp_ms);
            self.expires_validity.push(entry.expires_at_ms.is_some());
            self.expires.push(entry.expires_at_ms.unwrap_or(0));
        }
        if self.has(STORED) {
            self.store_timestamps.push(entry.stamps.store_ms);
            self.epochs.push(entry.stamps.epoch);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bitmaps_hold_what_was_pushed() {
        for count in [0usize, 1, 7, 8, 9, 16, 100] {
            for odd in 0..count + 1 {
                for same in [false, true] {
                    let mut bitmap = Bitmap::default();
                    let bits: Vec<bool> = (0..count).map(|row| same ^ (row == odd)).collect();
                    bits.iter().for_each(|&bit| bitmap.push(bit));
                    let bytes = bitmap.into_bytes();
                    assert_eq!(bytes.len(), count.div_ceil(8));
                    for (row, bit) in bits.iter().enumerate() {
                        assert_eq!(bytes[row / 8] >> (row % 8) & 1 == 1, *bit);
                    }
                    let unused = bytes.last().map_or(0, |last| u16::from(*last) >> (count % 8));
                    assert!(count % 8 == 0 || unused == 0);
                }
            }
        }
    }
}
