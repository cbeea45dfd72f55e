//! Inner batches: many messages in the body of one record, in Kafka's form or in RocketMQ's.
//!
//! Every size in them is a claim of the sender: nothing is read past the end of a part, and what
//! a compressed batch may grow to is bounded.

use std::sync::{Arc, RwLock};

use crate::bytes::{i16_at, i32_at, i64_at, part, u32_at};
use crate::entry::{Arena, Entry, HeaderList, Stamps, TagList};
use crate::inflate::inflate;
use crate::properties::Properties;
use crate::record::Reason;

pub const HEAD_SIZE: usize = 61;
const CHECKED_FROM: usize = 21;
const CODEC: i16 = 7;
const LOG_APPEND_TIME: i16 = 8;
const CONTROL: i16 = 32;
const INNER_HEAD_SIZE: usize = 20;

const CUT_SHORT: Reason = "the Kafka batch is cut short";
const MALFORMED: Reason = "a Kafka message is malformed";

/// The name of the header whose values are a message's tags.
static TAG_HEADER: RwLock<Option<Arc<[u8]>>> = RwLock::new(None);
const DEFAULT_TAG_HEADER: &[u8] = b"tag";

pub fn tag_header() -> Arc<[u8]> {
    let known = TAG_HEADER.read().map(|found| found.clone()).unwrap_or(None);
    known.unwrap_or_else(|| Arc::from(DEFAULT_TAG_HEADER))
}

pub fn use_tag_header(name: &[u8]) {
    if let Ok(mut known) = TAG_HEADER.write() {
        *known = Some(Arc::from(name));
    }
}

struct Head {
    attributes: i16,
    last_offset_delta: i32,
    base_ms: i64,
    max_ms: i64,
    count: i32,
}

/// Hand every message of the Kafka batches in `body` to `visit`. The first batch starts at
/// `first.offset`, whatever the bytes say; control batches only take up offsets. Without a header
/// of their own, the process's gives the tags.
pub fn read_kafka<'a>(
    body: &'a [u8],
    first: Stamps,
    own_tag_header: Option<&'a [u8]>,
    arena: &'a Arena,
    mut visit: impl FnMut(Entry<'a>),
) -> Result<(), Reason> {
    let mut rest = body;
    let mut base = first.offset;
    while !rest.is_empty() {
        let (head, batch) = read_head(rest)?;
        if head.attributes & CONTROL == 0 {
            let content = batch.get(HEAD_SIZE..).ok_or(CUT_SHORT)?;
            let content = match head.attributes & CODEC {
                0 => content,
                codec => arena.keep(inflate(codec, content)?),
            };
            let stamps = Stamps { offset: base, ..first };
            read_messages(content, &head, stamps, own_tag_header, &mut visit).ok_or(MALFORMED)?;
        }
        let last_delta = i64::from(head.last_offset_delta);
        base = base.checked_add(last_delta + 1).ok_or(MALFORMED)?;
        rest = rest.get(batch.len()..).ok_or(CUT_SHORT)?;
    }
    Ok(())
}

fn read_head(data: &[u8]) -> Result<(Head, &[u8]), Reason> {
    let fixed = data.get(..HEAD_SIZE).ok_or(CUT_SHORT)?;
    if fixed[16] != 2 {
        return Err("the Kafka batch is not of version 2");
    }
    let size = i64::from(i32_at(fixed, 8).ok_or(CUT_SHORT)?) + 12;
    let batch = part(data, 0, size).filter(|batch| batch.len() >= HEAD_SIZE).ok_or(CUT_SHORT)?;
    let head = Head {
        attributes: i16_at(fixed, 21).ok_or(CUT_SHORT)?,
        last_offset_delta: i32_at(fixed, 23).ok_or(CUT_SHORT)?,
        base_ms: i64_at(fixed, 27).ok_or(CUT_SHORT)?,
        max_ms: i64_at(fixed, 35).ok_or(CUT_SHORT)?,
        count: i32_at(fixed, 57).ok_or(CUT_SHORT)?,
    };
    if head.last_offset_delta < 0 || head.count < 0 {
        return Err("the Kafka batch counts its messages below zero");
    }
    let checksum = crc32c::crc32c(batch.get(CHECKED_FROM..).ok_or(CUT_SHORT)?);
    if u32_at(fixed, 17) != Some(checksum) {
        return Err("the checksum of the Kafka batch does not match");
    }
    Ok((head, batch))
}

