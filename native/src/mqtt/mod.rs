//! MQTT: packets, names, and the publish path.
//!
//! The rules of the protocol are in `penstock.brokers.mqtt.wire.pure`. What is here accepts the
//! packets that keep them; a packet that does not, or that is rare, is left to that reference, which
//! decodes it or says what is wrong. So both can only differ by what this code accepts.

mod decode;
mod fields;
mod frame;
mod id_table;
mod intake;
mod names;
mod properties;
mod received;
mod records;
mod routes;
mod runs;
mod tree;

use pyo3::prelude::*;

pub fn register(module: &Bound<'_, PyModule>) -> PyResult<()> {
    module.add_function(wrap_pyfunction!(decode::decode_packets, module)?)?;
    module.add_function(wrap_pyfunction!(runs::encode_acks, module)?)?;
    module.add_class::<runs::EncodedRun>()?;
    module.add_class::<intake::Intake>()?;
    module.add_class::<intake::Grants>()?;
    module.add_class::<received::ReceivedRun>()?;
    module.add_class::<routes::SubscriptionTree>()?;
    module.add_class::<routes::RouteCache>()?;
    Ok(())
}
