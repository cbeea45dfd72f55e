//! Encodes records: first how large they become, then their bytes, straight into the log.
//!
//! The plan of a record decides plain or envelope and fixes every size, so that limits are checked
//! before the first byte is written and a group is all or nothing.

use crate::bytes::{put, Decimal, Writer};
use crate::errors::Refusal;
use crate::hash::{checksum, index_hash};
use crate::message::{
    is_plain_text, key_token, plain_key_hash, Message, Tags, KEY_TOKEN_MAX, TAGS_MAX,
};
use crate::python::Reserved;
use crate::queue::Queue;
use crate::record::{
    put_trailer, BODY_CRC_AT, BORN_HOST_AT, BORN_IPV6, BORN_TIMESTAMP_AT, MAGIC_V1, MAGIC_V2,
    POSITION_AT, QUEUE_ID_AT, QUEUE_OFFSET_AT, STORE_IPV6, SYS_FLAG_AT, TRAILER_SIZE,
};

pub const PROPERTIES_SIZE_MAX: usize = 32_767;
pub const TOPIC_SIZE_V1_MAX: usize = 127;
pub const TOPIC_SIZE_MAX: usize = 32_767;
const HEAD_SIZE_IPV4: usize = 88;
const ENVELOPE_PROPERTY_SIZE: usize = 11;
pub const MULTI_TAG: &[u8] = b"*multi*";

