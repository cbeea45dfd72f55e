//! The publish path: from a received buffer to records and acknowledgements in one call.
//!
//!     parse ──▶ topics that were admitted ──▶ records, one group per shard ──▶ one append
//!                    │                                                           │
//!                    └─ anything else ends it at a packet        runs, replies ◀─┘
//!
//! What a publish needs besides the append (a new topic, a permission, a retained message, a roll of
//! the log) is left to Python, which then admits the topic here. The records are those that Python
//! would have appended, in the same groups.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;

use pyo3::prelude::*;
use pyo3::types::{PyBytes, PyDict, PyString};

use super::decode::{Limits, Publish};
use super::frame::{self, frame, Frame};
use super::names::NameLimits;
use super::received::{ReceivedRun, Slice};
use super::records::{expires_at, headers, is_cheap, message, Publisher, Texts};
use super::routes::RouteCache;
use crate::append_path::{AppendPath, Group};
use crate::bytes::{extend, View};
use crate::message::Message;

const TOPICS_MAX: usize = 65_536;
/// Messages of one call: their records are one append, during which other writers wait.
const MESSAGES_MAX: usize = 65_536;
const PINGRESP: [u8; 2] = [0xD0, 0];
const NO_MATCHING_SUBSCRIBERS: u8 = 0x10;

/// A shard that takes publishes without further questions.
struct Shard {
    id: Py<PyAny>,
    /// Bytes of a record, as the limit of a topic counts them.
    size_max: usize,
}

/// An MQTT topic whose publishes need nothing but the append.
pub struct Topic {
    pub name: Py<PyString>,
    /// What Python knows of it.
    pub mapped: Py<PyAny>,
    pub shard: usize,
    number: u32,
}

/// What the publishes of one client may do: the topics that it was allowed, by number and QoS.
#[pyclass(module = "penstock._native", name = "MqttGrants")]
#[derive(Default)]
pub struct Grants {
    generation: u64,
    topics: HashMap<u32, u8>,
}

#[pymethods]
impl Grants {
    #[new]
    fn new() -> Self {
        Self::default()
    }

    fn clear(&mut self) {
        self.topics.clear();
    }
}

impl Grants {
    fn allow(&self, generation: u64, topic: u32, qos: u8) -> bool {
        let granted = self.topics.get(&topic).is_some_and(|granted| granted >> qos & 1 == 1);
        granted && self.generation == generation
    }
}

#[pyclass(module = "penstock._native", name = "MqttIntake")]
pub struct Intake {
    path: Py<AppendPath>,
    limits: Limits,
    generation: u64,
    topics: HashMap<Box<[u8]>, Arc<Topic>>,
    shards: Vec<Shard>,
}

/// The packets of one call, before anything is stored.
#[derive(Default)]
struct Parsed<'a> {
    publishes: Vec<Publish<'a>>,
    /// By publish.
    topics: Vec<Arc<Topic>>,
    replies: Vec<u8>,
    acks: Vec<Acks>,
    size: usize,
    consumed: usize,
    is_left: bool,
    /// Of the last topic that was asked for.
    has_subscribers: Option<bool>,
}

/// What is known of the client that sends a buffer.
struct Client<'a, 'py> {
    version: u8,
    grants: Option<PyRef<'py, Grants>>,
    /// QoS 2 packet ids that are not released.
    received: &'a Bound<'py, PyDict>,
    /// How many more there may be.
    qos2_max: usize,
    has_receipts: bool,
    leaves_acks: bool,
    /// With them, publishes without subscribers are acknowledged as such if `leaves_acks`, and runs
    /// have all topics of a shard.
    routes: Option<&'a Bound<'py, RouteCache>>,
}

/// The type of acknowledgements that follow each other, and their packet ids.
type Acks = (u8, Vec<u16>);
/// Shard, first offset, count of messages.
type Stored = (usize, i64, usize);
/// Consumed bytes; whether the next packet is for Python; replies; runs; groups; acknowledgements of
/// the client; bytes of topics and payloads.
type Fed<'py> = (usize, bool, Bound<'py, PyBytes>, Vec<ReceivedRun>, Vec<Stored>, Vec<Acks>, usize);

