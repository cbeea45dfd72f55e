//! Encoding of deliveries: the packets of a run of messages, once for each class of subscribers.
//!
//! The packets of a class differ between subscribers by their packet ids alone (and DUP), which are
//! patched into a copy: all packets of a run and a subscriber are one object of bytes.

use pyo3::exceptions::PyIndexError;
use pyo3::prelude::*;
use pyo3::sync::PyOnceLock;
use pyo3::types::{PyBytes, PyList};

use super::fields::{put_varint, varint_size};
use super::frame;
use super::properties::{OwnedProperties, PublishProperties};
use crate::bytes::extend;
use crate::extract::{extract_bytes, extract_int};
use crate::python::Encoded;

const DUP: u8 = 8;
const IDS: u64 = 65_535;

/// What the packets of a class of subscribers have in common.
pub struct Class {
    pub is_5: bool,
    pub qos: u8,
    pub retain_as_published: bool,
    pub identifiers: Vec<u32>,
}

/// A message to deliver.
pub struct Outgoing<'a> {
    pub topic: &'a [u8],
    pub payload: &'a [u8],
    pub retain: bool,
    pub expires_at_ms: Option<i64>,
    pub properties: Option<&'a PublishProperties<'a>>,
}

/// A packet's place; an expired message has none, `start` is then `end`.
#[derive(Clone, Copy)]
struct Place {
    start: u32,
    id_at: u32,
    end: u32,
}

#[derive(Default)]
pub struct Packets {
    data: Vec<u8>,
    places: Vec<Place>,
    largest: usize,
    has_expired: bool,
}

impl Packets {
    /// Make room for messages that had `size` bytes when they were received.
    pub fn reserve(&mut self, count: usize, size: usize) {
        self.places.reserve(count);
        self.data.reserve(size + 4 * count);
    }

    pub fn push(&mut self, message: &Outgoing<'_>, class: &Class, now_ms: i64) {
        let start = self.data.len() as u32;
        if message.expires_at_ms.is_some_and(|expires| expires <= now_ms) {
            self.has_expired = true;
            self.places.push(Place { start, id_at: start, end: start });
            return;
        }
        let mut properties = Vec::new();
        let left_s = message.expires_at_ms.map(|expires| seconds_left(expires, now_ms));
        let has_properties =
            left_s.is_some() || message.properties.is_some() || !class.identifiers.is_empty();
        if class.is_5 && has_properties {
            PublishProperties::write(
                message.properties,
                left_s,
                &class.identifiers,
                &mut properties,
            );
        }
        let id_size = if class.qos > 0 { 2 } else { 0 };
        let prefix = if class.is_5 { varint_size(properties.len()) } else { 0 };
        let size = 2 + message.topic.len() + id_size + prefix + properties.len();
        let size = size + message.payload.len();
        let out = &mut self.data;
        let retain = message.retain && class.retain_as_published;
        out.push(frame::PUBLISH << 4 | class.qos << 1 | u8::from(retain));
        put_varint(out, size);
        extend(out, &(message.topic.len() as u16).to_be_bytes());
        extend(out, message.topic);
        let id_at = out.len() as u32;
        if class.qos > 0 {
            extend(out, &[0, 0]);
        }
        if class.is_5 {
            put_varint(out, properties.len());
            extend(out, &properties);
        }
        extend(out, message.payload);
        let end = out.len() as u32;
        self.largest = self.largest.max((end - start) as usize);
        self.places.push(Place { start, id_at, end });
    }
}

/// What is left of an expiry interval, in full seconds.
fn seconds_left(expires_at_ms: i64, now_ms: i64) -> u32 {
    let left = expires_at_ms.saturating_sub(now_ms).max(0);
    u32::try_from((left as u64).div_ceil(1000)).unwrap_or(u32::MAX)
}

/// The packets of a run of messages for one class of subscribers, with packet id 0.
#[pyclass(frozen, module = "penstock._native", name = "MqttEncodedRun")]
pub struct EncodedRun {
    packets: Packets,
    has_ids: bool,
    joined: PyOnceLock<Py<PyBytes>>,
}

impl EncodedRun {
    pub fn new(packets: Packets, qos: u8) -> Self {
        Self { packets, has_ids: qos > 0, joined: PyOnceLock::new() }
    }

    fn places(&self, start: usize, stop: usize) -> PyResult<&[Place]> {
        let places = self.packets.places.get(start..stop);
        places.ok_or_else(|| PyIndexError::new_err("the run has fewer messages"))
    }
}