fn read_messages<'a>(
    content: &'a [u8],
    head: &Head,
    first: Stamps,
    own_tag_header: Option<&'a [u8]>,
    visit: &mut impl FnMut(Entry<'a>),
) -> Option<()> {
    let shared = tag_header();
    let wanted = own_tag_header.unwrap_or(&shared);
    let mut cursor = Cursor(content);
    for _ in 0..head.count {
        let size = cursor.varint()?;
        let mut message = Cursor(cursor.read(size)?);
        message.read(1)?;
        let delta_ms = message.varint()?;
        let delta = message.varint()?;
        if !(0..=i64::from(head.last_offset_delta)).contains(&delta) {
            return None;
        }
        let key = message.optional()?;
        let value = message.optional()?;
        let headers = message.headers()?;
        let timestamp_ms = match head.attributes & LOG_APPEND_TIME {
            0 => head.base_ms.checked_add(delta_ms)?,
            _ => head.max_ms,
        };
        let offset = first.offset.checked_add(delta)?;
        visit(Entry {
            stamps: Stamps { offset, timestamp_ms, ..first },
            value,
            key,
            tags: match headers {
                HeaderList::Kafka(count, data) if !wanted.is_empty() => {
                    let is_tag = |(name, _): (&[u8], _)| name == wanted;
                    match KafkaHeaders::new(count, data).any(is_tag) {
                        true => TagList::Headers(own_tag_header, count, data),
                        false => TagList::None,
                    }
                }
                _ => TagList::None,
            },
            headers,
            expires_at_ms: None,
        });
    }
    cursor.0.is_empty().then_some(())
}

/// The rest of some bytes.
struct Cursor<'a>(&'a [u8]);

impl<'a> Cursor<'a> {
    #[inline]
    fn read(&mut self, size: i64) -> Option<&'a [u8]> {
        let (taken, rest) = self.0.split_at_checked(usize::try_from(size).ok()?)?;
        self.0 = rest;
        Some(taken)
    }

    /// A zigzag number of 7 bits a byte, the least significant first; ten bytes at most.
    #[inline]
    fn varint(&mut self) -> Option<i64> {
        let mut value = 0u64;
        for n in 0..10 {
            let (&byte, rest) = self.0.split_first()?;
            self.0 = rest;
            value |= u64::from(byte & 0x7F) << (7 * n);
            if byte < 0x80 {
                return Some((value >> 1) as i64 ^ -((value & 1) as i64));
            }
        }
        None
    }

    #[inline]
    fn optional(&mut self) -> Option<Option<&'a [u8]>> {
        match self.varint()? {
            -1 => Some(None),
            size => Some(Some(self.read(size)?)),
        }
    }

    /// The headers, with which a message ends.
    #[inline]
    fn headers(&mut self) -> Option<HeaderList<'a>> {
        let count = usize::try_from(self.varint()?).ok()?;
        let data = self.0;
        if count > data.len() {
            return None;
        }
        for _ in 0..count {
            self.header()?;
        }
        if !self.0.is_empty() {
            return None;
        }
        Some(if count == 0 { HeaderList::None } else { HeaderList::Kafka(count, data) })
    }

    fn header(&mut self) -> Option<(&'a [u8], Option<&'a [u8]>)> {
        let size = self.varint()?;
        Some((self.read(size)?, self.optional()?))
    }
}

/// Walks the headers of a message that was read before.
pub struct KafkaHeaders<'a> {
    left: usize,
    cursor: Cursor<'a>,
}

impl<'a> KafkaHeaders<'a> {
    pub fn new(count: usize, data: &'a [u8]) -> Self {
        Self { left: count, cursor: Cursor(data) }
    }
}

impl<'a> Iterator for KafkaHeaders<'a> {
    type Item = (&'a [u8], Option<&'a [u8]>);

