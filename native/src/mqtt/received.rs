//! A run of publishes that were received and stored: one shard, one QoS, consecutive offsets.
//!
//! It keeps the packets as they came. Messages become objects only where Python looks at them.

use std::sync::Arc;

use pyo3::exceptions::PyIndexError;
use pyo3::prelude::*;
use pyo3::sync::PyOnceLock;
use pyo3::types::{PyBytes, PyList};

use super::frame;
use super::intake::Topic;
use super::properties::PublishProperties;
use super::routes::RouteCache;
use super::runs::{Class, EncodedRun, Outgoing, Packets};

/// A publish in the packets of its run.
#[derive(Clone)]
pub struct Slice {
    pub payload: (u32, u32),
    /// The same for both ends: it has none.
    pub properties: (u32, u32),
    pub packet_id: u16,
    pub expires_at_ms: Option<i64>,
    pub topic: Arc<Topic>,
}

#[pyclass(frozen, module = "penstock._native", name = "MqttReceivedRun")]
pub struct ReceivedRun {
    pub data: Arc<[u8]>,
    pub slices: Vec<Slice>,
    pub shard: usize,
    pub qos: u8,
    pub first: i64,
    pub publisher: u64,
}

impl ReceivedRun {
    fn first_topic(&self) -> PyResult<&Topic> {
        let first = self.slices.first().map(|slice| &*slice.topic);
        first.ok_or_else(|| PyIndexError::new_err("the run is empty"))
    }

    fn part(&self, (start, end): (u32, u32)) -> &[u8] {
        self.data.get(start as usize..end as usize).unwrap_or(&[])
    }

    fn properties(&self, slice: &Slice) -> Option<PublishProperties<'_>> {
        let data = self.part(slice.properties);
        if data.is_empty() {
            return None;
        }
        let found = PublishProperties::read(data, usize::MAX)?;
        let delivered = PublishProperties { expiry_s: None, topic_alias: None, ..found };
        (!delivered.is_empty()).then_some(delivered)
    }
}

#[pymethods]
impl ReceivedRun {
    fn __len__(&self) -> usize {
        self.slices.len()
    }

    /// The topic of the first message.
    #[getter]
    fn topic<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyAny>> {
        Ok(self.first_topic()?.name.bind(py).clone().into_any())
    }

    /// What was admitted with the topic of the first message.
    #[getter]
    fn mapped<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyAny>> {
        Ok(self.first_topic()?.mapped.bind(py).clone())
    }

    /// The number of the shard.
    #[getter]
    fn shard(&self) -> usize {
        self.shard
    }

    /// The parts of the run whose messages have the same route, in order.
    fn split<'py>(
        slf: &Bound<'py, Self>,
        routes: &Bound<'py, RouteCache>,
    ) -> PyResult<Vec<(Bound<'py, PyAny>, Bound<'py, Self>)>> {
        let py = slf.py();
        let run = slf.get();
        let mut routes = routes.borrow_mut();
        let mut parts: Vec<(Bound<'py, PyAny>, usize)> = Vec::new();
        let mut last: Option<&Arc<Topic>> = None;
        for (row, slice) in run.slices.iter().enumerate() {
            if last.is_some_and(|topic| Arc::ptr_eq(topic, &slice.topic)) {
                continue;
            }
            last = Some(&slice.topic);
            let route = routes.route_of(py, slice.topic.name.bind(py).to_str()?)?;
            if !parts.last().is_some_and(|(known, _)| known.is(&route)) {
                parts.push((route, row));
            }
        }
        if parts.len() == 1 {
            return Ok(parts.into_iter().map(|(route, _)| (route, slf.clone())).collect());
        }
        let ends: Vec<usize> = parts.iter().skip(1).map(|(_, row)| *row).collect();
        let ends = ends.into_iter().chain([run.slices.len()]);
        let part = |((route, start), end): ((Bound<'py, PyAny>, usize), usize)| {
            let part = Self {
                data: run.data.clone(),
                slices: run.slices[start..end].to_vec(),
                first: run.first + start as i64,
                ..*run
            };
            Ok((route, Bound::new(py, part)?))
        };
        parts.into_iter().zip(ends).map(part).collect()
    }

    #[getter]
    fn qos(&self) -> u8 {
        self.qos
    }

    /// Offset of the first message.
    #[getter]
    fn first(&self) -> i64 {
        self.first
    }

    #[getter]
    fn publisher(&self) -> u64 {
        self.publisher
    }

    fn packet_ids(&self) -> Vec<u16> {
        self.slices.iter().map(|slice| slice.packet_id).collect()
    }

    /// The acknowledgements with a reason code, for MQTT 5; empty for QoS 0.
    fn acks<'py>(&self, py: Python<'py>, reason_code: u8) -> Bound<'py, PyBytes> {
        let mut out = Vec::with_capacity(5 * self.slices.len());
        if self.qos > 0 {
            let kind = if self.qos == 1 { frame::PUBACK } else { frame::PUBREC };
            for slice in &self.slices {
                let [high, low] = slice.packet_id.to_be_bytes();
                match reason_code {
                    0 => out.extend_from_slice(&[kind << 4, 2, high, low]),
                    _ => out.extend_from_slice(&[kind << 4, 3, high, low, reason_code]),
                }
            }
        }
        PyBytes::new(py, &out)
    }

    /// Encode the run for a class of subscribers.
    fn encode(
        &self,
        py: Python<'_>,
        is_5: bool,
        qos: u8,
        retain_as_published: bool,
        identifiers: Vec<u32>,
        now_ms: i64,
    ) -> PyResult<EncodedRun> {
        let class = Class { is_5, qos, retain_as_published, identifiers };
        let mut packets = Packets::default();
        packets.reserve(self.slices.len(), self.data.len());
        for slice in &self.slices {
            let properties = if is_5 { self.properties(slice) } else { None };
            let outgoing = Outgoing {
                topic: slice.topic.name.bind(py).to_str()?.as_bytes(),
                payload: self.part(slice.payload),
                retain: false,
                expires_at_ms: slice.expires_at_ms,
                properties: properties.as_ref(),
            };
            packets.push(&outgoing, &class, now_ms);
        }
        Ok(EncodedRun::new(packets, qos))
    }

    /// The messages as objects of `penstock.brokers.mqtt.deliver.message`; `shard` is theirs.
    fn messages<'py>(
        &self,
        py: Python<'py>,
        shard: &Bound<'py, PyAny>,
    ) -> PyResult<Bound<'py, PyList>> {
        static CLASS: PyOnceLock<Py<PyAny>> = PyOnceLock::new();
        let class = CLASS.get_or_try_init(py, || {
            let module = py.import("penstock.brokers.mqtt.deliver.message")?;
            Ok::<_, PyErr>(module.getattr("Message")?.unbind())
        })?;
        let class = class.bind(py);
        let made = PyList::empty(py);
        for (row, slice) in self.slices.iter().enumerate() {
            let properties = self.properties(slice);
            let fields = (
                slice.topic.name.bind(py),
                PyBytes::new(py, self.part(slice.payload)),
                self.qos,
                false,
                properties.map(|found| found.to_python(py)).transpose()?,
                slice.expires_at_ms,
                self.publisher,
                shard,
                self.first + row as i64,
            );
            made.append(class.call1(fields)?)?;
        }
        Ok(made)
    }
}
