//! Why the crate refuses a request, and the class of `penstock.errors` that says so in Python.

use pyo3::exceptions::PyRuntimeError;
use pyo3::prelude::*;
use pyo3::sync::PyOnceLock;
use pyo3::types::{IntoPyDict, PyString};

use crate::python::text;

/// A request that cannot be met. Made without the interpreter, raised with it.
#[derive(Debug)]
pub enum Refusal {
    Bad(String),
    Exists(String),
    TooLarge(Box<TooLarge>),
}

#[derive(Debug)]
pub struct TooLarge {
    pub what: &'static str,
    pub topic: Vec<u8>,
    pub queue_id: i32,
    pub size: u64,
    pub size_max: u64,
}

struct Classes {
    bad: Py<PyAny>,
    exists: Py<PyAny>,
    too_large: Py<PyAny>,
}

static CLASSES: PyOnceLock<Classes> = PyOnceLock::new();

fn classes(py: Python<'_>) -> PyResult<&'static Classes> {
    CLASSES.get_or_try_init(py, || {
        let errors = py.import("penstock.errors")?;
        Ok(Classes {
            bad: errors.getattr("BadRequestError")?.unbind(),
            exists: errors.getattr("AlreadyExistsError")?.unbind(),
            too_large: errors.getattr("RecordTooLargeError")?.unbind(),
        })
    })
}

impl Refusal {
    pub fn bad(message: impl Into<String>) -> Self {
        Self::Bad(message.into())
    }

    /// Make the exception.
    pub fn raise(self, py: Python<'_>) -> PyErr {
        match self.instance(py) {
            Ok(instance) => PyErr::from_value(instance),
            Err(error) => error,
        }
    }

    fn instance(self, py: Python<'_>) -> PyResult<Bound<'_, PyAny>> {
        let classes = classes(py)?;
        match self {
            Self::Bad(message) => classes.bad.bind(py).call1((message,)),
            Self::Exists(message) => classes.exists.bind(py).call1((message,)),
            Self::TooLarge(refused) => {
                let mut shard = text(py, &refused.topic)?;
                shard = shard.add(format!("_{}", refused.queue_id))?;
                let shard = shard.repr()?;
                let what = PyString::new(py, &format!("{} of shard ", refused.what)).add(shard)?;
                let sizes = [("size", refused.size), ("size_max", refused.size_max)];
                classes.too_large.bind(py).call((what,), Some(&sizes.into_py_dict(py)?))
            }
        }
    }
}

/// The state may be half changed after a panic: no further use of it is safe.
pub fn poisoned() -> PyErr {
    PyRuntimeError::new_err("the appender failed in the middle of an append and is out of use")
}
