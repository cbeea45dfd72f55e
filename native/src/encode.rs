//! Encodes records: first how large they become, then their bytes, straight into the log.
//!
//! The plan of a record decides plain or envelope and fixes every size, so that limits are checked
//! before the first byte is written and a group is all or nothing.

use crate::bytes::{put, Decimal, Writer};
use crate::errors::Refusal;
use crate::hash::checksum;
use crate::message::{key_token, Message, Tags, KEY_TOKEN_MAX, TAGS_MAX};
use crate::python::Reserved;
use crate::record::{
    put_trailer, BODY_CRC_AT, BORN_HOST_AT, BORN_IPV6, BORN_TIMESTAMP_AT, MAGIC_V1, MAGIC_V2,
    POSITION_AT, QUEUE_ID_AT, QUEUE_OFFSET_AT, STORE_IPV6, SYS_FLAG_AT, TRAILER_SIZE,
};

pub const PROPERTIES_SIZE_MAX: usize = 32_767;
pub const TOPIC_SIZE_V1_MAX: usize = 127;
pub const TOPIC_SIZE_MAX: usize = 32_767;
const ENVELOPE_PROPERTY_SIZE: usize = 11;
pub const MULTI_TAG: &[u8] = b"*multi*";

/// What all records of one queue have in common, ready to be copied.
pub struct Shape {
    head: Vec<u8>,
    topic: Vec<u8>,
    sys_flag: i32,
    store_at: usize,
    epoch_at: usize,
}

impl Shape {
    pub fn new(topic: &[u8], queue_id: i32, hosts: &Hosts) -> Result<Self, Refusal> {
        if topic.is_empty() || topic.len() > TOPIC_SIZE_MAX {
            return Err(Refusal::bad("a topic takes 1 to 32767 bytes of UTF-8"));
        }
        let is_v1 = topic.len() <= TOPIC_SIZE_V1_MAX;
        let store_at = BORN_HOST_AT + hosts.born.len();
        let tail_at = store_at + 8 + hosts.store.len();
        let mut head = vec![0; tail_at + 16];
        put(&mut head, 4, &if is_v1 { MAGIC_V1 } else { MAGIC_V2 }.to_be_bytes());
        put(&mut head, QUEUE_ID_AT, &queue_id.to_be_bytes());
        put(&mut head, SYS_FLAG_AT, &hosts.sys_flag().to_be_bytes());
        put(&mut head, BORN_HOST_AT, &hosts.born);
        put(&mut head, store_at + 8, &hosts.store);
        let mut sized = if is_v1 {
            vec![topic.len() as u8]
        } else {
            (topic.len() as u16).to_be_bytes().to_vec()
        };
        sized.extend_from_slice(topic);
        let sys_flag = hosts.sys_flag();
        Ok(Self { head, topic: sized, sys_flag, store_at, epoch_at: tail_at + 4 })
    }

    fn record_size(&self, body_size: usize, properties_size: usize) -> usize {
        self.head.len() + body_size + self.topic.len() + 2 + properties_size
    }
}

/// The addresses that every record carries, IPv4 or IPv6 with a port.
pub struct Hosts {
    pub born: Vec<u8>,
    pub store: Vec<u8>,
}

impl Hosts {
    pub fn sys_flag(&self) -> i32 {
        let born = if self.born.len() == 20 { BORN_IPV6 } else { 0 };
        let store = if self.store.len() == 20 { STORE_IPV6 } else { 0 };
        born | store
    }
}

/// Where and when a record is written.
pub struct Place {
    pub position: i64,
    pub offset: i64,
    pub born_ms: i64,
    pub store_ms: i64,
    pub epoch: i64,
    /// Flags besides those of the hosts.
    pub sys_flag: i32,
}

/// The properties of ours behind the user's.
#[derive(Default)]
pub struct Tail<'a> {
    pub expires_at_ms: Option<i64>,
    /// Base offset and count of messages, in batch queues.
    pub inner: Option<(i64, i64)>,
    pub kafka: bool,
    pub producer: Option<&'a [u8]>,
    /// Bytes of the group, in its first record; 0 while it is not known.
    pub group: Option<u64>,
}

