//! Single records and whole log files, for Python: `decode_raw`, `encode_raw`, `check_log`, …

use std::sync::atomic::{AtomicU8, Ordering};

use pyo3::prelude::*;
use pyo3::types::{PyBytes, PyTuple};

use crate::appender::ATTACHED_SIZE_MAX;
use crate::bytes::{View, Writer};
use crate::encode::{seal_trailer, PROPERTIES_SIZE_MAX, TOPIC_SIZE_MAX, TOPIC_SIZE_V1_MAX};
use crate::errors::Refusal;
use crate::extract::Bound64;
use crate::hash;
use crate::index::{lookup, relink, Division, Lookup};
use crate::properties::each_entry;
use crate::python::{classes, damage, damage_or_none, text, Encoded};
use crate::record::{check, find, Record, BORN_IPV6, MAGIC_V1, MAGIC_V2, STORE_IPV6, TRAILER_SIZE};
use crate::replay::limit;

const PAGE_SIZE: usize = 4096;

/// Do something with `size` bytes, without the interpreter if that is long.
pub fn maybe_detached<R: Send>(py: Python<'_>, size: usize, work: impl FnOnce() -> R + Send) -> R {
    if size > ATTACHED_SIZE_MAX {
        py.detach(work)
    } else {
        work()
    }
}

#[pyfunction]
pub fn java_hash(text: &Bound<'_, PyAny>) -> PyResult<i32> {
    if let Ok(encoded) = Encoded::new(text, "text") {
        return Ok(hash::java_hash(0, encoded.bytes()) as i32);
    }
    // Text that no bytes stand for still has a hash.
    let units = text.call_method1("encode", ("utf-16-be", "surrogatepass"))?;
    let units = units.cast_into::<PyBytes>()?;
    let step = |sum: u32, unit: &[u8]| {
        let unit = u32::from(unit[0]) << 8 | u32::from(unit[1]);
        sum.wrapping_mul(31).wrapping_add(unit)
    };
    Ok(units.as_bytes().chunks_exact(2).fold(0, step) as i32)
}

#[pyfunction]
pub fn crc_patch(checksum: u32, size_after: u64, delta: &[u8]) -> u32 {
    hash::crc_patch(checksum, size_after, delta)
}

#[pyfunction]
#[pyo3(signature = (log, base, position, check, strict = false))]
pub fn decode_raw<'py>(
    py: Python<'py>,
    log: &Bound<'_, PyAny>,
    base: i64,
    position: i64,
    check: bool,
    strict: bool,
) -> PyResult<Bound<'py, PyAny>> {
    let view = View::readable(log)?;
    let index = position.checked_sub(base).and_then(|index| usize::try_from(index).ok());
    let Some(index) = index.filter(|&index| index <= view.size()) else {
        return damage(py, position, "outside the file");
    };
    let found = Record::parse(view.bytes(), index).and_then(|record| {
        let size = if check { record.data.len() } else { 0 };
        let verified = maybe_detached(py, size, || match check {
            true => record.verify(Some(position), strict),
            false => Ok(()),
        });
        verified.map(|()| record)
    });
    match found {
        Ok(record) => raw_record(py, &record),
        Err(reason) => damage(py, position, reason),
    }
}

fn raw_record<'py>(py: Python<'py>, record: &Record<'_>) -> PyResult<Bound<'py, PyAny>> {
    let mut entries = Vec::new();
    each_entry(record.properties, |name, value| {
        let pair = text(py, name).and_then(|name| Ok((name, text(py, value)?)));
        entries.push(pair.and_then(|pair| pair.into_pyobject(py)));
    });
    let entries = entries.into_iter().collect::<PyResult<Vec<_>>>()?;
    let fields = [
        text(py, record.topic)?,
        record.queue_id.into_pyobject(py)?.into_any(),
        record.queue_offset.into_pyobject(py)?.into_any(),
        record.position.into_pyobject(py)?.into_any(),
        record.data.len().into_pyobject(py)?.into_any(),
        record.version.into_pyobject(py)?.into_any(),
        record.flag.into_pyobject(py)?.into_any(),
        record.sys_flag.into_pyobject(py)?.into_any(),
        record.born_ms.into_pyobject(py)?.into_any(),
        PyBytes::new(py, record.born_host).into_any(),
        record.store_ms.into_pyobject(py)?.into_any(),
        PyBytes::new(py, record.store_host).into_any(),
        record.reconsume_times.into_pyobject(py)?.into_any(),
        record.prepared_offset.into_pyobject(py)?.into_any(),
        PyBytes::new(py, record.body).into_any(),
        (record.body_crc as i32).into_pyobject(py)?.into_any(),
        PyTuple::new(py, entries)?.into_any(),
        PyBytes::new(py, record.properties).into_any(),
    ];
    classes(py)?.raw_record.bind(py).call1(PyTuple::new(py, fields)?)
}

