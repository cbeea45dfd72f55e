//! Keys of the messages inside batches, as entries of a key index, and the filling of its files.

use pyo3::prelude::*;
use pyo3::types::{PyBytes, PyTuple};

use crate::bytes::{i16_at, i32_at, i64_at, View};
use crate::entry::{Arena, Entry};
use crate::extract::Bound64;
use crate::hash::{index_hash, java_hash};
use crate::index::{fill, Division};
use crate::message::{key_token, plain_key_hash, KEY_TOKEN_MAX};
use crate::python::damage_or_none;
use crate::queue::{Kind, BATCH_UNIT_SIZE};
use crate::read::{Page, Sink};
use crate::reader::Request;

const PACKED_SIZE: usize = 20;

struct Key {
    hash: u32,
    offset: i64,
    store_ms: i64,
}

struct Keys {
    /// The hash of `topic#`.
    seed: u32,
    found: Vec<Key>,
}

impl<'a> Sink<'a> for Keys {
    #[inline]
    fn add(&mut self, entry: &Entry<'a>) {
        if let Some(key) = entry.key {
            self.add_key(entry, key);
            // A message of a RocketMQ client is found by each word of its KEYS, and by its UNIQ_KEY.
            if key.contains(&b' ') {
                key.split(|&byte| byte == b' ').for_each(|word| self.add_key(entry, word));
            }
        }
        entry.headers.each(|name, value| {
            if name == b"UNIQ_KEY" {
                self.add_key(entry, value.unwrap_or(&[]));
            }
        });
    }
}

impl Keys {
    fn add_key(&mut self, entry: &Entry<'_>, key: &[u8]) {
        let hash = plain_key_hash(self.seed, key).unwrap_or_else(|| {
            let mut token = [0u8; KEY_TOKEN_MAX];
            let size = key_token(key, &mut token);
            java_hash(self.seed, token.get(..size).unwrap_or(&token))
        });
        let (offset, store_ms) = (entry.stamps.offset, entry.stamps.store_ms);
        self.found.push(Key { hash: index_hash(hash), offset, store_ms });
    }
}

/// The keys of the messages from `start_offset` on of consecutive batch-queue units: entries of 20
/// bytes (hash 4, position of the batch 8, store time 8), one for each key of a batch.
#[pyfunction]
#[pyo3(signature = (
    log, base, units, start_offset, topic, queue_id, max_records, max_size, deleted, now_ms,
    strict = false
))]
#[allow(clippy::too_many_arguments)]
pub fn read_keys<'py>(
    py: Python<'py>,
    log: &Bound<'py, PyAny>,
    base: i64,
    units: &Bound<'py, PyAny>,
    start_offset: i64,
    topic: &Bound<'py, PyAny>,
    queue_id: i32,
    max_records: Bound64,
    max_size: Bound64,
    deleted: &Bound<'py, PyAny>,
    now_ms: Bound64,
    strict: bool,
) -> PyResult<Bound<'py, PyTuple>> {
    let none = py.None();
    let mut asked =
        Request::new(log, base, units, topic, queue_id, deleted, now_ms, none.bind(py), strict)?;
    let mut page = Page::new(start_offset, max_records.0, max_size.0);
    let arena = Arena::default();
    let seed = java_hash(java_hash(0, asked.topic()), b"#");
    let mut keys = Keys { seed, found: Vec::new() };
    asked.read(py, Kind::Batch, None, &mut page, &arena, &mut keys);
    let packed = pack(View::readable(units)?.bytes(), &keys.found);
    let damage = damage_or_none(py, page.damage)?;
    (PyBytes::new(py, &packed), page.next_offset, page.size, damage).into_pyobject(py)
}

/// Give keys the positions of their batches. Units and keys are in the order of their offsets.
fn pack(units: &[u8], keys: &[Key]) -> Vec<u8> {
    let mut packed = Vec::with_capacity(keys.len() * PACKED_SIZE);
    let mut rest = keys;
    for unit in units.chunks_exact(BATCH_UNIT_SIZE) {
        let (Some(position), Some(base), Some(count)) =
            (i64_at(unit, 0), i64_at(unit, 28), i16_at(unit, 36))
        else {
            break;
        };
        let end = base.saturating_add(count.into());
        let here = rest.iter().take_while(|key| key.offset < end).count();
        let (batch, after) = rest.split_at(here);
        rest = after;
        let mut hashes: Vec<(u32, i64)> =
            batch.iter().map(|key| (key.hash, key.store_ms)).collect();
        hashes.sort_unstable();
        hashes.dedup();
        for (hash, store_ms) in hashes {
            packed.extend_from_slice(&hash.to_be_bytes());
            packed.extend_from_slice(&position.to_be_bytes());
            packed.extend_from_slice(&store_ms.to_be_bytes());
        }
    }
    packed
}

/// Put entries of `read_keys` into an index file; return how many it had room for.
#[pyfunction]
pub fn index_fill(
    py: Python<'_>,
    index: &Bound<'_, PyAny>,
    slots: i64,
    entries_max: i64,
    entries: &Bound<'_, PyAny>,
) -> PyResult<usize> {
    let view = View::writable(index)?;
    let division =
        Division::new(view.size(), slots, entries_max).map_err(|refusal| refusal.raise(py))?;
    let entries = View::readable(entries)?;
    let packed = entries.bytes().chunks_exact(PACKED_SIZE).filter_map(|entry| {
        Some((i32_at(entry, 0)? as u32, i64_at(entry, 4)?, i64_at(entry, 12)?))
    });
    Ok(py.detach(|| fill(view, division, packed)))
}