impl Tail<'_> {
    #[inline]
    fn size(&self) -> usize {
        let mut size = TRAILER_SIZE;
        if let Some(expires) = self.expires_at_ms {
            size += 10 + Decimal::new(expires).size();
        }
        if let Some((base, count)) = self.inner {
            size += 11 + Decimal::new(count).size() + 12 + Decimal::new(base).size();
        }
        if self.kafka {
            size += 11;
        }
        if let Some(producer) = self.producer {
            size += 10 + producer.len();
        }
        if self.group.is_some() {
            size += 20;
        }
        size
    }

    #[inline]
    fn write(&self, out: &mut Writer<'_>, is_envelope: bool) {
        if is_envelope {
            out.property(b"PSTK_ENV", b"1");
        }
        if let Some(expires) = self.expires_at_ms {
            out.property(b"PSTK_EXP", Decimal::new(expires).bytes());
        }
        if let Some((base, count)) = self.inner {
            out.property(b"INNER_NUM", Decimal::new(count).bytes());
            out.property(b"INNER_BASE", Decimal::new(base).bytes());
        }
        if self.kafka {
            out.property(b"PSTK_KFK", b"1");
        }
        if let Some(producer) = self.producer {
            out.property(b"PSTK_PRD", producer);
        }
        if let Some(size) = self.group {
            let mut digits = *b"0000000000";
            let text = Decimal::new(size as i64);
            let from = digits.len() - text.size().min(digits.len());
            put(&mut digits, from, text.bytes());
            out.property(b"PSTK_GRP", &digits);
        }
    }
}

/// How a record will be written.
#[derive(Clone, Copy)]
pub struct Plan {
    pub size: usize,
    pub is_plain: bool,
    /// TAGS holds the one tag itself.
    pub has_tag: bool,
    body_size: usize,
    properties_size: usize,
}

impl Plan {
    /// Entries that the key index takes.
    #[inline]
    pub fn index_count(message: &Message<'_>) -> usize {
        usize::from(message.key.is_some()) + usize::from(!matches!(message.tags, Tags::None))
    }

    #[inline]
    pub fn of_message(
        message: &Message<'_>,
        shape: &Shape,
        tail: &Tail<'_>,
        reserved: &Reserved,
    ) -> Result<Self, Refusal> {
        if message.is_plain(reserved) {
            let body_size = message.value.map_or(0, <[u8]>::len);
            let mut properties_size = tail.size();
            if let Some(key) = message.key {
                properties_size += 6 + key.len();
            }
            if let Tags::One(tag) = message.tags {
                properties_size += 6 + tag.len();
            }
            for (name, value) in &message.headers {
                properties_size += 2 + name.len() + value.map_or(0, <[u8]>::len);
            }
            if properties_size <= PROPERTIES_SIZE_MAX {
                let size = shape.record_size(body_size, properties_size);
                return Ok(Self {
                    size,
                    is_plain: true,
                    has_tag: true,
                    body_size,
                    properties_size,
                });
            }
        }
        Self::of_envelope(message, shape, tail)
    }

    #[cold]
    fn of_envelope(message: &Message<'_>, shape: &Shape, tail: &Tail<'_>) -> Result<Self, Refusal> {
        if message.tags.as_slice().len() > TAGS_MAX {
            return Err(Refusal::bad("tags: at most 65535 of them"));
        }
        let mut fixed_size = tail.size() + ENVELOPE_PROPERTY_SIZE;
        if let Some(key) = message.key {
            fixed_size += 6 + key_token(key, &mut [0; KEY_TOKEN_MAX]);
        }
        let with_tag = message.plain_tag().map(|tag| fixed_size + 6 + tag.len());
        let has_tag = with_tag.is_some_and(|size| size <= PROPERTIES_SIZE_MAX);
        let properties_size = match with_tag {
            Some(size) if has_tag => size,
            _ if matches!(message.tags, Tags::None) => fixed_size,
            _ => fixed_size + 6 + MULTI_TAG.len(),
        };
        if properties_size > PROPERTIES_SIZE_MAX {
            return Err(Refusal::bad("producer: the text is too long"));
        }
        let body_size = message.envelope_size();
        let size = shape.record_size(body_size, properties_size);
        Ok(Self { size, is_plain: false, has_tag, body_size, properties_size })
    }

