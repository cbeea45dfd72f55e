//! The Python classes that this crate builds and reads, looked up once.
//!
//! Every object of the package is found by import at first use: the extension may be loaded before
//! the modules that define them, and a declaration (field order, reserved names) has one home.

use pyo3::exceptions::PyTypeError;
use pyo3::ffi;
use pyo3::prelude::*;
use pyo3::sync::PyOnceLock;
use pyo3::types::{PyBytes, PyString, PyTuple, PyType};

use crate::errors::Refusal;

pub struct Classes {
    pub record: Py<PyType>,
    pub record_fields: RecordFields,
    pub stored_record: Py<PyAny>,
    pub raw_record: Py<PyAny>,
    pub damage: Py<PyAny>,
    pub empty_tuple: Py<PyTuple>,
}

static CLASSES: PyOnceLock<Classes> = PyOnceLock::new();

pub fn classes(py: Python<'_>) -> PyResult<&'static Classes> {
    CLASSES.get_or_try_init(py, || {
        let vocabulary = py.import("penstock.record")?;
        let format = py.import("penstock.codec.format")?;
        let record = vocabulary.getattr("Record")?.cast_into::<PyType>()?;
        Ok(Classes {
            record_fields: RecordFields::find(&record)?,
            record: record.unbind(),
            stored_record: vocabulary.getattr("StoredRecord")?.unbind(),
            raw_record: format.getattr("RawRecord")?.unbind(),
            damage: format.getattr("Damage")?.unbind(),
            empty_tuple: PyTuple::empty(py).unbind(),
        })
    })
}

/// The slots of `Record`, read through their descriptors: the look-up of an attribute by name would
/// cost more than the rest of the extraction.
pub struct RecordFields {
    descriptors: [Py<PyAny>; 6],
    get: ffi::descrgetfunc,
    /// Where an instance of exactly this class keeps its fields, if that could be found out.
    places: Option<[usize; 6]>,
    class: *mut ffi::PyTypeObject,
}

// SAFETY: the class is compared, never used; `Classes` keeps it alive.
unsafe impl Send for RecordFields {}
unsafe impl Sync for RecordFields {}

impl RecordFields {
    pub const VALUE: usize = 0;
    pub const KEY: usize = 1;
    pub const TAGS: usize = 2;
    pub const HEADERS: usize = 3;
    pub const TIMESTAMP: usize = 4;
    pub const EXPIRES: usize = 5;

    fn find(record: &Bound<'_, PyType>) -> PyResult<Self> {
        let names = ["value", "key", "tags", "headers", "timestamp_ms", "expires_at_ms"];
        let mut found = Vec::with_capacity(names.len());
        for name in names {
            found.push(record.getattr(name)?);
        }
        let kind = found[0].get_type();
        if !found.iter().all(|each| each.get_type().is(&kind)) {
            return Err(PyTypeError::new_err("the fields of Record are not slots"));
        }
        // SAFETY: `kind` is a live type; the slot, if it has one, is a descriptor's getter.
        let get = unsafe {
            let slot = ffi::PyType_GetSlot(kind.as_type_ptr(), ffi::Py_tp_descr_get);
            std::mem::transmute::<*mut std::ffi::c_void, Option<ffi::descrgetfunc>>(slot)
        };
        let get = get.ok_or_else(|| PyTypeError::new_err("the fields of Record are not slots"))?;
        let descriptors: Vec<Py<PyAny>> = found.into_iter().map(Bound::unbind).collect();
        let descriptors =
            descriptors.try_into().map_err(|_| PyTypeError::new_err("Record has other fields"))?;
        let places = find_places(record)?;
        Ok(Self { descriptors, get, places, class: record.as_type_ptr() })
    }

    /// The object is a `Record` and of no subclass.
    #[inline]
    pub fn is_exact(&self, record: &Bound<'_, PyAny>) -> bool {
        // SAFETY: the object is live.
        unsafe { ffi::Py_TYPE(record.as_ptr()) == self.class }
    }

    /// Read one field of an object that is known to be a `Record`.
    #[inline]
    pub fn get<'py>(
        &self,
        record: &Bound<'py, PyAny>,
        field: usize,
    ) -> PyResult<Bound<'py, PyAny>> {
        let py = record.py();
        if let Some(places) = self.places.as_ref().filter(|_| self.is_exact(record)) {
            // SAFETY: the field was found there in another instance of this very class. It is null
            // while it is not set, which the getter below reports.
            unsafe {
                let place = record.as_ptr().cast::<u8>().add(places[field]);
                let found = place.cast::<*mut ffi::PyObject>().read();
                if !found.is_null() {
                    return Ok(Bound::from_borrowed_ptr(py, found));
                }
            }
        }
        // SAFETY: the getter checks the object's type and returns a new reference or an error.
        unsafe {
            let kind = ffi::Py_TYPE(record.as_ptr()).cast();
            let found = (self.get)(self.descriptors[field].as_ptr(), record.as_ptr(), kind);
            Bound::from_owned_ptr_or_err(py, found)
        }
    }
}

