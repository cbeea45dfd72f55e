//! Between raft-rs's structures and what Python holds: rows of the log, tuples, bytes.

use protobuf::{Message as _, ProtobufEnum as _};
use pyo3::exceptions::PyRuntimeError;
use pyo3::prelude::*;
use pyo3::types::PyBytes;
use raft::eraftpb::{ConfState, Entry, Message};
use raft::prelude::EntryType;

use crate::errors::Refusal;

/// (voters, learners, voters outgoing, learners next, auto leave)
pub type Configuration = (Vec<u64>, Vec<u64>, Vec<u64>, Vec<u64>, bool);
/// (to, kind, encoded message)
pub type Outgoing<'py> = (u64, i32, Bound<'py, PyBytes>);
/// (index, row of the log)
pub type LogRow<'py> = (u64, Bound<'py, PyBytes>);
/// (index, term, kind, context, data)
pub type Committed<'py> = (u64, u64, i32, Bound<'py, PyBytes>, Bound<'py, PyBytes>);

/// term u64, kind u8, size of the context u32: `ENTRY` in `meta/storage/log_format.py`.
const HEAD_SIZE: usize = 13;

pub fn configuration_of(state: &ConfState) -> Configuration {
    (
        state.voters.clone(),
        state.learners.clone(),
        state.voters_outgoing.clone(),
        state.learners_next.clone(),
        state.auto_leave,
    )
}

pub fn conf_state_of(configuration: Configuration) -> ConfState {
    let (voters, learners, voters_outgoing, learners_next, auto_leave) = configuration;
    ConfState {
        voters,
        learners,
        voters_outgoing,
        learners_next,
        auto_leave,
        ..ConfState::default()
    }
}

pub fn entry_of(index: u64, row: &[u8]) -> Result<Entry, Refusal> {
    let bad = || Refusal::bad(format!("the row of entry {index} is cut short"));
    let (head, rest) = row.split_at_checked(HEAD_SIZE).ok_or_else(bad)?;
    let term = u64::from_be_bytes(head[..8].try_into().map_err(|_| bad())?);
    let context_size = u32::from_be_bytes(head[9..].try_into().map_err(|_| bad())?);
    let (context, data) = rest.split_at_checked(context_size as usize).ok_or_else(bad)?;
    let kind = EntryType::from_i32(i32::from(head[8]))
        .ok_or_else(|| Refusal::bad(format!("entry {index} is of kind {}", head[8])))?;
    let mut entry = Entry::default();
    entry.set_entry_type(kind);
    entry.index = index;
    entry.term = term;
    entry.context = context.to_vec().into();
    entry.data = data.to_vec().into();
    Ok(entry)
}

pub fn row_of<'py>(py: Python<'py>, entry: &Entry) -> PyResult<LogRow<'py>> {
    let size = HEAD_SIZE + entry.context.len() + entry.data.len();
    let row = PyBytes::new_with(py, size, |out| {
        out[..8].copy_from_slice(&entry.term.to_be_bytes());
        out[8] = entry.get_entry_type().value() as u8;
        out[9..HEAD_SIZE].copy_from_slice(&(entry.context.len() as u32).to_be_bytes());
        let data_at = HEAD_SIZE + entry.context.len();
        out[HEAD_SIZE..data_at].copy_from_slice(&entry.context);
        out[data_at..].copy_from_slice(&entry.data);
        Ok(())
    })?;
    Ok((entry.index, row))
}

pub fn committed_of<'py>(py: Python<'py>, entries: Vec<Entry>) -> Vec<Committed<'py>> {
    entries
        .into_iter()
        .map(|entry| {
            let kind = entry.get_entry_type().value();
            let (context, data) = (PyBytes::new(py, &entry.context), PyBytes::new(py, &entry.data));
            (entry.index, entry.term, kind, context, data)
        })
        .collect()
}

pub fn bytes_of<'py>(py: Python<'py>, message: &Message) -> PyResult<Bound<'py, PyBytes>> {
    let bytes = message.write_to_bytes();
    let bytes = bytes.map_err(|error| PyRuntimeError::new_err(error.to_string()))?;
    Ok(PyBytes::new(py, &bytes))
}

pub fn outgoing_of<'py>(py: Python<'py>, messages: Vec<Message>) -> PyResult<Vec<Outgoing<'py>>> {
    messages
        .iter()
        .map(|message| Ok((message.to, message.get_msg_type().value(), bytes_of(py, message)?)))
        .collect()
}

pub fn message_of(bytes: &[u8]) -> Result<Message, Refusal> {
    Message::parse_from_bytes(bytes)
        .map_err(|error| Refusal::bad(format!("no Raft message: {error}")))
}