#[pymethods]
impl Intake {
    #[new]
    fn new(
        path: Py<AppendPath>,
        packet_size_max: usize,
        topic_bytes_max: usize,
        topic_levels_max: usize,
        user_properties_max: usize,
    ) -> Self {
        let names = NameLimits { bytes_max: topic_bytes_max, levels_max: topic_levels_max };
        let limits = Limits { packet_size_max, names, user_properties_max, filters_max: 0 };
        Self { path, limits, generation: 1, topics: HashMap::new(), shards: Vec::new() }
    }

    fn __len__(&self) -> usize {
        self.topics.len()
    }

    /// Drop all topics, shards and grants.
    fn clear(&mut self) {
        self.generation += 1;
        self.topics.clear();
        self.shards.clear();
    }

    /// Add a shard; return its number.
    fn add_shard(&mut self, id: Py<PyAny>, size_max: usize) -> usize {
        self.shards.push(Shard { id, size_max });
        self.shards.len() - 1
    }

    /// Admit the publishes of a topic; return whether there was room for it.
    fn admit(
        &mut self,
        topic: Bound<'_, PyString>,
        mapped: Py<PyAny>,
        shard: usize,
    ) -> PyResult<bool> {
        if self.topics.len() >= TOPICS_MAX || shard >= self.shards.len() {
            return Ok(false);
        }
        let name: Box<[u8]> = topic.to_str()?.as_bytes().into();
        let number = self.topics.get(&name).map_or(self.topics.len() as u32, |known| known.number);
        let topic = Topic { name: topic.unbind(), mapped, number, shard };
        self.topics.insert(name, Arc::new(topic));
        Ok(true)
    }

    /// Allow the publishes of a client to a topic that was admitted.
    fn grant(&self, grants: &mut Grants, topic: &str, qos: u8) {
        if grants.generation != self.generation {
            grants.topics.clear();
            grants.generation = self.generation;
        }
        if let Some(topic) = self.topics.get(topic.as_bytes()) {
            *grants.topics.entry(topic.number).or_default() |= 1 << (qos & 3);
        }
    }

    /// Store the publishes at the beginning of a buffer, as far as nothing else is needed.
    /// `received` has the QoS 2 packet ids of the client that are not released. With `leaves_acks` the
    /// runs make the acknowledgements, because they need reasons.
    #[pyo3(signature = (
        view, version, grants, received, qos2_max, session, is_stamped, has_receipts, now_ms, leaves_acks,
        routes=None
    ))]
    #[allow(clippy::too_many_arguments)]
    fn receive<'py>(
        &self,
        py: Python<'py>,
        view: &Bound<'py, PyAny>,
        version: u8,
        grants: Option<PyRef<'py, Grants>>,
        received: &Bound<'py, PyDict>,
        qos2_max: usize,
        session: u64,
        is_stamped: bool,
        has_receipts: bool,
        now_ms: i64,
        leaves_acks: bool,
        routes: Option<&Bound<'py, RouteCache>>,
    ) -> PyResult<Fed<'py>> {
        let view = View::readable(view)?;
        let data = view.bytes();
        let client =
            Client { version, grants, received, qos2_max, has_receipts, leaves_acks, routes };
        let parsed = self.parse(py, data, &client)?;
        let nothing = |py| (0, true, PyBytes::new(py, &[]), vec![], vec![], vec![], 0);
        let publisher = Publisher { session, is_stamped, has_receipts };
        let Some((runs, stored)) =
            self.store(py, data, &parsed, publisher, now_ms, routes.is_some())?
        else {
            return Ok(nothing(py));
        };
        let replies = PyBytes::new(py, &parsed.replies);
        let Parsed { consumed, is_left, acks, size, .. } = parsed;
        Ok((consumed, is_left, replies, runs, stored, acks, size))
    }
}

