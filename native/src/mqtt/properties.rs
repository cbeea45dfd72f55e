//! The properties that clients send with messages and requests.

use pyo3::prelude::*;
use pyo3::sync::PyOnceLock;
use pyo3::types::{PyBytes, PyList, PyString};

use super::fields::{name, put_varint, Fields};
use crate::bytes::extend;
use crate::errors::Refusal;
use crate::extract::{extract_bytes, extract_int};
use crate::python::Encoded;

/// What a PUBLISH can have. Everything else belongs to other packets.
#[derive(Default)]
pub struct PublishProperties<'a> {
    pub payload_format: Option<u8>,
    pub expiry_s: Option<u32>,
    pub content_type: Option<&'a str>,
    pub response_topic: Option<&'a str>,
    pub correlation_data: Option<&'a [u8]>,
    pub topic_alias: Option<u16>,
    pub users: Vec<(&'a str, &'a str)>,
}

/// Keep a value unless there is one already.
fn set<T>(place: &mut Option<T>, value: T) -> Option<()> {
    place.is_none().then(|| *place = Some(value))
}

impl<'a> PublishProperties<'a> {
    /// Decode what follows the length of the properties.
    pub fn read(data: &'a [u8], users_max: usize) -> Option<Self> {
        let mut fields = Fields::new(data);
        let mut found = Self::default();
        while !fields.is_empty() {
            match fields.varint()? {
                0x01 => set(&mut found.payload_format, fields.u8().filter(|&format| format <= 1)?)?,
                0x02 => set(&mut found.expiry_s, fields.u32()?)?,
                0x03 => set(&mut found.content_type, fields.text()?)?,
                0x08 => set(&mut found.response_topic, response_topic(fields.text()?)?)?,
                0x09 => set(&mut found.correlation_data, fields.binary()?)?,
                0x23 => set(&mut found.topic_alias, fields.u16().filter(|&alias| alias != 0)?)?,
                0x26 => found.users.push((fields.text()?, fields.text()?)),
                _ => return None,
            }
        }
        (found.users.len() <= users_max).then_some(found)
    }

    pub fn is_empty(&self) -> bool {
        self.payload_format.is_none()
            && self.expiry_s.is_none()
            && self.content_type.is_none()
            && self.response_topic.is_none()
            && self.correlation_data.is_none()
            && self.topic_alias.is_none()
            && self.users.is_empty()
    }

    /// Build the `Properties`.
    pub fn to_python<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyAny>> {
        let class = class(py)?;
        let made = class.bind(py).call0()?;
        let set =
            |name: &str, value: Bound<'py, PyAny>| made.setattr(PyString::intern(py, name), value);
        if let Some(format) = self.payload_format {
            set("payload_format_indicator", format.into_pyobject(py)?.into_any())?;
        }
        if let Some(expiry) = self.expiry_s {
            set("message_expiry_interval", expiry.into_pyobject(py)?.into_any())?;
        }
        if let Some(text) = self.content_type {
            set("content_type", PyString::new(py, text).into_any())?;
        }
        if let Some(text) = self.response_topic {
            set("response_topic", PyString::new(py, text).into_any())?;
        }
        if let Some(data) = self.correlation_data {
            set("correlation_data", PyBytes::new(py, data).into_any())?;
        }
        if let Some(alias) = self.topic_alias {
            set("topic_alias", alias.into_pyobject(py)?.into_any())?;
        }
        if !self.users.is_empty() {
            set("user_properties", PyList::new(py, &self.users)?.into_any())?;
        }
        Ok(made)
    }
}

