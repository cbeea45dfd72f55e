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
// before it releases it. The owner decides who writes when (one writer under a mutex).
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
        // At interpreter shutdown there is no owner left to return the buffer to.
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
        // SAFETY: the place has as many bytes.
        unsafe { copy(place.as_mut_ptr(), bytes) };
    } else {
        debug_assert!(false, "write outside the buffer");
    }
}

/// Append bytes to a vector, which mostly has the room.
#[inline(always)]
pub fn extend(out: &mut Vec<u8>, bytes: &[u8]) {
    out.reserve(bytes.len());
    let size = out.len();
    // SAFETY: there is room for as many bytes after `size`, and they are written before they count.
    unsafe {
        copy(out.as_mut_ptr().add(size), bytes);
        out.set_len(size + bytes.len());
    }
}

/// Copy bytes, without a call when they are few: keys, tags and topics are short.
///
/// # Safety
/// `to` must be valid for as many bytes, and must not overlap them.
#[inline(always)]
unsafe fn copy(to: *mut u8, bytes: &[u8]) {
    let (from, size) = (bytes.as_ptr(), bytes.len());
    match size {
        0 => (),
        1 => *to = *from,
        2..=3 => ends::<u16>(to, from, size),
        4..=7 => ends::<u32>(to, from, size),
        8..=15 => ends::<u64>(to, from, size),
        16..=32 => ends::<u128>(to, from, size),
        _ => std::ptr::copy_nonoverlapping(from, to, size),
    }
}

/// Copy the first and the last word of `size` bytes; they overlap unless it is two words.
#[inline(always)]
unsafe fn ends<T>(to: *mut u8, from: *const u8, size: usize) {
    let last = size - size_of::<T>();
    let (head, tail) =
        (from.cast::<T>().read_unaligned(), from.add(last).cast::<T>().read_unaligned());
    to.cast::<T>().write_unaligned(head);
    to.add(last).cast::<T>().write_unaligned(tail);
}

/// Fills a slice from its start. What does not fit is dropped, as in `put`.
pub struct Writer<'a> {
    at: *mut u8,
    left: usize,
    slice: std::marker::PhantomData<&'a mut [u8]>,
}

impl<'a> Writer<'a> {
    #[inline(always)]
    pub fn new(out: &'a mut [u8]) -> Self {
        Self { at: out.as_mut_ptr(), left: out.len(), slice: std::marker::PhantomData }
    }

    #[inline(always)]
    pub fn put(&mut self, bytes: &[u8]) {
        if bytes.len() > self.left {
            debug_assert!(false, "write outside the buffer");
            self.left = 0;
            return;
        }
        // SAFETY: `left` bytes from `at` on belong to the slice, which is borrowed for as long.
        unsafe {
            copy(self.at, bytes);
            self.at = self.at.add(bytes.len());
        }
        self.left -= bytes.len();
    }

    /// `name 0x01 value 0x02`
    #[inline(always)]
    pub fn property(&mut self, name: &[u8], value: &[u8]) {
        self.put(name);
        self.put(b"\x01");
        self.put(value);
        self.put(b"\x02");
    }

    /// Bytes that are still to be written.
    #[cfg(test)]
    pub fn left(&self) -> usize {
        self.left
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
    fn copies_of_every_small_size_are_whole() {
        let data: Vec<u8> = (1..=100).collect();
        for size in 0..100 {
            let mut out = vec![0u8; 102];
            put(&mut out, 1, &data[..size]);
            assert_eq!(&out[1..=size], &data[..size]);
            assert!(out[0] == 0 && out[size + 1..].iter().all(|&byte| byte == 0));
            let mut longer = vec![9];
            extend(&mut longer, &data[..size]);
            assert_eq!((longer[0], &longer[1..]), (9, &data[..size]));
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