    pub fn of_body(body_size: usize, shape: &Shape, tail: &Tail<'_>) -> Result<Self, Refusal> {
        let properties_size = tail.size();
        if properties_size > PROPERTIES_SIZE_MAX {
            return Err(Refusal::bad("producer: the text is too long"));
        }
        let size = shape.record_size(body_size, properties_size);
        Ok(Self { size, is_plain: true, has_tag: false, body_size, properties_size })
    }
}

/// Write a message as a record; `out` has exactly `plan.size` bytes.
#[inline]
pub fn write_message(
    out: &mut [u8],
    plan: &Plan,
    message: &Message<'_>,
    shape: &Shape,
    tail: &Tail<'_>,
    place: &Place,
) {
    let mut writer = Writer::new(out);
    write_head(&mut writer, plan, shape, place);
    if plan.is_plain {
        writer.put(message.value.unwrap_or(&[]));
    } else {
        message.write_envelope(&mut writer);
    }
    write_topic(&mut writer, plan, shape);
    if let Some(key) = message.key {
        if plan.is_plain {
            writer.property(b"KEYS", key);
        } else {
            let mut token = [0; KEY_TOKEN_MAX];
            let size = key_token(key, &mut token);
            writer.property(b"KEYS", &token[..size]);
        }
    }
    match message.tags {
        Tags::None => (),
        Tags::One(tag) if plan.has_tag => writer.property(b"TAGS", tag),
        _ => writer.property(b"TAGS", MULTI_TAG),
    }
    if plan.is_plain {
        for (name, value) in &message.headers {
            writer.property(name, value.unwrap_or(&[]));
        }
    }
    tail.write(&mut writer, !plan.is_plain);
    seal(out, plan, shape);
}

/// Write a record whose body is `body` and which has no properties but ours. `patches` replace
/// bytes of the body.
pub fn write_body(
    out: &mut [u8],
    plan: &Plan,
    (body, patches): (&[u8], &[(usize, &[u8])]),
    shape: &Shape,
    tail: &Tail<'_>,
    place: &Place,
) {
    let mut writer = Writer::new(out);
    write_head(&mut writer, plan, shape, place);
    writer.put(body);
    write_topic(&mut writer, plan, shape);
    tail.write(&mut writer, false);
    for (at, bytes) in patches {
        put(out, shape.head.len() + at, bytes);
    }
    seal(out, plan, shape);
}

#[inline(always)]
fn write_head(writer: &mut Writer<'_>, plan: &Plan, shape: &Shape, place: &Place) {
    let mut head = [0u8; 112];
    let Some(head) = head.get_mut(..shape.head.len()) else {
        return;
    };
    head.copy_from_slice(&shape.head);
    put(head, 0, &(plan.size as u32).to_be_bytes());
    put(head, QUEUE_OFFSET_AT, &place.offset.to_be_bytes());
    put(head, POSITION_AT, &place.position.to_be_bytes());
    put(head, SYS_FLAG_AT, &(shape.sys_flag | place.sys_flag).to_be_bytes());
    put(head, BORN_TIMESTAMP_AT, &place.born_ms.to_be_bytes());
    put(head, shape.store_at, &place.store_ms.to_be_bytes());
    put(head, shape.epoch_at, &place.epoch.to_be_bytes());
    put(head, shape.epoch_at + 8, &(plan.body_size as u32).to_be_bytes());
    writer.put(head);
}

#[inline(always)]
fn write_topic(writer: &mut Writer<'_>, plan: &Plan, shape: &Shape) {
    writer.put(&shape.topic);
    writer.put(&(plan.properties_size as u16).to_be_bytes());
}

/// Fill in the checksums: of the body, then of everything.
#[inline(always)]
fn seal(out: &mut [u8], plan: &Plan, shape: &Shape) {
    let start = shape.head.len();
    let body_crc = checksum(out.get(start..start + plan.body_size).unwrap_or(&[]));
    put(out, BODY_CRC_AT, &body_crc.to_be_bytes());
    seal_trailer(out);
}

/// Write the whole-record checksum over the last 20 bytes.
#[inline(always)]
pub fn seal_trailer(out: &mut [u8]) {
    let Some((covered, trailer)) = out.split_last_chunk_mut::<TRAILER_SIZE>() else {
        return;
    };
    put_trailer(trailer, checksum(covered));
}