impl PublishProperties<'_> {
    /// Append the properties of a delivery in the order of the reference. Topic alias and expiry
    /// interval are the delivery's, not those of the message.
    pub fn write(
        message: Option<&PublishProperties<'_>>,
        expiry_s: Option<u32>,
        identifiers: &[u32],
        out: &mut Vec<u8>,
    ) {
        let none = PublishProperties::default();
        let message = message.unwrap_or(&none);
        if let Some(format) = message.payload_format {
            extend(out, &[0x01, format]);
        }
        if let Some(seconds) = expiry_s {
            out.push(0x02);
            extend(out, &seconds.to_be_bytes());
        }
        if let Some(text) = message.content_type {
            put_sized(out, Some(0x03), text.as_bytes());
        }
        if let Some(text) = message.response_topic {
            put_sized(out, Some(0x08), text.as_bytes());
        }
        if let Some(data) = message.correlation_data {
            put_sized(out, Some(0x09), data);
        }
        for &identifier in identifiers {
            out.push(0x0B);
            put_varint(out, identifier as usize);
        }
        for (name, value) in &message.users {
            put_sized(out, Some(0x26), name.as_bytes());
            put_sized(out, None, value.as_bytes());
        }
    }
}

fn put_sized(out: &mut Vec<u8>, identifier: Option<u8>, data: &[u8]) {
    out.extend(identifier);
    extend(out, &(data.len() as u16).to_be_bytes());
    extend(out, data);
}

/// The properties of a message that is a Python object, with what keeps them alive.
pub struct OwnedProperties<'py> {
    numbers: [Option<i64>; 1],
    texts: [Option<Encoded<'py>>; 2],
    data: Option<Bound<'py, PyAny>>,
    users: Vec<(Encoded<'py>, Encoded<'py>)>,
}

impl<'py> OwnedProperties<'py> {
    pub fn extract(properties: &Bound<'py, PyAny>) -> PyResult<Self> {
        let py = properties.py();
        let text = |name: &Bound<'py, PyString>| -> PyResult<Option<Encoded<'py>>> {
            let found = properties.getattr(name)?;
            if found.is_none() {
                return Ok(None);
            }
            sized(Encoded::new(&found, "a property")?, py).map(Some)
        };
        let format = properties.getattr(pyo3::intern!(py, "payload_format_indicator"))?;
        let data = properties.getattr(pyo3::intern!(py, "correlation_data"))?;
        let mut users = Vec::new();
        let pairs = properties.getattr(pyo3::intern!(py, "user_properties"))?;
        if !pairs.is_none() {
            for pair in pairs.try_iter()? {
                let (name, value): (Bound<'py, PyAny>, Bound<'py, PyAny>) = pair?.extract()?;
                let name = sized(Encoded::new(&name, "a property")?, py)?;
                users.push((name, sized(Encoded::new(&value, "a property")?, py)?));
            }
        }
        Ok(Self {
            numbers: [extract_int(&format, "payload_format_indicator")?],
            texts: [
                text(pyo3::intern!(py, "content_type"))?,
                text(pyo3::intern!(py, "response_topic"))?,
            ],
            data: (!data.is_none()).then_some(data),
            users,
        })
    }

    pub fn borrow(&self) -> PublishProperties<'_> {
        let text = |encoded: &Encoded<'py>| std::str::from_utf8(encoded.bytes()).unwrap_or("");
        PublishProperties {
            payload_format: self.numbers[0].map(|format| format as u8),
            content_type: self.texts[0].as_ref().map(text),
            response_topic: self.texts[1].as_ref().map(text),
            correlation_data: self
                .data
                .as_ref()
                .and_then(|data| extract_bytes(data, "correlation_data").ok().flatten()),
            users: self.users.iter().map(|(name, value)| (text(name), text(value))).collect(),
            ..PublishProperties::default()
        }
    }
}

/// Refuse a text that no field can hold.
fn sized<'py>(text: Encoded<'py>, py: Python<'_>) -> PyResult<Encoded<'py>> {
    if text.bytes().len() > usize::from(u16::MAX) {
        return Err(Refusal::bad("a property has more than 65,535 bytes").raise(py));
    }
    Ok(text)
}

fn response_topic(text: &str) -> Option<&str> {
    name(text.as_bytes()).filter(|text| !text.is_empty() && !text.contains(['+', '#']))
}

fn class(py: Python<'_>) -> PyResult<&'static Py<PyAny>> {
    static CLASS: PyOnceLock<Py<PyAny>> = PyOnceLock::new();
    CLASS.get_or_try_init(py, || {
        let module = py.import("penstock.brokers.mqtt.wire.properties")?;
        Ok(module.getattr("Properties")?.unbind())
    })
}
