//! Publishes as messages of the log; `penstock.brokers.mqtt.publish.records` says how.

use super::decode::Publish;
use crate::message::{Header, Message, Tags};

const QOS: &[u8] = b"mqtt.qos";
const QOS_1: [Header<'static>; 1] = [(QOS, Some(b"1"))];
const QOS_2: [Header<'static>; 1] = [(QOS, Some(b"2"))];
const RESERVED_PREFIX: &str = "mqtt.";
const CONTENT_TYPE: &str = "content-type";

/// The session of a client, and what its records say about it.
#[derive(Clone, Copy)]
pub struct Publisher {
    pub session: u64,
    /// The number of the session, because it asked for No Local.
    pub is_stamped: bool,
    /// Receipts of QoS 2, because the session is persistent.
    pub has_receipts: bool,
}

/// Texts that the headers of some records point into.
pub struct Texts {
    stamp: Vec<u8>,
    /// By publish; empty: it has none.
    receipts: Vec<Vec<u8>>,
}

impl Texts {
    pub fn new(publisher: Publisher, publishes: &[Publish<'_>]) -> Self {
        let session = publisher.session;
        let receipt = |publish: &Publish<'_>| match publish.qos {
            2 => format!("{session}:{}", publish.packet_id).into_bytes(),
            _ => Vec::new(),
        };
        let mut texts = Self { stamp: Vec::new(), receipts: Vec::new() };
        if publisher.is_stamped {
            texts.stamp = session.to_string().into_bytes();
        }
        if publisher.has_receipts && publishes.iter().any(|publish| publish.qos == 2) {
            texts.receipts = publishes.iter().map(receipt).collect();
        }
        texts
    }

    fn receipt(&self, index: usize) -> &[u8] {
        self.receipts.get(index).map_or(&[], Vec::as_slice)
    }
}

/// Whether a publish can be turned into a record here: user properties with names that the record
/// uses itself are left to Python.
pub fn is_cheap(publish: &Publish<'_>) -> bool {
    let Some(properties) = &publish.properties else {
        return true;
    };
    let is_reserved = |name: &str| name == CONTENT_TYPE || name.starts_with(RESERVED_PREFIX);
    properties.topic_alias.is_none() && !properties.users.iter().any(|(name, _)| is_reserved(name))
}

/// The headers of each publish that has more than its QoS.
pub fn headers<'a>(publishes: &[Publish<'a>], texts: &'a Texts) -> Vec<Vec<Header<'a>>> {
    let is_plain = |publish: &Publish<'_>| publish.properties.is_none();
    if texts.stamp.is_empty() && texts.receipts.is_empty() && publishes.iter().all(is_plain) {
        return Vec::new();
    }
    let of = |(index, publish)| headers_of(publish, &texts.stamp, texts.receipt(index));
    publishes.iter().enumerate().map(of).collect()
}

fn headers_of<'a>(publish: &Publish<'a>, stamp: &'a [u8], receipt: &'a [u8]) -> Vec<Header<'a>> {
    let mut found: Vec<Header<'a>> = qos_headers(publish.qos).to_vec();
    if let Some(properties) = &publish.properties {
        if properties.payload_format == Some(1) {
            found.push((b"mqtt.payload-format", Some(b"1")));
        }
        if let Some(text) = properties.content_type {
            found.push((CONTENT_TYPE.as_bytes(), Some(text.as_bytes())));
        }
        if let Some(text) = properties.response_topic {
            found.push((b"mqtt.response-topic", Some(text.as_bytes())));
        }
        if let Some(data) = properties.correlation_data {
            found.push((b"mqtt.correlation-data", Some(data)));
        }
        let users = properties.users.iter();
        found.extend(users.map(|(name, value)| (name.as_bytes(), Some(value.as_bytes()))));
    }
    if !stamp.is_empty() {
        found.push((b"mqtt.publisher", Some(stamp)));
    }
    if !receipt.is_empty() {
        found.push((b"mqtt.receipt", Some(receipt)));
    }
    found
}

fn qos_headers(qos: u8) -> &'static [Header<'static>] {
    match qos {
        0 => &[],
        1 => &QOS_1,
        _ => &QOS_2,
    }
}

/// The message of a publish; `headers` are those of `headers_of`, if there are any.
pub fn message<'a>(
    publish: &Publish<'a>,
    headers: Option<&'a Vec<Header<'a>>>,
    now_ms: i64,
) -> Message<'a> {
    let name = publish.topic.as_bytes();
    Message {
        value: Some(publish.payload),
        key: Some(name),
        tags: Tags::One(name),
        headers: headers.map_or(qos_headers(publish.qos), Vec::as_slice),
        timestamp_ms: None,
        expires_at_ms: expires_at(publish, now_ms),
    }
}

pub fn expires_at(publish: &Publish<'_>, now_ms: i64) -> Option<i64> {
    let seconds = publish.properties.as_ref()?.expiry_s?;
    Some(now_ms + i64::from(seconds) * 1000)
}
