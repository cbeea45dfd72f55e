//! One record by the shortest way: no page, no list, no unit objects. Whatever is not as expected
//! is answered with None or -1, and the caller takes the long way, which can tell why.

use pyo3::prelude::*;

use crate::bytes::{i32_at, View};
use crate::entry::Entry;
use crate::extract::extract_bytes;
use crate::hash::{index_hash, java_hash};
use crate::index::{lookup, Division, Lookup};
use crate::message::{key_token, plain_key_hash, KEY_TOKEN_MAX};
use crate::properties::Properties;
use crate::python::Encoded;
use crate::read::LogFile;

/// Longer records are read without the interpreter, by the long way.
const SIZE_MAX: i32 = 4096;
const ANY: i64 = -1;

#[pyfunction]
#[pyo3(signature = (
    log, base, position, size, topic, queue_id, offset, now_ms, key, strict = false
))]
#[allow(clippy::too_many_arguments)]
pub fn read_one<'py>(
    py: Python<'py>,
    log: &Bound<'py, PyAny>,
    base: i64,
    position: i64,
    size: i64,
    topic: &Bound<'py, PyAny>,
    queue_id: i32,
    offset: i64,
    now_ms: i64,
    key: &Bound<'py, PyAny>,
    strict: bool,
) -> PyResult<Option<Bound<'py, PyAny>>> {
    let view = View::readable(log)?;
    let topic = Encoded::new(topic, "topic")?;
    let key = extract_bytes(key, "key")?;
    let file = LogFile { log: view.bytes(), base, topic: topic.bytes(), queue_id, strict };
    let Some(index) = file.index(position) else {
        return Ok(None);
    };
    let stored = i32_at(file.log, index).unwrap_or(0);
    if stored > SIZE_MAX || (size != ANY && size != i64::from(stored)) {
        return Ok(None);
    }
    let Ok(record) = file.record(index, position, stored) else {
        return Ok(None);
    };
    if record.is_compressed() || (offset != ANY && record.queue_offset != offset) {
        return Ok(None);
    }
    let found = Properties::parse(record.properties);
    let stamps = crate::read::stamps_of(&record);
    let Ok(entry) = Entry::new(record.body, record.properties, &found, stamps) else {
        return Ok(None);
    };
    let is_live = entry.expires_at_ms.is_none_or(|expires| expires > now_ms);
    if !is_live || key.is_some_and(|key| !entry.has_key(key, Some(&found))) {
        return Ok(None);
    }
    crate::stored::Builder::new(py)?.record(&entry).map(Some)
}

/// The newest position that an index file has for a plain key, or for its token; -1: none, or the
/// key is not plain.
#[pyfunction]
pub fn index_newest<'py>(
    py: Python<'py>,
    index: &Bound<'py, PyAny>,
    slots: i64,
    entries_max: i64,
    topic: &Bound<'py, PyAny>,
    key: &Bound<'py, PyAny>,
) -> PyResult<i64> {
    let view = View::readable(index)?;
    let division =
        Division::new(view.size(), slots, entries_max).map_err(|refusal| refusal.raise(py))?;
    let seed = java_hash(java_hash(0, Encoded::new(topic, "topic")?.bytes()), b"#");
    let Some(key) = extract_bytes(key, "key")? else {
        return Ok(-1);
    };
    let Some(plain) = plain_key_hash(seed, key) else {
        return Ok(-1);
    };
    let mut token = [0; KEY_TOKEN_MAX];
    let token_size = key_token(key, &mut token);
    let hashes = [plain, java_hash(seed, &token[..token_size])];
    let newest = hashes.map(|hash| {
        let asked = Lookup { hash: index_hash(hash), begin_ms: 0, end_ms: i64::MAX, count_max: 1 };
        lookup(view.bytes(), division, &asked).first().copied().unwrap_or(-1)
    });
    Ok(newest[0].max(newest[1]))
}