impl Intake {
    fn parse<'a>(
        &self,
        py: Python<'_>,
        data: &'a [u8],
        client: &Client<'_, '_>,
    ) -> PyResult<Parsed<'a>> {
        let mut parsed = Parsed::default();
        let mut qos2 = HashSet::new();
        let mut known = "";
        parsed.is_left = loop {
            let (first, body, end) = match frame(data, parsed.consumed, self.limits.packet_size_max)
            {
                Frame::Incomplete => break false,
                Frame::Left => break true,
                Frame::Whole(first, body, end) => (first, body, end),
            };
            match first >> 4 {
                frame::PUBLISH if parsed.publishes.len() < MESSAGES_MAX => {
                    let publish = Publish::read(first, body, client.version, &self.limits, known);
                    let Some(publish) = publish else {
                        break true;
                    };
                    let topic = match parsed.topics.last() {
                        Some(last) if publish.topic == known => Some(last.clone()),
                        _ => self.topics.get(publish.topic.as_bytes()).cloned(),
                    };
                    let Some(topic) = topic else {
                        break true;
                    };
                    if !self.admits(&publish, &topic, client)? {
                        break true;
                    }
                    let is_full = publish.qos == 2 && qos2.len() >= client.qos2_max;
                    if is_full || publish.qos == 2 && !qos2.insert(publish.packet_id) {
                        break true;
                    }
                    if publish.qos > 0 {
                        let is_same = publish.topic == known;
                        parsed.add_reply(py, &publish, client, is_same)?;
                    }
                    known = publish.topic;
                    parsed.add(publish, topic);
                }
                kind @ frame::PUBACK..=frame::PUBCOMP => {
                    let flags = if kind == frame::PUBREL { 2 } else { 0 };
                    let is_left = kind == frame::PUBREL && client.has_receipts;
                    if is_left || first & 0x0F != flags || !parsed.add_ack(kind, body) {
                        break true;
                    }
                }
                frame::PINGREQ if first == frame::PINGREQ << 4 && body.is_empty() => {
                    extend(&mut parsed.replies, &PINGRESP);
                }
                _ => break true,
            }
            parsed.consumed = end;
        };
        Ok(parsed)
    }

    #[inline]
    fn admits(
        &self,
        publish: &Publish<'_>,
        topic: &Topic,
        client: &Client<'_, '_>,
    ) -> PyResult<bool> {
        let is_granted = match &client.grants {
            Some(grants) => grants.allow(self.generation, topic.number, publish.qos),
            None => true,
        };
        if publish.retain || !is_granted || !is_cheap(publish) {
            return Ok(false);
        }
        if publish.qos < 2 {
            return Ok(true);
        }
        Ok(!client.received.contains(publish.packet_id)?)
    }

    /// Append the records, and return what was stored. `None`: nothing was.
    fn store<'a>(
        &self,
        py: Python<'_>,
        data: &'a [u8],
        parsed: &Parsed<'a>,
        publisher: Publisher,
        now_ms: i64,
        joins_topics: bool,
    ) -> PyResult<Option<(Vec<ReceivedRun>, Vec<Stored>)>> {
        let publishes = &parsed.publishes;
        if publishes.is_empty() {
            return Ok(Some((Vec::new(), Vec::new())));
        }
        let texts = Texts::new(publisher, publishes);
        let headers = headers(publishes, &texts);
        let mut shards: Vec<usize> = Vec::new();
        let mut groups: Vec<Group<'_>> = Vec::new();
        let mut places = Vec::with_capacity(publishes.len());
        let path = self.path.get();
        for (row, publish) in publishes.iter().enumerate() {
            let number = parsed.topics[row].shard;
            let group = match shards.iter().rposition(|&known| known == number) {
                Some(group) => group,
                None => {
                    let Some(handle) = path.find_handle(self.shards[number].id.bind(py))? else {
                        return Ok(None);
                    };
                    shards.push(number);
                    groups.push(Group { handle, messages: Vec::new() });
                    groups.len() - 1
                }
            };
            let message: Message<'_> = message(publish, headers.get(row), now_ms);
            if message.size() > self.shards[number].size_max {
                return Ok(None);
            }
            places.push((group, groups[group].messages.len()));
            groups[group].messages.push(message);
        }
        let Some(firsts) = path.append_groups(py, &groups)? else {
            return Ok(None);
        };
        let stored = shards.iter().zip(&firsts).zip(&groups);
        let stored = stored.map(|((&shard, &first), group)| (shard, first, group.messages.len()));
        let offsets = places.iter().map(|&(group, row)| firsts[group] + row as i64);
        let runs = parsed.runs(data, offsets, publisher.session, now_ms, joins_topics);
        Ok(Some((runs, stored.collect())))
    }
}