/// Find out where a class keeps its six fields, by looking for marks that were put into them.
fn find_places(record: &Bound<'_, PyType>) -> PyResult<Option<[usize; 6]>> {
    let kind = record.py().import("builtins")?.getattr("object")?;
    let mut marks = Vec::new();
    for _ in 0..6 {
        marks.push(kind.call0()?);
    }
    let probe = record.call1(PyTuple::new(record.py(), &marks)?)?;
    let size: usize = record.getattr("__basicsize__")?.extract()?;
    let word = size_of::<*mut ffi::PyObject>();
    let mut places = [0; 6];
    for (place, mark) in places.iter_mut().zip(&marks) {
        let start = probe.as_ptr().cast::<u8>();
        let mut found = (0..size / word).map(|index| index * word).filter(|&at| {
            // SAFETY: an instance has at least as many bytes as its class says.
            unsafe { start.add(at).cast::<*mut ffi::PyObject>().read() == mark.as_ptr() }
        });
        match (found.next(), found.next()) {
            (Some(at), None) => *place = at,
            _ => return Ok(None),
        }
    }
    Ok(Some(places))
}

/// Build a `Damage`.
pub fn damage<'py>(py: Python<'py>, position: i64, reason: &str) -> PyResult<Bound<'py, PyAny>> {
    classes(py)?.damage.bind(py).call1((position, reason))
}

/// Build a `Damage`, or None.
pub fn damage_or_none<'py>(
    py: Python<'py>,
    found: Option<(i64, &str)>,
) -> PyResult<Option<Bound<'py, PyAny>>> {
    found.map(|(position, reason)| damage(py, position, reason)).transpose()
}

/// Bytes of the log as text: UTF-8, whatever is not goes through as surrogate escapes.
pub fn text<'py>(py: Python<'py>, bytes: &[u8]) -> PyResult<Bound<'py, PyAny>> {
    // SAFETY: pointer and length are those of a slice; the result is a new reference or an error.
    unsafe {
        let start = bytes.as_ptr().cast();
        let size = bytes.len() as ffi::Py_ssize_t;
        let escape = c"surrogateescape".as_ptr();
        Bound::from_owned_ptr_or_err(py, ffi::PyUnicode_DecodeUTF8(start, size, escape))
    }
}

/// Text as bytes of the log, kept alive by the object it came from.
pub struct Encoded<'py> {
    _owner: Bound<'py, PyAny>,
    bytes: &'py [u8],
    is_copy: bool,
}

impl<'py> Encoded<'py> {
    /// Encode a string; `what` names it in the refusal.
    #[inline]
    pub fn new(text: &Bound<'py, PyAny>, what: &str) -> PyResult<Self> {
        let Ok(string) = text.cast::<PyString>() else {
            return Err(Refusal::bad(format!("{what} must be str")).raise(text.py()));
        };
        let mut size: ffi::Py_ssize_t = 0;
        // SAFETY: the UTF-8 form is cached in the string and lives as long as it does.
        unsafe {
            let start = ffi::PyUnicode_AsUTF8AndSize(string.as_ptr(), &mut size);
            if !start.is_null() {
                let bytes = std::slice::from_raw_parts(start.cast(), size as usize);
                return Ok(Self { _owner: text.clone(), bytes, is_copy: false });
            }
        }
        Self::escaped(string, what)
    }

    /// The slow way, for text with surrogates: escapes are turned back into the bytes they stand
    /// for, provided that these would become the same escapes again.
    fn escaped(string: &Bound<'py, PyString>, what: &str) -> PyResult<Self> {
        let py = string.py();
        drop(PyErr::take(py));
        let refused = || Refusal::bad(format!("{what} holds text that has no bytes")).raise(py);
        let encoded = string
            .call_method1("encode", ("utf-8", "surrogateescape"))
            .map_err(|_| refused())?
            .cast_into::<PyBytes>()?;
        if !self::text(py, encoded.as_bytes())?.eq(string)? {
            return Err(refused());
        }
        // SAFETY: bytes objects are immutable, and `_owner` keeps this one alive.
        let bytes = unsafe { unbound(encoded.as_bytes()) };
        Ok(Self { _owner: encoded.into_any(), bytes, is_copy: true })
    }

    #[inline]
    pub fn bytes(&self) -> &'py [u8] {
        self.bytes
    }

    /// The bytes are not those of the string itself: it holds escapes.
    pub fn is_copy(&self) -> bool {
        self.is_copy
    }
}

/// A slice freed from the borrow of its owner.
///
/// # Safety
/// The owner must be kept alive, and its bytes unchanged, for as long as the slice is used.
#[inline]
pub unsafe fn unbound<'a>(bytes: &[u8]) -> &'a [u8] {
    std::slice::from_raw_parts(bytes.as_ptr(), bytes.len())
}

/// Header names that a plain record must not use; declared in `format.py`.
pub struct Reserved {
    names: std::collections::HashSet<Vec<u8>>,
    prefixes: Vec<Vec<u8>>,
}

impl Reserved {
    pub fn load(py: Python<'_>) -> PyResult<Self> {
        let format = py.import("penstock.codec.format")?;
        let mut names = std::collections::HashSet::new();
        for name in format.getattr("RESERVED_PROPERTIES")?.try_iter()? {
            names.insert(name?.extract::<String>()?.into_bytes());
        }
        let mut prefixes = Vec::new();
        for prefix in format.getattr("RESERVED_PREFIXES")?.try_iter()? {
            prefixes.push(prefix?.extract::<String>()?.into_bytes());
        }
        Ok(Self { names, prefixes })
    }

    pub fn has(&self, name: &[u8]) -> bool {
        self.names.contains(name) || self.prefixes.iter().any(|each| name.starts_with(each))
    }

    #[cfg(test)]
    pub fn of(names: &[&str], prefixes: &[&str]) -> Self {
        let bytes = |each: &&str| each.as_bytes().to_vec();
        Self {
            names: names.iter().map(bytes).collect(),
            prefixes: prefixes.iter().map(bytes).collect(),
        }
    }
}
