//! Records of any origin as one Kafka batch, on their way to a client.
//!
//! `records.batch_of` in the Kafka front end is the reference implementation.

use pyo3::intern;
use pyo3::prelude::*;
use pyo3::types::{PyBytes, PyList};

use crate::errors::Refusal;
use crate::extract::extract_bytes;
use crate::kafka::HEAD_SIZE;
use crate::python::Encoded;

const CHECKED_FROM: usize = 21;
const MAGIC: u8 = 2;
const TRANSACTIONAL: i16 = 16;
const NO_PRODUCER: (i64, i16, i32) = (-1, -1, -1);

/// One batch, not compressed, of records with ascending offsets; offsets between them are holes.
#[pyfunction]
pub fn build_batch<'py>(
    py: Python<'py>,
    records: &Bound<'py, PyList>,
    tag_header: &str,
    transaction: Option<(i64, i16, i32)>,
) -> PyResult<Bound<'py, PyBytes>> {
    let (Ok(first), Ok(last)) =
        (records.get_item(0), records.get_item(records.len().saturating_sub(1)))
    else {
        return Err(Refusal::bad("a batch has at least one record").raise(py));
    };
    let base: i64 = first.getattr(intern!(py, "offset"))?.extract()?;
    let end: i64 = last.getattr(intern!(py, "offset"))?.extract()?;
    let base_ms: i64 = first.getattr(intern!(py, "timestamp_ms"))?.extract()?;
    let epoch: i64 = last.getattr(intern!(py, "leader_epoch"))?.extract()?;
    let mut newest = i64::MIN;
    let mut out = vec![0u8; HEAD_SIZE];
    let mut one = Vec::new();
    for record in records.iter() {
        let timestamp_ms: i64 = record.getattr(intern!(py, "timestamp_ms"))?.extract()?;
        let offset: i64 = record.getattr(intern!(py, "offset"))?.extract()?;
        newest = newest.max(timestamp_ms);
        one.clear();
        one.push(0);
        put_varint(&mut one, timestamp_ms.wrapping_sub(base_ms));
        put_varint(&mut one, offset.wrapping_sub(base));
        put_blob(&mut one, extract_bytes(&record.getattr(intern!(py, "key"))?, "key")?);
        put_blob(&mut one, extract_bytes(&record.getattr(intern!(py, "value"))?, "value")?);
        put_headers(&mut one, &record, tag_header)?;
        put_varint(&mut out, one.len() as i64);
        out.extend_from_slice(&one);
    }
    let attributes = if transaction.is_some() { TRANSACTIONAL } else { 0 };
    let (producer_id, producer_epoch, sequence) = transaction.unwrap_or(NO_PRODUCER);
    let (Ok(size), Ok(delta)) =
        (i32::try_from(out.len() - 12), i32::try_from(end.wrapping_sub(base)))
    else {
        return Err(Refusal::bad("too much for one batch").raise(py));
    };
    let mut head = Vec::with_capacity(HEAD_SIZE);
    head.extend_from_slice(&base.to_be_bytes());
    head.extend_from_slice(&size.to_be_bytes());
    head.extend_from_slice(&(epoch.clamp(0, i32::MAX.into()) as i32).to_be_bytes());
    head.push(MAGIC);
    head.extend_from_slice(&[0; 4]);
    head.extend_from_slice(&attributes.to_be_bytes());
    head.extend_from_slice(&delta.to_be_bytes());
    head.extend_from_slice(&base_ms.to_be_bytes());
    head.extend_from_slice(&newest.to_be_bytes());
    head.extend_from_slice(&producer_id.to_be_bytes());
    head.extend_from_slice(&producer_epoch.to_be_bytes());
    head.extend_from_slice(&sequence.to_be_bytes());
    head.extend_from_slice(&(records.len() as i32).to_be_bytes());
    out[..HEAD_SIZE].copy_from_slice(&head);
    let checksum = crc32c::crc32c(&out[CHECKED_FROM..]);
    out[17..CHECKED_FROM].copy_from_slice(&checksum.to_be_bytes());
    Ok(PyBytes::new(py, &out))
}

/// The headers, and the tags as headers of their own unless there are such already.
fn put_headers(out: &mut Vec<u8>, record: &Bound<'_, PyAny>, tag_header: &str) -> PyResult<()> {
    let py = record.py();
    let headers = record.getattr(intern!(py, "headers"))?;
    let tags = record.getattr(intern!(py, "tags"))?;
    let (mut count, tag_count) = (headers.len()?, tags.len()?);
    if count == 0 && (tag_count == 0 || tag_header.is_empty()) {
        out.push(0);
        return Ok(());
    }
    let mut body = Vec::new();
    let mut is_tagged = tag_header.is_empty();
    for header in headers.try_iter()? {
        let header = header?;
        let name = header.get_item(0)?;
        let name = Encoded::new(&name, "header")?;
        is_tagged |= name.bytes() == tag_header.as_bytes();
        put_blob(&mut body, Some(name.bytes()));
        let value = header.get_item(1)?;
        put_blob(&mut body, extract_bytes(&value, "header")?);
    }
    if !is_tagged {
        for tag in tags.try_iter()? {
            let tag = tag?;
            put_blob(&mut body, Some(tag_header.as_bytes()));
            put_blob(&mut body, Some(Encoded::new(&tag, "tag")?.bytes()));
        }
        count += tag_count;
    }
    put_varint(out, count as i64);
    out.extend_from_slice(&body);
    Ok(())
}

fn put_blob(out: &mut Vec<u8>, data: Option<&[u8]>) {
    match data {
        None => out.push(1),
        Some(data) => {
            put_varint(out, data.len() as i64);
            out.extend_from_slice(data);
        }
    }
}

/// A signed number, zigzag, 7 bits a byte.
fn put_varint(out: &mut Vec<u8>, value: i64) {
    let mut rest = (value << 1 ^ value >> 63) as u64;
    while rest > 0x7F {
        out.push(rest as u8 | 0x80);
        rest >>= 7;
    }
    out.push(rest as u8);
}