/// What all records of one queue have in common, ready to be copied.
pub struct Shape {
    head: Vec<u8>,
    topic: Vec<u8>,
    sys_flag: i32,
    /// Where these are after the fixed part, which ends before the born host.
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
        let epoch_at = tail_at + 4 - BORN_HOST_AT;
        Ok(Self { head, topic: sized, sys_flag, store_at: store_at - BORN_HOST_AT, epoch_at })
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

/// Our properties, after the user's.
#[derive(Default)]
pub struct Tail<'a> {
    pub expires_at_ms: Option<i64>,
    /// Base offset and count of messages, in batch queues.
    pub inner: Option<(i64, i64)>,
    pub kafka: bool,
    /// The header of a Kafka batch whose values are tags, where its topic says which.
    pub tag_header: Option<&'a [u8]>,
    /// The producer whose transaction the record belongs to.
    pub transaction: Option<&'a [u8]>,
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
        if let Some(name) = self.tag_header {
            size += 11 + name.len();
        }
        if let Some(producer) = self.transaction {
            size += 10 + producer.len();
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
        if let Some(name) = self.tag_header {
            out.property(b"PSTK_TAG", &[b"=", name].concat());
        }
        if let Some(producer) = self.transaction {
            out.property(b"PSTK_TXN", producer);
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

/// Where a message's contents go. As wide as the sizes beside it: a byte that is written alone and
/// read back with its neighbours makes the processor wait.
#[derive(Clone, Copy, PartialEq, Eq)]
#[repr(u64)]
enum Form {
    /// Into body and properties.
    Plain,
    /// Into the body; TAGS holds the one tag itself.
    Envelope,
    /// Into the body; TAGS, if any, says so.
    EnvelopeWithTags,
}

/// How a record will be written.
#[derive(Clone, Copy)]
pub struct Plan {
    pub size: usize,
    form: Form,
    body_size: usize,
    properties_size: usize,
    /// Hash of the index entry for what KEYS will hold.
    pub key_hash: u32,
}

impl Plan {
    #[inline(always)]
    pub fn is_plain(&self) -> bool {
        self.form == Form::Plain
    }

    /// TAGS holds the one tag itself.
    #[inline(always)]
    pub fn has_tag(&self) -> bool {
        self.form != Form::EnvelopeWithTags
    }

    /// Entries that the key index takes.
    #[inline]
    pub fn index_count(message: &Message<'_>) -> usize {
        usize::from(message.key.is_some()) + usize::from(!matches!(message.tags, Tags::None))
    }

    #[inline]
    pub fn of_message(
        message: &Message<'_>,
        queue: &Queue,
        tail: &Tail<'_>,
        reserved: &Reserved,
    ) -> Result<Self, Refusal> {
        let shape = &queue.shape;
        let mut properties_size = tail.size();
        let mut is_plain = message.value.is_some();
        let mut key_hash = 0;
        if let Some(key) = message.key {
            properties_size += 6 + key.len();
            match plain_key_hash(queue.hash_seed, key) {
                Some(hash) => key_hash = index_hash(hash),
                None => is_plain = false,
            }
        }
        match message.tags {
            Tags::None => (),
            Tags::One(tag) => {
                properties_size += 6 + tag.len();
                is_plain &= queue.is_known_tag(tag) || is_plain_text(tag);
            }
            Tags::Many(_) => is_plain = false,
        }
        if !message.headers.is_empty() {
            is_plain = is_plain && message.has_plain_headers(reserved);
            for (name, value) in message.headers {
                properties_size += 2 + name.len() + value.map_or(0, <[u8]>::len);
            }
        }
        if !is_plain || properties_size > PROPERTIES_SIZE_MAX {
            return Self::of_envelope(message, queue, tail);
        }
        let body_size = message.value.map_or(0, <[u8]>::len);
        let size = shape.record_size(body_size, properties_size);
        Ok(Self { size, form: Form::Plain, body_size, properties_size, key_hash })
    }

    #[cold]
    fn of_envelope(message: &Message<'_>, queue: &Queue, tail: &Tail<'_>) -> Result<Self, Refusal> {
        if message.tags.as_slice().len() > TAGS_MAX {
            return Err(Refusal::bad("tags: at most 65535 of them"));
        }
        let mut fixed_size = tail.size() + ENVELOPE_PROPERTY_SIZE;
        let mut key_hash = 0;
        if let Some(key) = message.key {
            let mut token = [0; KEY_TOKEN_MAX];
            let size = key_token(key, &mut token);
            fixed_size += 6 + size;
            key_hash = queue.key_hash(&token[..size]);
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
        let size = queue.shape.record_size(body_size, properties_size);
        let form = if has_tag { Form::Envelope } else { Form::EnvelopeWithTags };
        Ok(Self { size, form, body_size, properties_size, key_hash })
    }

    pub fn of_body(body_size: usize, shape: &Shape, tail: &Tail<'_>) -> Result<Self, Refusal> {
        let properties_size = tail.size();
        if properties_size > PROPERTIES_SIZE_MAX {
            return Err(Refusal::bad("producer: the text is too long"));
        }
        let size = shape.record_size(body_size, properties_size);
        Ok(Self { size, form: Form::Plain, body_size, properties_size, key_hash: 0 })
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
    write_head(out, plan, shape, place);
    let mut writer = Writer::new(out.get_mut(shape.head.len()..).unwrap_or(&mut []));
    if plan.is_plain() {
        writer.put(message.value.unwrap_or(&[]));
    } else {
        message.write_envelope(&mut writer);
    }
    write_topic(&mut writer, plan, shape);
    if let Some(key) = message.key {
        if plan.is_plain() {
            writer.property(b"KEYS", key);
        } else {
            let mut token = [0; KEY_TOKEN_MAX];
            let size = key_token(key, &mut token);
            writer.property(b"KEYS", &token[..size]);
        }
    }
    match message.tags {
        Tags::None => (),
        Tags::One(tag) if plan.has_tag() => writer.property(b"TAGS", tag),
        _ => writer.property(b"TAGS", MULTI_TAG),
    }
    if plan.is_plain() {
        for (name, value) in message.headers {
            writer.property(name, value.unwrap_or(&[]));
        }
    }
    tail.write(&mut writer, !plan.is_plain());
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
    write_head(out, plan, shape, place);
    let mut writer = Writer::new(out.get_mut(shape.head.len()..).unwrap_or(&mut []));
    writer.put(body);
    write_topic(&mut writer, plan, shape);
    tail.write(&mut writer, false);
    for (at, bytes) in patches {
        put(out, shape.head.len() + at, bytes);
    }
    seal(out, plan, shape);
}

#[inline(always)]
fn write_head(out: &mut [u8], plan: &Plan, shape: &Shape, place: &Place) {
    let Some(head) = out.get_mut(..shape.head.len()) else {
        return;
    };
    if let (Ok(usual), Ok(head)) = (
        <&[u8; HEAD_SIZE_IPV4]>::try_from(&shape.head[..]),
        <&mut [u8; HEAD_SIZE_IPV4]>::try_from(&mut *head),
    ) {
        *head = *usual;
    } else {
        head.copy_from_slice(&shape.head);
    }
    let Some((fixed, rest)) = head.split_first_chunk_mut::<BORN_HOST_AT>() else {
        return;
    };
    fixed[..4].copy_from_slice(&(plan.size as u32).to_be_bytes());
    fixed[QUEUE_OFFSET_AT..POSITION_AT].copy_from_slice(&place.offset.to_be_bytes());
    fixed[POSITION_AT..SYS_FLAG_AT].copy_from_slice(&place.position.to_be_bytes());
    let sys_flag = shape.sys_flag | place.sys_flag;
    fixed[SYS_FLAG_AT..BORN_TIMESTAMP_AT].copy_from_slice(&sys_flag.to_be_bytes());
    fixed[BORN_TIMESTAMP_AT..].copy_from_slice(&place.born_ms.to_be_bytes());
    put(rest, shape.store_at, &place.store_ms.to_be_bytes());
    put(rest, shape.epoch_at, &place.epoch.to_be_bytes());
    put(rest, shape.epoch_at + 8, &(plan.body_size as u32).to_be_bytes());
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