impl<'a> Parsed<'a> {
    fn add(&mut self, publish: Publish<'a>, topic: Arc<Topic>) {
        self.size += publish.payload.len() + publish.topic.len();
        self.publishes.push(publish);
        self.topics.push(topic);
    }

    /// Add PUBACK or PUBREC, unless the runs make them; only PUBACK says that there is no subscriber. `is_same`: the topic is that of the last one.
    fn add_reply(
        &mut self,
        py: Python<'_>,
        publish: &Publish<'_>,
        client: &Client<'_, '_>,
        is_same: bool,
    ) -> PyResult<()> {
        let kind = if publish.qos == 1 { frame::PUBACK } else { frame::PUBREC };
        let [high, low] = publish.packet_id.to_be_bytes();
        match (client.leaves_acks, client.routes) {
            (true, None) => return Ok(()),
            (true, Some(routes)) if publish.qos == 1 => {
                if !is_same || self.has_subscribers.is_none() {
                    let found = routes.borrow_mut().has_subscribers(py, publish.topic)?;
                    self.has_subscribers = Some(found);
                }
                if self.has_subscribers == Some(false) {
                    let reply = [kind << 4, 3, high, low, NO_MATCHING_SUBSCRIBERS];
                    extend(&mut self.replies, &reply);
                    return Ok(());
                }
            }
            _ => (),
        }
        extend(&mut self.replies, &[kind << 4, 2, high, low]);
        Ok(())
    }

    /// Add an acknowledgement that reports success; false: it is for Python.
    fn add_ack(&mut self, kind: u8, body: &[u8]) -> bool {
        let Ok(&id) = <&[u8; 2]>::try_from(body) else {
            return false;
        };
        let id = u16::from_be_bytes(id);
        match self.acks.last_mut() {
            _ if id == 0 => return false,
            Some((last, ids)) if *last == kind => ids.push(id),
            _ => self.acks.push((kind, vec![id])),
        }
        true
    }

    /// The runs of publishes with consecutive offsets of a shard and the same QoS; unless they join
    /// topics, of consecutive publishes with the same topic.
    fn runs(
        &self,
        data: &'a [u8],
        offsets: impl Iterator<Item = i64>,
        publisher: u64,
        now_ms: i64,
        joins_topics: bool,
    ) -> Vec<ReceivedRun> {
        let data = &data[..self.consumed];
        let copy: Arc<[u8]> = data.into();
        let place = |part: &[u8]| {
            if part.is_empty() {
                return (0, 0);
            }
            let start = part.as_ptr() as usize - data.as_ptr() as usize;
            (start as u32, (start + part.len()) as u32)
        };
        let mut runs: Vec<ReceivedRun> = Vec::new();
        // The last run of each shard.
        let mut last: Vec<(usize, usize)> = Vec::new();
        for ((publish, topic), offset) in self.publishes.iter().zip(&self.topics).zip(offsets) {
            let slice = Slice {
                payload: place(publish.payload),
                properties: place(publish.raw_properties),
                packet_id: publish.packet_id,
                expires_at_ms: expires_at(publish, now_ms),
                topic: topic.clone(),
            };
            let known = last.iter().rposition(|&(shard, _)| shard == topic.shard);
            let run = match known {
                Some(at) if joins_topics => runs.get_mut(last[at].1),
                _ => runs.last_mut(),
            };
            match run {
                Some(run) if run.continues(publish.qos, topic, joins_topics) => {
                    run.slices.push(slice);
                    continue;
                }
                _ => (),
            }
            match known {
                Some(at) => last[at].1 = runs.len(),
                None => last.push((topic.shard, runs.len())),
            }
            runs.push(ReceivedRun {
                data: copy.clone(),
                slices: vec![slice],
                shard: topic.shard,
                qos: publish.qos,
                first: offset,
                publisher,
            });
        }
        runs
    }
}

impl ReceivedRun {
    /// Whether a publish can be part of the run, if it is the next one of its shard.
    fn continues(&self, qos: u8, topic: &Arc<Topic>, joins_topics: bool) -> bool {
        let is_same = |last: &Slice| Arc::ptr_eq(&last.topic, topic);
        let is_joined = joins_topics || self.slices.last().is_some_and(is_same);
        self.qos == qos && self.shard == topic.shard && is_joined
    }
}
