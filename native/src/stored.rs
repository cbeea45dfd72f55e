//! Builds `StoredRecord` objects from entries.

use std::sync::OnceLock;

use pyo3::ffi;
use pyo3::prelude::*;
use pyo3::types::{PyBytes, PyList, PyTuple};

use crate::entry::{Entry, HeaderList, TagList};
use crate::python::{classes, text};

const FIELDS: usize = 9;

type Vectorcall = unsafe extern "C" fn(
    *mut ffi::PyObject,
    *const *mut ffi::PyObject,
    usize,
    *mut ffi::PyObject,
) -> *mut ffi::PyObject;

/// `PyObject_Vectorcall` is in the stable interface from 3.12 on only, though 3.11 exports it: it
/// is looked up at run time, and done without where it is missing.
fn vectorcall() -> Option<Vectorcall> {
    static FOUND: OnceLock<Option<Vectorcall>> = OnceLock::new();
    *FOUND.get_or_init(|| {
        #[cfg(unix)]
        // SAFETY: the symbol, if there is one, is CPython's function of this signature.
        unsafe {
            let found = libc::dlsym(libc::RTLD_DEFAULT, c"PyObject_Vectorcall".as_ptr());
            std::mem::transmute::<*mut libc::c_void, Option<Vectorcall>>(found)
        }
        #[cfg(not(unix))]
        None
    })
}

/// Builds the records of one page. Neighbours often share timestamps, epoch and tag, so the last
/// object of each is kept.
pub struct Builder<'py> {
    py: Python<'py>,
    class: &'static Py<PyAny>,
    empty: Bound<'py, PyTuple>,
    none: Bound<'py, PyAny>,
    call: Option<Vectorcall>,
    timestamp: Number<'py>,
    store_timestamp: Number<'py>,
    epoch: Number<'py>,
    tag: Option<(Vec<u8>, Bound<'py, PyTuple>)>,
}

struct Number<'py> {
    value: i64,
    object: Bound<'py, PyAny>,
}

impl<'py> Number<'py> {
    fn new(py: Python<'py>) -> PyResult<Self> {
        Ok(Self { value: 0, object: 0i64.into_pyobject(py)?.into_any() })
    }

    #[inline]
    fn get(&mut self, value: i64) -> PyResult<&Bound<'py, PyAny>> {
        if self.value != value {
            self.object = value.into_pyobject(self.object.py())?.into_any();
            self.value = value;
        }
        Ok(&self.object)
    }
}

impl<'py> Builder<'py> {
    pub fn new(py: Python<'py>) -> PyResult<Self> {
        let classes = classes(py)?;
        Ok(Self {
            py,
            class: &classes.stored_record,
            empty: classes.empty_tuple.bind(py).clone(),
            none: py.None().into_bound(py),
            call: vectorcall(),
            timestamp: Number::new(py)?,
            store_timestamp: Number::new(py)?,
            epoch: Number::new(py)?,
            tag: None,
        })
    }

    /// A list of records.
    pub fn list(mut self, entries: &[Entry<'_>]) -> PyResult<Bound<'py, PyList>> {
        let count = entries.len() as ffi::Py_ssize_t;
        // SAFETY: a new list of `count` empty places, each of which is filled once; when a record
        // cannot be built the list goes away with the rest empty.
        unsafe {
            let list = Bound::from_owned_ptr_or_err(self.py, ffi::PyList_New(count))?;
            for (n, entry) in entries.iter().enumerate() {
                let record = self.record(entry)?.into_ptr();
                ffi::PyList_SetItem(list.as_ptr(), n as ffi::Py_ssize_t, record);
            }
            Ok(list.cast_into_unchecked())
        }
    }

    #[inline]
    pub fn record(&mut self, entry: &Entry<'_>) -> PyResult<Bound<'py, PyAny>> {
        let py = self.py;
        let offset = entry.stamps.offset.into_pyobject(py)?;
        let value = self.bytes(entry.value);
        let key = self.bytes(entry.key);
        let tags = self.tags(&entry.tags)?;
        let headers = self.headers(&entry.headers)?;
        let expires = match entry.expires_at_ms {
            Some(time_ms) => time_ms.into_pyobject(py)?.into_any(),
            None => self.none.clone(),
        };
        let fields: [*mut ffi::PyObject; FIELDS] = [
            offset.as_ptr(),
            value.as_ptr(),
            key.as_ptr(),
            tags.as_ptr(),
            headers.as_ptr(),
            self.timestamp.get(entry.stamps.timestamp_ms)?.as_ptr(),
            expires.as_ptr(),
            self.store_timestamp.get(entry.stamps.store_ms)?.as_ptr(),
            self.epoch.get(entry.stamps.epoch)?.as_ptr(),
        ];
        // SAFETY: all are live objects, borrowed for the call; the answer is a new reference.
        unsafe {
            let class = self.class.as_ptr();
            let record = match self.call {
                Some(call) => call(class, fields.as_ptr(), FIELDS, std::ptr::null_mut()),
                None => {
                    let owned = fields.map(|field| Bound::from_borrowed_ptr(py, field));
                    let arguments = PyTuple::new(py, owned)?;
                    ffi::PyObject_CallObject(class, arguments.as_ptr())
                }
            };
            Bound::from_owned_ptr_or_err(py, record)
        }
    }

    #[inline]
    fn bytes(&self, data: Option<&[u8]>) -> Bound<'py, PyAny> {
        match data {
            Some(data) => PyBytes::new(self.py, data).into_any(),
            None => self.none.clone(),
        }
    }

    #[inline]
    fn tags(&mut self, tags: &TagList<'_>) -> PyResult<Bound<'py, PyTuple>> {
        match tags {
            TagList::None => Ok(self.empty.clone()),
            TagList::One(tag) => {
                if let Some((last, tuple)) = &self.tag {
                    if last == tag {
                        return Ok(tuple.clone());
                    }
                }
                let tuple = PyTuple::new(self.py, [text(self.py, tag)?])?;
                self.tag = Some((tag.to_vec(), tuple.clone()));
                Ok(tuple)
            }
            TagList::Many(..) | TagList::Headers(..) => {
                let mut all = Vec::new();
                tags.each(|tag| all.push(text(self.py, tag)));
                PyTuple::new(self.py, all.into_iter().collect::<PyResult<Vec<_>>>()?)
            }
        }
    }

    #[inline]
    fn headers(&self, headers: &HeaderList<'_>) -> PyResult<Bound<'py, PyTuple>> {
        if matches!(headers, HeaderList::None) {
            return Ok(self.empty.clone());
        }
        let mut all = Vec::new();
        headers.each(|name, value| {
            let pair = text(self.py, name)
                .and_then(|name| PyTuple::new(self.py, [name, self.bytes(value)]));
            all.push(pair);
        });
        PyTuple::new(self.py, all.into_iter().collect::<PyResult<Vec<_>>>()?)
    }
}
