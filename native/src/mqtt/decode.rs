//! Decoding of a buffer into packets: PUBLISH, acknowledgements, requests without properties, pings.

use pyo3::prelude::*;
use pyo3::sync::PyOnceLock;
use pyo3::types::{PyBytes, PyList, PyString};

use super::fields::Fields;
use super::frame::{self, frame, Frame};
use super::names::NameLimits;
use super::properties::PublishProperties;
use crate::bytes::View;

const MQTT_5: u8 = 5;

struct Classes {
    publish: Py<PyAny>,
    ack: Py<PyAny>,
    kinds: [Py<PyAny>; 4],
    pingreq: Py<PyAny>,
    subscribe: Py<PyAny>,
    request: Py<PyAny>,
}

fn classes(py: Python<'_>) -> PyResult<&'static Classes> {
    static CLASSES: PyOnceLock<Classes> = PyOnceLock::new();
    CLASSES.get_or_try_init(py, || {
        let module = py.import("penstock.brokers.mqtt.wire.packets")?;
        let types = module.getattr("PacketType")?;
        let kind = |number: u8| Ok::<_, PyErr>(types.call1((number,))?.unbind());
        Ok(Classes {
            publish: module.getattr("Publish")?.unbind(),
            ack: module.getattr("Ack")?.unbind(),
            kinds: [
                kind(frame::PUBACK)?,
                kind(frame::PUBREC)?,
                kind(frame::PUBREL)?,
                kind(frame::PUBCOMP)?,
            ],
            pingreq: module.getattr("PINGREQ")?.unbind(),
            subscribe: module.getattr("Subscribe")?.unbind(),
            request: module.getattr("SubscriptionRequest")?.unbind(),
        })
    })
}

/// A PUBLISH that keeps all rules.
pub struct Publish<'a> {
    pub topic: &'a str,
    pub payload: &'a [u8],
    pub qos: u8,
    pub retain: bool,
    pub dup: bool,
    pub packet_id: u16,
    pub properties: Option<PublishProperties<'a>>,
    /// The properties as they came.
    pub raw_properties: &'a [u8],
}

impl<'a> Publish<'a> {
    /// `first` is the packet's first byte, `known` a topic that was found valid before.
    #[inline]
    pub fn read(
        first: u8,
        body: &'a [u8],
        version: u8,
        limits: &Limits,
        known: &str,
    ) -> Option<Self> {
        let (qos, dup) = (first >> 1 & 3, first & 8 != 0);
        if qos == 3 || (dup && qos == 0) {
            return None;
        }
        let mut fields = Fields::new(body);
        let raw = fields.binary()?;
        let is_known = raw == known.as_bytes() && !raw.is_empty();
        // SAFETY: the bytes are those of `known`, which is a string.
        let topic = match is_known {
            true => unsafe { std::str::from_utf8_unchecked(raw) },
            false => super::fields::name(raw)?,
        };
        let packet_id = if qos > 0 { fields.packet_id()? } else { 0 };
        let mut properties = None;
        let mut raw_properties: &[u8] = &[];
        if version == MQTT_5 {
            let size = fields.varint()?;
            if size > 0 {
                raw_properties = fields.bytes(size)?;
                let found = PublishProperties::read(raw_properties, limits.user_properties_max)?;
                properties = Some(found);
            }
        }
        let has_alias = properties.as_ref().is_some_and(|found| found.topic_alias.is_some());
        let is_aliased = topic.is_empty() && has_alias;
        if !is_known && !is_aliased && !limits.names.allow_topic(topic) {
            return None;
        }
        let payload = fields.rest();
        Some(Self {
            topic,
            payload,
            qos,
            retain: first & 1 != 0,
            dup,
            packet_id,
            properties,
            raw_properties,
        })
    }
}

pub struct Limits {
    pub packet_size_max: usize,
    pub names: NameLimits,
    pub user_properties_max: usize,
    pub filters_max: usize,
}