#[pyfunction]
pub fn encode_raw<'py>(
    py: Python<'py>,
    raw: &Bound<'_, PyAny>,
    checksum: bool,
) -> PyResult<Bound<'py, PyBytes>> {
    let refused = |what: &str| Refusal::bad(what).raise(py);
    let body: Vec<u8> = raw.getattr("body")?.extract()?;
    let born_host: Vec<u8> = raw.getattr("born_host")?.extract()?;
    let store_host: Vec<u8> = raw.getattr("store_host")?.extract()?;
    if ![8, 20].contains(&born_host.len()) || ![8, 20].contains(&store_host.len()) {
        return Err(refused("a host has 8 bytes (IPv4) or 20 (IPv6)"));
    }
    let topic = Encoded::new(&raw.getattr("topic")?, "topic")?;
    let is_v1 = raw.getattr("version")?.extract::<i64>()? == 1;
    if topic.bytes().len() > if is_v1 { TOPIC_SIZE_V1_MAX } else { TOPIC_SIZE_MAX } {
        return Err(refused("topic: too many bytes"));
    }
    let mut properties = encode_properties(&raw.getattr("properties")?)?;
    properties.resize(properties.len() + if checksum { TRAILER_SIZE } else { 0 }, 0);
    if properties.len() > PROPERTIES_SIZE_MAX {
        return Err(refused("properties take more than 32767 bytes"));
    }
    let hosts = if born_host.len() == 20 { BORN_IPV6 } else { 0 }
        | if store_host.len() == 20 { STORE_IPV6 } else { 0 };
    let sys_flag = raw.getattr("sys_flag")?.extract::<i32>()? & !(BORN_IPV6 | STORE_IPV6) | hosts;
    let topic_size = topic.bytes().len() + if is_v1 { 1 } else { 2 };
    let fixed_size = 72 + born_host.len() + store_host.len();
    let size = fixed_size + body.len() + topic_size + 2 + properties.len();
    let Ok(total) = i32::try_from(size) else {
        return Err(refused("the record takes more than 2 GiB"));
    };
    let mut data = vec![0u8; size];
    let mut out = Writer::new(&mut data);
    out.put(&total.to_be_bytes());
    out.put(&if is_v1 { MAGIC_V1 } else { MAGIC_V2 }.to_be_bytes());
    out.put(&hash::checksum(&body).to_be_bytes());
    out.put(&raw.getattr("queue_id")?.extract::<i32>()?.to_be_bytes());
    out.put(&raw.getattr("flag")?.extract::<i32>()?.to_be_bytes());
    out.put(&raw.getattr("queue_offset")?.extract::<i64>()?.to_be_bytes());
    out.put(&raw.getattr("position")?.extract::<i64>()?.to_be_bytes());
    out.put(&sys_flag.to_be_bytes());
    out.put(&raw.getattr("born_timestamp_ms")?.extract::<i64>()?.to_be_bytes());
    out.put(&born_host);
    out.put(&raw.getattr("store_timestamp_ms")?.extract::<i64>()?.to_be_bytes());
    out.put(&store_host);
    out.put(&raw.getattr("reconsume_times")?.extract::<i32>()?.to_be_bytes());
    out.put(&raw.getattr("prepared_transaction_offset")?.extract::<i64>()?.to_be_bytes());
    out.put(&(body.len() as u32).to_be_bytes());
    out.put(&body);
    let topic_digits = (topic.bytes().len() as u16).to_be_bytes();
    out.put(&topic_digits[usize::from(is_v1)..]);
    out.put(topic.bytes());
    out.put(&(properties.len() as u16).to_be_bytes());
    out.put(&properties);
    if checksum {
        seal_trailer(&mut data);
    }
    Ok(PyBytes::new(py, &data))
}

/// The properties without a checksum, which is computed anew.
fn encode_properties(properties: &Bound<'_, PyAny>) -> PyResult<Vec<u8>> {
    let mut data = Vec::new();
    for entry in properties.try_iter()? {
        let (name, value): (Bound<'_, PyAny>, Bound<'_, PyAny>) = entry?.extract()?;
        let name = Encoded::new(&name, "a property's name")?;
        let value = Encoded::new(&value, "a property's value")?;
        if name.bytes() != b"__CRC32#" {
            for part in [name.bytes(), b"\x01", value.bytes(), b"\x02"] {
                data.extend_from_slice(part);
            }
        }
    }
    Ok(data)
}

