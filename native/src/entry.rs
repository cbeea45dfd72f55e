//! A message on its way out, still as slices of the log (or of an inflated batch).
//!
//! Building an entry proves that its parts can be walked; walking them again is bounded all the
//! same, because a mapped file may change in between.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::Mutex;

use crate::bytes::{i32_at, part, u16_at, u32_at};
use crate::kafka::{tag_header, KafkaHeaders};
use crate::properties::{each_entry, is_header, Properties};
use crate::record::Reason;

#[derive(Clone, Copy)]
pub struct Stamps {
    pub offset: i64,
    pub timestamp_ms: i64,
    pub store_ms: i64,
    pub epoch: i64,
}

#[derive(Clone, Copy)]
pub struct Entry<'a> {
    pub stamps: Stamps,
    pub value: Option<&'a [u8]>,
    pub key: Option<&'a [u8]>,
    pub tags: TagList<'a>,
    pub headers: HeaderList<'a>,
    pub expires_at_ms: Option<i64>,
}

#[derive(Clone, Copy)]
pub enum TagList<'a> {
    None,
    One(&'a [u8]),
    /// `count` of an envelope's sized tags.
    Many(usize, &'a [u8]),
    /// The values of those of a Kafka message's `count` headers that are tags.
    Headers(Option<&'a [u8]>, usize, &'a [u8]),
}

#[derive(Clone, Copy)]
pub enum HeaderList<'a> {
    None,
    /// Those of the properties that are headers.
    Properties(&'a [u8]),
    /// `count` of an envelope's headers.
    Envelope(usize, &'a [u8]),
    /// `count` of a Kafka message's headers.
    Kafka(usize, &'a [u8]),
}

impl<'a> Entry<'a> {
    /// The message that a body and its properties hold.
    #[inline]
    pub fn new(
        body: &'a [u8],
        properties: &'a [u8],
        found: &Properties<'a>,
        stamps: Stamps,
    ) -> Result<Self, Reason> {
        let expires_at_ms = found.expires_at_ms();
        if found.is_envelope() {
            let opened = open_envelope(body, stamps, expires_at_ms);
            return opened.ok_or("the envelope is malformed");
        }
        Ok(Self {
            stamps,
            value: Some(body),
            key: (!found.keys().is_empty()).then_some(found.keys()),
            tags: if found.tags().is_empty() { TagList::None } else { TagList::One(found.tags()) },
            headers: match found.has_headers {
                true => HeaderList::Properties(properties),
                false => HeaderList::None,
            },
            expires_at_ms,
        })
    }

    /// Whether a query for `key` finds it: by its key, or, for a plain record, by a word of KEYS or
    /// by UNIQ_KEY.
    pub fn has_key(&self, key: &[u8], found: Option<&Properties<'_>>) -> bool {
        if self.key == Some(key) {
            return true;
        }
        let Some(found) = found.filter(|found| !found.is_envelope() && !key.is_empty()) else {
            return false;
        };
        found.unique_key() == key || found.key_words().any(|word| word == key)
    }
}

fn open_envelope(body: &[u8], stamps: Stamps, expires_at_ms: Option<i64>) -> Option<Entry<'_>> {
    let (version, flags) = (*body.first()?, *body.get(1)?);
    if version != 1 || flags & !3 != 0 {
        return None;
    }
    let key = part(body, 6, u32_at(body, 2)?.into())?;
    let tags_at = 6 + key.len();
    let tag_count = usize::from(u16_at(body, tags_at)?);
    let mut at = tags_at + 2;
    for _ in 0..tag_count {
        at += 4 + part(body, at + 4, u32_at(body, at)?.into())?.len();
    }
    let tags = body.get(tags_at + 2..at)?;
    let header_count = u32_at(body, at)? as usize;
    at += 4;
    let headers_at = at;
    for _ in 0..header_count {
        at = next_header(body, at)?.2;
    }
    let headers = body.get(headers_at..at)?;
    let value = body.get(at..)?;
    let is_null = flags & 2 != 0;
    if is_null && !value.is_empty() {
        return None;
    }
    Some(Entry {
        stamps,
        value: (!is_null).then_some(value),
        key: (flags & 1 != 0).then_some(key),
        tags: if tag_count == 0 { TagList::None } else { TagList::Many(tag_count, tags) },
        headers: match header_count {
            0 => HeaderList::None,
            count => HeaderList::Envelope(count, headers),
        },
        expires_at_ms,
    })
}

/// A header's value, which may be null.
type Cell<'a> = Option<&'a [u8]>;

/// Name and value of an envelope's header, and where the next one starts.
#[inline]
fn next_header(data: &[u8], at: usize) -> Option<(&[u8], Cell<'_>, usize)> {
    let name = part(data, at + 4, u32_at(data, at)?.into())?;
    let value_at = at + 4 + name.len();
    let size = i32_at(data, value_at)?;
    if size == -1 {
        return Some((name, None, value_at + 4));
    }
    let value = part(data, value_at + 4, size.into())?;
    Some((name, Some(value), value_at + 4 + value.len()))
}

impl<'a> TagList<'a> {
    pub fn has(&self, tag: &[u8]) -> bool {
        let mut found = false;
        self.each(|each| found |= each == tag);
        found
    }

    #[inline]
    pub fn each(&self, mut look: impl FnMut(&'a [u8])) {
        match *self {
            Self::None => (),
            Self::One(tag) => look(tag),
            Self::Many(count, data) => {
                let mut at = 0;
                for _ in 0..count {
                    let size = u32_at(data, at).unwrap_or(u32::MAX);
                    let Some(tag) = part(data, at + 4, size.into()) else {
                        return;
                    };
                    look(tag);
                    at += 4 + tag.len();
                }
            }
            Self::Headers(own, count, data) => {
                let shared = tag_header();
                let wanted = own.unwrap_or(&shared);
                for (name, value) in KafkaHeaders::new(count, data) {
                    match value {
                        Some(tag) if name == wanted && !tag.is_empty() => look(tag),
                        _ => (),
                    }
                }
            }
        }
    }
}

impl<'a> HeaderList<'a> {
    #[inline]
    pub fn each(&self, mut look: impl FnMut(&'a [u8], Option<&'a [u8]>)) {
        match *self {
            Self::None => (),
            Self::Properties(data) => each_entry(data, |name, value| {
                if is_header(name) {
                    look(name, Some(value));
                }
            }),
            Self::Envelope(count, data) => {
                let mut at = 0;
                for _ in 0..count {
                    let Some((name, value, next)) = next_header(data, at) else {
                        return;
                    };
                    look(name, value);
                    at = next;
                }
            }
            Self::Kafka(count, data) => {
                for (name, value) in KafkaHeaders::new(count, data) {
                    look(name, value);
                }
            }
        }
    }
}

/// Keeps inflated bytes alive as long as the entries that point into them.
#[derive(Default)]
pub struct Arena {
    kept: Mutex<Vec<Box<[u8]>>>,
    size: AtomicUsize,
}

impl Arena {
    pub fn keep(&self, data: Vec<u8>) -> &[u8] {
        let data = data.into_boxed_slice();
        // SAFETY: the bytes are on the heap, never changed, and freed with the arena only.
        let kept = unsafe { std::slice::from_raw_parts(data.as_ptr(), data.len()) };
        self.size.fetch_add(data.len(), Ordering::Relaxed);
        self.kept.lock().unwrap_or_else(|poisoned| poisoned.into_inner()).push(data);
        kept
    }

    /// How many bytes it keeps.
    pub fn size(&self) -> usize {
        self.size.load(Ordering::Relaxed)
    }
}