/// Decode the packets at the beginning of a buffer. Return them, how many bytes they have, and
/// whether the reference has to look at the next one.
#[pyfunction]
#[pyo3(name = "mqtt_decode")]
#[allow(clippy::too_many_arguments)]
pub fn decode_packets<'py>(
    py: Python<'py>,
    view: &Bound<'py, PyAny>,
    version: u8,
    packet_size_max: usize,
    topic_bytes_max: usize,
    topic_levels_max: usize,
    user_properties_max: usize,
    filters_max: usize,
) -> PyResult<(Bound<'py, PyList>, usize, bool)> {
    let names = NameLimits { bytes_max: topic_bytes_max, levels_max: topic_levels_max };
    let limits = Limits { packet_size_max, names, user_properties_max, filters_max };
    let view = View::readable(view)?;
    let data = view.bytes();
    let mut builder =
        Builder { py, classes: classes(py)?, version, limits, topic: None, known: "" };
    let packets = PyList::empty(py);
    let mut at = 0;
    let is_left = loop {
        match frame(data, at, builder.limits.packet_size_max) {
            Frame::Incomplete => break false,
            Frame::Left => break true,
            Frame::Whole(first, body, end) => match builder.packet(first, body)? {
                Some(packet) => {
                    packets.append(packet)?;
                    at = end;
                }
                None => break true,
            },
        }
    };
    Ok((packets, at, is_left))
}

struct Builder<'py, 'a> {
    py: Python<'py>,
    classes: &'static Classes,
    version: u8,
    limits: Limits,
    /// The topic of the last message: most buffers have messages of one topic only.
    topic: Option<Bound<'py, PyString>>,
    known: &'a str,
}

type Built<'py> = PyResult<Option<Bound<'py, PyAny>>>;

impl<'py, 'a> Builder<'py, 'a> {
    fn packet(&mut self, first: u8, body: &'a [u8]) -> Built<'py> {
        match (first >> 4, first & 0x0F) {
            (frame::PUBLISH, _) => self.publish(first, body),
            (frame::PUBREL, 2) => self.ack(frame::PUBREL, body),
            (kind @ (frame::PUBACK | frame::PUBREC | frame::PUBCOMP), 0) => self.ack(kind, body),
            (frame::PINGREQ, 0) if body.is_empty() => {
                Ok(Some(self.classes.pingreq.bind(self.py).clone()))
            }
            (frame::SUBSCRIBE, 2) => self.subscribe(body),
            _ => Ok(None),
        }
    }

    fn publish(&mut self, first: u8, body: &'a [u8]) -> Built<'py> {
        let py = self.py;
        let Some(found) = Publish::read(first, body, self.version, &self.limits, self.known) else {
            return Ok(None);
        };
        let topic = match &self.topic {
            Some(topic) if self.known == found.topic => topic.clone(),
            _ => {
                let topic = PyString::new(py, found.topic);
                self.known = found.topic;
                self.topic.insert(topic).clone()
            }
        };
        let properties =
            found.properties.as_ref().map(|properties| properties.to_python(py)).transpose()?;
        let payload = PyBytes::new(py, found.payload);
        let fields =
            (topic, payload, found.qos, found.retain, found.dup, found.packet_id, properties);
        self.classes.publish.bind(py).call1(fields).map(Some)
    }

    fn ack(&self, kind: u8, body: &[u8]) -> Built<'py> {
        let mut fields = Fields::new(body);
        let Some(packet_id) = fields.packet_id() else {
            return Ok(None);
        };
        if !fields.is_empty() {
            return Ok(None);
        }
        let kind = self.classes.kinds[usize::from(kind - frame::PUBACK)].bind(self.py);
        self.classes.ack.bind(self.py).call1((kind, packet_id)).map(Some)
    }

    fn subscribe(&self, body: &[u8]) -> Built<'py> {
        let Some((packet_id, requests)) = self.requests(body) else {
            return Ok(None);
        };
        let request = self.classes.request.bind(self.py);
        let made = PyList::empty(self.py);
        for (filter, options) in requests {
            let fields = (filter, options & 3, options & 4 != 0, options & 8 != 0, options >> 4);
            made.append(request.call1(fields)?)?;
        }
        self.classes.subscribe.bind(self.py).call1((packet_id, made)).map(Some)
    }

    /// The filters and options of a SUBSCRIBE without properties.
    fn requests<'b>(&self, body: &'b [u8]) -> Option<(u16, Vec<(&'b str, u8)>)> {
        let options_max = if self.version == MQTT_5 { 0x2F } else { 2 };
        let mut fields = Fields::new(body);
        let packet_id = fields.packet_id()?;
        if self.version == MQTT_5 && fields.varint()? != 0 {
            return None;
        }
        let mut requests = Vec::new();
        while !fields.is_empty() {
            let filter = fields.name().filter(|filter| self.limits.names.allow_filter(filter))?;
            let options = fields.u8().filter(|&all| all <= options_max && all & 3 != 3)?;
            requests.push((filter, options));
        }
        let is_allowed = !requests.is_empty() && requests.len() <= self.limits.filters_max;
        is_allowed.then_some((packet_id, requests))
    }
}