#[pyfunction]
#[pyo3(signature = (log, base, start, end, strict = false))]
pub fn check_log<'py>(
    py: Python<'py>,
    log: &Bound<'_, PyAny>,
    base: i64,
    start: i64,
    end: Bound64,
    strict: bool,
) -> PyResult<Bound<'py, PyTuple>> {
    let view = View::readable(log)?;
    let bytes = view.bytes();
    let limit = limit(bytes, base, end.0);
    let Ok(index) = usize::try_from(start.saturating_sub(base)) else {
        let found = damage(py, start, "outside the file")?;
        return (start, 0, found).into_pyobject(py);
    };
    if index >= limit {
        return (start, 0, py.None()).into_pyobject(py);
    }
    let scan = maybe_detached(py, limit - index, || check(bytes, base, index, limit, strict));
    let position = base + scan.index as i64;
    let found = damage_or_none(py, scan.damage.map(|reason| (position, reason)))?;
    (position, scan.records, found).into_pyobject(py)
}

#[pyfunction]
#[pyo3(signature = (log, base, start, end, strict = false))]
pub fn find_record(
    py: Python<'_>,
    log: &Bound<'_, PyAny>,
    base: i64,
    start: i64,
    end: Bound64,
    strict: bool,
) -> PyResult<i64> {
    let view = View::readable(log)?;
    let bytes = view.bytes();
    let limit = limit(bytes, base, end.0);
    let start = usize::try_from(start.saturating_sub(base)).unwrap_or(0);
    let size = limit.saturating_sub(start);
    let found = maybe_detached(py, size, || find(bytes, base, start, limit, strict));
    Ok(found.map_or(-1, |index| base + index as i64))
}

/// Let the kernel fault in the pages of [start, end) for writing, all in one call.
#[cfg(target_os = "linux")]
fn populated(bytes: &mut [u8], start: usize, end: usize) -> bool {
    let end = end.min(bytes.len());
    let first = start - start % PAGE_SIZE;
    if first >= end {
        return true;
    }
    // SAFETY: the range is in a mapping that is held; its contents stay as they are.
    unsafe {
        let place = bytes.as_mut_ptr().add(first);
        libc::madvise(place.cast(), end - first, libc::MADV_POPULATE_WRITE) == 0
    }
}

#[cfg(not(target_os = "linux"))]
fn populated(_: &mut [u8], _: usize, _: usize) -> bool {
    false
}

#[pyfunction]
pub fn prefault(
    py: Python<'_>,
    log: &Bound<'_, PyAny>,
    start_index: usize,
    size: usize,
) -> PyResult<()> {
    let mut view = View::writable(log)?;
    py.detach(|| {
        let end = start_index.saturating_add(size);
        if populated(view.bytes_mut(), start_index, end) {
            return;
        }
        for index in (start_index..end).step_by(PAGE_SIZE) {
            let Some(byte) = view.bytes_mut().get_mut(index) else {
                return;
            };
            // SAFETY: the byte is valid for writes; an atomic or-with-0 makes its page present and
            // dirty, and cannot undo what the writer stores at the same time. The compiler must not
            // know that it is 0: it would make a read of it, which leaves the page read-only.
            let byte = unsafe { AtomicU8::from_ptr(byte) };
            byte.fetch_or(std::hint::black_box(0), Ordering::Relaxed);
        }
    });
    Ok(())
}

#[pyfunction]
#[pyo3(signature = (index, slots, entries_max, text, begin_ms, end_ms, count_max))]
#[allow(clippy::too_many_arguments)]
pub fn index_lookup(
    py: Python<'_>,
    index: &Bound<'_, PyAny>,
    slots: i64,
    entries_max: i64,
    text: &Bound<'_, PyAny>,
    begin_ms: Bound64,
    end_ms: Bound64,
    count_max: Bound64,
) -> PyResult<Vec<i64>> {
    let view = View::readable(index)?;
    let division =
        Division::new(view.size(), slots, entries_max).map_err(|refusal| refusal.raise(py))?;
    let asked = Lookup {
        hash: hash::index_hash(java_hash(text)? as u32),
        begin_ms: begin_ms.0,
        end_ms: end_ms.0,
        count_max: usize::try_from(count_max.0).unwrap_or(0),
    };
    let bytes = view.bytes();
    Ok(py.detach(|| lookup(bytes, division, &asked)))
}

#[pyfunction]
#[pyo3(signature = (index, slots, entries_max, keep, stop = i64::MAX))]
pub fn index_relink(
    py: Python<'_>,
    index: &Bound<'_, PyAny>,
    slots: i64,
    entries_max: i64,
    keep: i64,
    stop: i64,
) -> PyResult<()> {
    let mut view = View::writable(index)?;
    let division =
        Division::new(view.size(), slots, entries_max).map_err(|refusal| refusal.raise(py))?;
    let bytes = view.bytes_mut();
    py.detach(|| relink(bytes, division, keep, stop));
    Ok(())
}