#[pymethods]
impl EncodedRun {
    /// Encode messages, objects with the fields of `penstock.brokers.mqtt.deliver.message.Message`.
    #[new]
    fn of_messages(
        messages: &Bound<'_, PyList>,
        is_5: bool,
        qos: u8,
        retain_as_published: bool,
        identifiers: Vec<u32>,
        now_ms: i64,
    ) -> PyResult<Self> {
        let class = Class { is_5, qos, retain_as_published, identifiers };
        let mut packets = Packets::default();
        for message in messages.iter() {
            let py = message.py();
            let topic = message.getattr(pyo3::intern!(py, "topic"))?;
            let payload = message.getattr(pyo3::intern!(py, "payload"))?;
            let topic = Encoded::new(&topic, "topic")?;
            let properties = message.getattr(pyo3::intern!(py, "properties"))?;
            let owned = match class.is_5 && !properties.is_none() {
                true => Some(OwnedProperties::extract(&properties)?),
                false => None,
            };
            let borrowed = owned.as_ref().map(OwnedProperties::borrow);
            let outgoing = Outgoing {
                topic: topic.bytes(),
                payload: extract_bytes(&payload, "payload")?.unwrap_or(&[]),
                retain: message.getattr(pyo3::intern!(py, "retain"))?.is_truthy()?,
                expires_at_ms: extract_int(
                    &message.getattr(pyo3::intern!(py, "expires_at_ms"))?,
                    "expires_at_ms",
                )?,
                properties: borrowed.as_ref(),
            };
            packets.push(&outgoing, &class, now_ms);
        }
        Ok(Self::new(packets, class.qos))
    }

    fn __len__(&self) -> usize {
        self.packets.places.len()
    }

    #[getter]
    fn largest(&self) -> usize {
        self.packets.largest
    }

    #[getter]
    fn has_expired(&self) -> bool {
        self.packets.has_expired
    }

    /// All packets as they are, for QoS 0.
    #[getter]
    fn joined<'py>(&self, py: Python<'py>) -> Bound<'py, PyBytes> {
        let make = || PyBytes::new(py, &self.packets.data).unbind();
        self.joined.get_or_init(py, make).bind(py).clone()
    }

    fn is_expired(&self, index: usize) -> PyResult<bool> {
        let place = self.places(index, index.saturating_add(1))?[0];
        Ok(place.start == place.end)
    }

    /// One packet with its packet id; empty: the message has expired.
    #[pyo3(signature = (index, packet_id, dup=false))]
    fn packet<'py>(
        &self,
        py: Python<'py>,
        index: usize,
        packet_id: u16,
        dup: bool,
    ) -> PyResult<Bound<'py, PyBytes>> {
        let place = self.places(index, index.saturating_add(1))?[0];
        let data = &self.packets.data[place.start as usize..place.end as usize];
        PyBytes::new_with(py, data.len(), |out| {
            out.copy_from_slice(data);
            if self.has_ids && !data.is_empty() {
                let at = (place.id_at - place.start) as usize;
                out[at..at + 2].copy_from_slice(&packet_id.to_be_bytes());
            }
            if dup && !data.is_empty() {
                out[0] |= DUP;
            }
            Ok(())
        })
    }

    /// The packets of the messages from `start` until `stop`. Message `start` has the packet id
    /// `sequence mod 65,535 + 1`, and so on: an expired message uses its id up.
    fn stamped<'py>(
        &self,
        py: Python<'py>,
        start: usize,
        stop: usize,
        sequence: u64,
    ) -> PyResult<Bound<'py, PyBytes>> {
        let places = self.places(start, stop)?;
        let (Some(first), Some(last)) = (places.first(), places.last()) else {
            return Ok(PyBytes::new(py, &[]));
        };
        let base = first.start as usize;
        let data = &self.packets.data[base..last.end as usize];
        PyBytes::new_with(py, data.len(), |out| {
            out.copy_from_slice(data);
            if !self.has_ids {
                return Ok(());
            }
            let mut id = (sequence % IDS) as u16;
            for place in places {
                id += 1;
                if place.start != place.end {
                    let at = place.id_at as usize - base;
                    out[at..at + 2].copy_from_slice(&id.to_be_bytes());
                }
                if u64::from(id) == IDS {
                    id = 0;
                }
            }
            Ok(())
        })
    }
}

/// Encode acknowledgements that report success.
#[pyfunction]
#[pyo3(name = "mqtt_encode_acks")]
pub fn encode_acks<'py>(
    py: Python<'py>,
    kind: u8,
    packet_ids: Vec<u16>,
) -> PyResult<Bound<'py, PyBytes>> {
    let first = kind << 4 | if kind == frame::PUBREL { 2 } else { 0 };
    PyBytes::new_with(py, 4 * packet_ids.len(), |out| {
        for (place, id) in out.chunks_exact_mut(4).zip(&packet_ids) {
            let [high, low] = id.to_be_bytes();
            place.copy_from_slice(&[first, 2, high, low]);
        }
        Ok(())
    })
}
