//! Bytes that are not ours: views of Python buffers, and big-endian fields in them.
//!
//! A mapped file may change while it is read (another process, a failing disk). Every length is
//! therefore copied into a local before it is compared, and every access is checked against the
//! slice it falls in; a wrong length ends in `None`, never in a panic.

use pyo3::exceptions::PyBufferError;
use pyo3::ffi;
use pyo3::prelude::*;

use crate::errors::Refusal;

/// A contiguous buffer of a Python object, held until dropped.
pub struct View {
    raw: Box<ffi::Py_buffer>,
}

// SAFETY: the memory stays valid while the buffer is held, and `drop` attaches to the interpreter
// before it releases it. Who may write when is settled by the owner (one writer under a mutex).
unsafe impl Send for View {}
unsafe impl Sync for View {}

impl View {
    pub fn readable(object: &Bound<'_, PyAny>) -> PyResult<Self> {
        Self::get(object, ffi::PyBUF_SIMPLE)
    }

    pub fn writable(object: &Bound<'_, PyAny>) -> PyResult<Self> {
        let refused = |_| Refusal::bad("the buffer must be writable").raise(object.py());
        Self::get(object, ffi::PyBUF_WRITABLE).map_err(refused)
    }

    fn get(object: &Bound<'_, PyAny>, flags: std::ffi::c_int) -> PyResult<Self> {
        let mut raw = Box::new(ffi::Py_buffer::new());
        // SAFETY: `raw` is a fresh structure at an address that does not move.
        if unsafe { ffi::PyObject_GetBuffer(object.as_ptr(), &mut *raw, flags) } != 0 {
            let unused = PyBufferError::new_err("the object has no buffer");
            return Err(PyErr::take(object.py()).unwrap_or(unused));
        }
        Ok(Self { raw })
    }

    pub fn size(&self) -> usize {
        usize::try_from(self.raw.len).unwrap_or(0)
    }

    pub fn bytes(&self) -> &[u8] {
        if self.raw.buf.is_null() || self.raw.len <= 0 {
            return &[];
        }
        // SAFETY: the exporter promises `len` contiguous bytes for as long as the buffer is held.
        unsafe { std::slice::from_raw_parts(self.raw.buf.cast::<u8>(), self.size()) }
    }

    /// The bytes, to be written; only for views from `writable`.
    pub fn bytes_mut(&mut self) -> &mut [u8] {
        if self.raw.buf.is_null() || self.raw.len <= 0 || self.raw.readonly != 0 {
            return &mut [];
        }
        // SAFETY: as in `bytes`; the exporter granted a writable buffer.
        unsafe { std::slice::from_raw_parts_mut(self.raw.buf.cast::<u8>(), self.size()) }
    }
}

impl Drop for View {
    fn drop(&mut self) {
        // At interpreter shutdown nobody is left to hand the buffer back to.
        let _ = Python::try_attach(|_| {
            // SAFETY: filled by PyObject_GetBuffer and released once.
            unsafe { ffi::PyBuffer_Release(&mut *self.raw) }
        });
    }
}

macro_rules! reader {
    ($name:ident, $kind:ty) => {
        #[inline(always)]
        pub fn $name(data: &[u8], at: usize) -> Option<$kind> {
            let end = at.checked_add(size_of::<$kind>())?;
            let field = data.get(at..end)?;
            Some(<$kind>::from_be_bytes(field.try_into().ok()?))
        }
    };
}

reader!(u16_at, u16);
reader!(i16_at, i16);
reader!(u32_at, u32);
reader!(i32_at, i32);
reader!(i64_at, i64);

/// A sized part that starts at `at`: `None` when the size is negative or leads outside.
#[inline(always)]
pub fn part(data: &[u8], at: usize, size: i64) -> Option<&[u8]> {
    let size = usize::try_from(size).ok()?;
    data.get(at..at.checked_add(size)?)
}

/// Store bytes at `at`. What does not fit is dropped: sizes are computed before they are written.
#[inline(always)]
pub fn put(out: &mut [u8], at: usize, bytes: &[u8]) {
    if let Some(place) = out.get_mut(at..at + bytes.len()) {
        place.copy_from_slice(bytes);
    } else {
        debug_assert!(false, "write outside the buffer");
    }
}

/// Fills a slice from its start.
pub struct Writer<'a> {
    out: &'a mut [u8],
    at: usize,
}

impl<'a> Writer<'a> {
    pub fn new(out: &'a mut [u8]) -> Self {
        Self { out, at: 0 }
    }

    #[inline(always)]
    pub fn put(&mut self, bytes: &[u8]) {
        put(self.out, self.at, bytes);
        self.at += bytes.len();
    }

    /// `name 0x01 value 0x02`
    #[inline(always)]
    pub fn property(&mut self, name: &[u8], value: &[u8]) {
        self.put(name);
        self.put(b"\x01");
        self.put(value);
        self.put(b"\x02");
    }

    #[cfg(test)]
    pub fn position(&self) -> usize {
        self.at
    }
}

/// A number in decimal, without an allocation.
pub struct Decimal {
    text: [u8; 20],
    start: usize,
}

impl Decimal {
    #[inline]
    pub fn new(value: i64) -> Self {
        let mut text = [0u8; 20];
        let mut start = text.len();
        let mut rest = value.unsigned_abs();
        loop {
            start -= 1;
            text[start] = b'0' + (rest % 10) as u8;
            rest /= 10;
            if rest == 0 {
                break;
            }
        }
        if value < 0 {
            start -= 1;
            text[start] = b'-';
        }
        Self { text, start }
    }

    pub fn bytes(&self) -> &[u8] {
        &self.text[self.start..]
    }

    pub fn size(&self) -> usize {
        self.text.len() - self.start
    }
}

/// A decimal int64 of at most 20 characters, or `None` for anything else.
pub fn parse_decimal(text: &[u8]) -> Option<i64> {
    let (negative, digits) = match text.split_first() {
        Some((b'-', rest)) => (true, rest),
        _ => (false, text),
    };
    if digits.is_empty() || text.len() > 20 {
        return None;
    }
    let mut value: i128 = 0;
    for &digit in digits {
        if !digit.is_ascii_digit() {
            return None;
        }
        value = value * 10 + i128::from(digit - b'0');
    }
    i64::try_from(if negative { -value } else { value }).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn decimals_come_back() {
        for value in [0, 1, -1, 42, i64::MAX, i64::MIN, 1_700_000_000_000] {
            assert_eq!(parse_decimal(Decimal::new(value).bytes()), Some(value));
        }
    }

    #[test]
    fn what_is_no_int64_is_refused() {
        for text in ["", "-", "+1", "1 ", "9223372036854775808", "000000000000000000001"] {
            assert_eq!(parse_decimal(text.as_bytes()), None, "{text}");
        }
    }

    #[test]
    fn parts_never_lead_outside() {
        assert_eq!(part(b"abc", 1, 2), Some(&b"bc"[..]));
        assert_eq!(part(b"abc", 1, 3), None);
        assert_eq!(part(b"abc", 1, -1), None);
        assert_eq!(part(b"abc", usize::MAX, i64::MAX), None);
        assert_eq!(u32_at(b"abc", 0), None);
    }
}