    fn next(&mut self) -> Option<Self::Item> {
        self.left = self.left.checked_sub(1)?;
        self.cursor.header()
    }
}

/// Hand every message of RocketMQ's inner form to `visit`, with its properties.
pub fn read_rocketmq<'a>(
    body: &'a [u8],
    first: Stamps,
    mut visit: impl FnMut(Entry<'a>, &Properties<'a>),
) -> Result<(), Reason> {
    let mut rest = body;
    let mut stamps = first;
    while !rest.is_empty() {
        let (content, properties, size) =
            inner_message(rest).ok_or("an inner message is malformed")?;
        let found = Properties::parse(properties);
        visit(Entry::new(content, properties, &found, stamps)?, &found);
        stamps.offset = stamps.offset.checked_add(1).ok_or("offsets end")?;
        rest = rest.get(size..).unwrap_or(&[]);
    }
    Ok(())
}

/// Body, properties and size of the inner message at the start of `data`.
fn inner_message(data: &[u8]) -> Option<(&[u8], &[u8], usize)> {
    let message = part(data, 0, i32_at(data, 0)?.into())?;
    let body = part(message, INNER_HEAD_SIZE, i32_at(message, 16)?.into())?;
    let properties_at = INNER_HEAD_SIZE + body.len() + 2;
    let properties = message.get(properties_at..)?;
    let size = i16_at(message, properties_at - 2)?;
    (i64::from(size) == properties.len() as i64).then_some((body, properties, message.len()))
}

#[cfg(test)]
mod tests {
    use super::*;

    const STAMPS: Stamps = Stamps { offset: 7, timestamp_ms: 1, store_ms: 2, epoch: 3 };

    /// One message without key: size, attributes, both deltas 0, null key, value, no headers.
    fn batch(codec: u8, content: &[u8]) -> Vec<u8> {
        let mut data = vec![0u8; HEAD_SIZE];
        data[16] = 2;
        data[22] = codec;
        data[60] = 1;
        data.extend_from_slice(content);
        let size = (data.len() - 12) as u32;
        data[8..12].copy_from_slice(&size.to_be_bytes());
        let checksum = crc32c::crc32c(&data[CHECKED_FROM..]);
        data[17..21].copy_from_slice(&checksum.to_be_bytes());
        data
    }

    fn values(body: &[u8]) -> Result<Vec<(i64, Vec<u8>)>, Reason> {
        let arena = Arena::default();
        let mut all = Vec::new();
        read_kafka(body, STAMPS, None, &arena, |entry| {
            all.push((entry.stamps.offset, entry.value.unwrap_or(b"null").to_vec()));
        })?;
        Ok(all)
    }

    #[test]
    fn batches_follow_one_another() {
        let message = b"\x10\x00\x00\x00\x01\x04ab\x00";
        let one = batch(0, message);
        let two = [one.clone(), one].concat();
        assert_eq!(values(&two), Ok(vec![(7, b"ab".to_vec()), (8, b"ab".to_vec())]));
    }

    #[test]
    fn every_cut_and_every_flipped_bit_is_noticed() {
        let good = batch(0, b"\x1a\x00\x02\x00\x02k\x04ab\x02\x02h\x02v");
        assert_eq!(values(&good).map(|all| all.len()), Ok(1));
        for cut in 1..good.len() {
            assert!(values(&good[..cut]).is_err(), "{cut}");
        }
        for bit in CHECKED_FROM * 8..good.len() * 8 {
            let mut bad = good.clone();
            bad[bit / 8] ^= 1 << (bit % 8);
            assert!(values(&bad).is_err(), "{bit}");
        }
    }

    #[test]
    fn lengths_are_not_believed() {
        for content in [&b"\x10"[..], b"\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff", b"\x01", b"\x00"]
        {
            assert!(values(&batch(0, content)).is_err(), "{content:?}");
        }
        assert!(values(&batch(4, b"\x28\xb5\x2f\xfd\xff\xff\xff")).is_err());
        assert!(values(&batch(2, b"\xff\xff\xff\xff\x0fxx")).is_err());
        assert!(values(&batch(6, b"")).is_err());
    }
}
