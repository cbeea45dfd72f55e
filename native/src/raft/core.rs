//! `RaftCore`: one member of one group.

use std::collections::VecDeque;
use std::panic::{catch_unwind, AssertUnwindSafe};

use protobuf::{Message as _, ProtobufEnum as _};
use pyo3::exceptions::PyRuntimeError;
use pyo3::prelude::*;
use pyo3::types::PyBytes;
use raft::eraftpb::{
    ConfChange, ConfChangeSingle, ConfChangeType, ConfChangeV2, HardState, MessageType,
};
use raft::{Config, Error, RawNode, Ready, SnapshotStatus, StateRole};

use super::rows::{
    bytes_of, committed_of, conf_state_of, configuration_of, entry_of, message_of, outgoing_of,
    row_of, Committed, Configuration, LogRow, Outgoing,
};
use super::store::LogStore;
use crate::errors::Refusal;

type HardRow = (u64, u64, u64);
type Restored = (u64, u64, Configuration);
type ReadyParts<'py> = (
    Option<HardRow>,
    bool,
    Vec<LogRow<'py>>,
    Option<Restored>,
    Vec<Outgoing<'py>>,
    Vec<Outgoing<'py>>,
    Vec<Committed<'py>>,
    Vec<(u64, Bound<'py, PyBytes>)>,
);
type Advanced<'py> = (Vec<Outgoing<'py>>, Vec<Committed<'py>>);
/// (node, matched, next, state, recently active)
type Progress = (u64, u64, u64, &'static str, bool);

#[pyclass(module = "penstock._native")]
pub struct RaftCore {
    node: RawNode<LogStore>,
    pending: Option<Ready>,
    seed: u64,
    election_ticks: u64,
}

fn failed(error: Error) -> PyErr {
    PyRuntimeError::new_err(error.to_string())
}

/// Mixes a number thoroughly (the finisher of splitmix64).
fn mix(number: u64) -> u64 {
    let mut mixed = number.wrapping_add(0x9E37_79B9_7F4A_7C15);
    mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
    mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
    mixed ^ (mixed >> 31)
}

impl RaftCore {
    /// How long this node waits for a leader follows from seed, term and role, and from nothing
    /// else; raft-rs has just chosen by chance.
    fn set_election_timeout(&mut self) {
        let raft = &mut self.node.raft;
        let what = self.seed ^ mix(raft.term ^ ((raft.state as u64) << 56));
        let waits = self.election_ticks + mix(what) % self.election_ticks;
        raft.set_randomized_election_timeout(waits as usize);
    }

    fn check_no_ready(&self) -> PyResult<()> {
        if self.pending.is_some() {
            return Err(PyRuntimeError::new_err("ready() was not followed by advance()"));
        }
        Ok(())
    }
}

#[pymethods]
impl RaftCore {
    #[new]
    #[pyo3(signature = (node_id, *, configuration, hard_state, cut, rows, applied, applied_term,
                        election_ticks, heartbeat_ticks, message_size_max, uncommitted_size_max,
                        seed))]
    #[allow(clippy::too_many_arguments)]
    fn new(
        py: Python<'_>,
        node_id: u64,
        configuration: Configuration,
        hard_state: HardRow,
        cut: (u64, u64),
        rows: Vec<(u64, Vec<u8>)>,
        applied: u64,
        applied_term: u64,
        election_ticks: u64,
        heartbeat_ticks: u64,
        message_size_max: u64,
        uncommitted_size_max: u64,
        seed: u64,
    ) -> PyResult<Self> {
        let mut entries = VecDeque::with_capacity(rows.len());
        for (number, (index, row)) in rows.iter().enumerate() {
            if *index != cut.0 + 1 + number as u64 {
                let problem = format!("entry {index} does not follow the one before it");
                return Err(Refusal::bad(problem).raise(py));
            }
            entries.push_back(entry_of(*index, row).map_err(|refusal| refusal.raise(py))?);
        }
        let last = cut.0 + entries.len() as u64;
        let (term, vote, commit) = hard_state;
        let commit = commit.max(applied).max(cut.0);
        if node_id == 0 || election_ticks <= heartbeat_ticks || heartbeat_ticks == 0 {
            return Err(Refusal::bad("a node id and 0 < heartbeat < election ticks").raise(py));
        }
        if applied < cut.0 || commit > last {
            let problem = format!(
                "the log holds ({}, {last}], but {applied} is applied and {commit} committed",
                cut.0
            );
            return Err(Refusal::bad(problem).raise(py));
        }
        let mut hard_state = HardState::default();
        (hard_state.term, hard_state.vote, hard_state.commit) = (term, vote, commit);
        let store = LogStore {
            hard_state,
            configuration: conf_state_of(configuration),
            cut_index: cut.0,
            cut_term: cut.1,
            entries,
            applied,
            applied_term,
        };
        let config = Config {
            id: node_id,
            election_tick: election_ticks as usize,
            heartbeat_tick: heartbeat_ticks as usize,
            applied,
            pre_vote: true,
            check_quorum: true,
            max_size_per_msg: message_size_max,
            max_inflight_msgs: 256,
            max_uncommitted_size: uncommitted_size_max,
            max_committed_size_per_ready: message_size_max,
            ..Default::default()
        };
        let logger = slog::Logger::root(slog::Discard, slog::o!());
        let node = RawNode::new(&config, store, &logger).map_err(failed)?;
        let mut core = RaftCore { node, pending: None, seed, election_ticks };
        core.set_election_timeout();
        Ok(core)
    }

    fn tick(&mut self) -> PyResult<()> {
        self.check_no_ready()?;
        self.node.tick();
        self.set_election_timeout();
        Ok(())
    }

    /// Take a message of another member; messages for unknown members are ignored.
    fn step(&mut self, py: Python<'_>, message: &[u8]) -> PyResult<()> {
        self.check_no_ready()?;
        let message = message_of(message).map_err(|refusal| refusal.raise(py))?;
        if message.to != self.node.raft.id {
            let problem = format!("a message for node {} came here", message.to);
            return Err(Refusal::bad(problem).raise(py));
        }
        // raft-rs panics where a peer breaks the protocol: this node must stop then, not crash.
        let node = AssertUnwindSafe(&mut self.node);
        let outcome = catch_unwind(move || { node }.step(message));
        let Ok(outcome) = outcome else {
            return Err(PyRuntimeError::new_err("a message broke the rules of Raft"));
        };
        self.set_election_timeout();
        match outcome {
            Ok(())
            | Err(Error::StepPeerNotFound | Error::ProposalDropped | Error::StepLocalMsg) => Ok(()),
            Err(error) => Err(failed(error)),
        }
    }

    /// Propose, or pass on to the leader; false when no leader takes proposals now.
    fn propose(&mut self, context: Vec<u8>, data: Vec<u8>) -> PyResult<bool> {
        self.check_no_ready()?;
        match self.node.propose(context, data) {
            Ok(()) => Ok(true),
            Err(Error::ProposalDropped) => Ok(false),
            Err(error) => Err(failed(error)),
        }
    }

    /// Propose changes of the members, [(kind, node)]: 0 voter, 1 removed, 2 learner. More than one
    /// goes through a joint configuration, which is left by itself.
    fn propose_conf_change(
        &mut self,
        context: Vec<u8>,
        changes: Vec<(i32, u64)>,
    ) -> PyResult<bool> {
        self.check_no_ready()?;
        let mut change = ConfChangeV2::default();
        for (kind, node) in changes {
            let kind = ConfChangeType::from_i32(kind)
                .ok_or_else(|| PyRuntimeError::new_err("no such change of members"))?;
            let mut single = ConfChangeSingle::default();
            single.set_change_type(kind);
            single.node_id = node;
            change.changes.push(single);
        }
        match self.node.propose_conf_change(context, change) {
            Ok(()) => Ok(true),
            Err(Error::ProposalDropped) => Ok(false),
            Err(error) => Err(failed(error)),
        }
    }

    /// Make a committed change of the members effective; return who the members are now.
    fn apply_conf_change(
        &mut self,
        py: Python<'_>,
        kind: i32,
        data: &[u8],
    ) -> PyResult<Configuration> {
        let bad = |error: protobuf::ProtobufError| {
            Refusal::bad(format!("no change of members: {error}")).raise(py)
        };
        let state = if kind == 1 {
            let change = ConfChange::parse_from_bytes(data).map_err(bad)?;
            self.node.apply_conf_change(&change)
        } else {
            let change = ConfChangeV2::parse_from_bytes(data).map_err(bad)?;
            self.node.apply_conf_change(&change)
        }
        .map_err(failed)?;
        self.node.mut_store().configuration = state.clone();
        Ok(configuration_of(&state))
    }

    /// Ask for a point after which reads are linearizable; `ready` answers with the context.
    fn read_index(&mut self, context: Vec<u8>) -> PyResult<()> {
        self.check_no_ready()?;
        self.node.read_index(context);
        Ok(())
    }

    fn campaign(&mut self) -> PyResult<()> {
        self.check_no_ready()?;
        let outcome = self.node.campaign();
        self.set_election_timeout();
        outcome.map_err(failed)
    }

    fn transfer(&mut self, to: u64) -> PyResult<()> {
        self.check_no_ready()?;
        self.node.transfer_leader(to);
        Ok(())
    }

    fn report_unreachable(&mut self, node: u64) {
        self.node.report_unreachable(node);
    }

    fn report_snapshot(&mut self, node: u64, is_done: bool) {
        let status = if is_done { SnapshotStatus::Finish } else { SnapshotStatus::Failure };
        self.node.report_snapshot(node, status);
    }

    fn has_ready(&self) -> bool {
        self.node.has_ready()
    }

    /// (hard state, must sync, rows, restored snapshot, messages to send now, messages to send once
    /// the rows are on the device, committed entries, [(index, context)] of reads).
    fn ready<'py>(&mut self, py: Python<'py>) -> PyResult<ReadyParts<'py>> {
        self.check_no_ready()?;
        let mut ready = self.node.ready();
        let store = self.node.mut_store();
        let hard_state = ready.hs().map(|state| (state.term, state.vote, state.commit));
        if let Some(state) = ready.hs() {
            store.hard_state = state.clone();
        }
        let restored = if ready.snapshot().is_empty() {
            None
        } else {
            let metadata = ready.snapshot().get_metadata();
            let state = metadata.get_conf_state().clone();
            let found = configuration_of(&state);
            store.restore(metadata.index, metadata.term, state);
            Some((metadata.index, metadata.term, found))
        };
        store.append(ready.entries());
        let rows =
            ready.entries().iter().map(|entry| row_of(py, entry)).collect::<PyResult<_>>()?;
        let reads = ready
            .take_read_states()
            .into_iter()
            .map(|read| (read.index, PyBytes::new(py, &read.request_ctx)))
            .collect();
        let parts = (
            hard_state,
            ready.must_sync(),
            rows,
            restored,
            outgoing_of(py, ready.take_messages())?,
            outgoing_of(py, ready.take_persisted_messages())?,
            committed_of(py, ready.take_committed_entries()),
            reads,
        );
        self.pending = Some(ready);
        Ok(parts)
    }

    /// What `ready` gave is on the device: (messages to send, more committed entries).
    fn advance<'py>(&mut self, py: Python<'py>) -> PyResult<Advanced<'py>> {
        let Some(ready) = self.pending.take() else {
            return Err(PyRuntimeError::new_err("advance() without ready()"));
        };
        let mut light = self.node.advance_append(ready);
        if let Some(commit) = light.commit_index() {
            self.node.mut_store().hard_state.commit = commit;
        }
        self.set_election_timeout();
        let messages = outgoing_of(py, light.take_messages())?;
        Ok((messages, committed_of(py, light.take_committed_entries())))
    }

    /// The state machine holds the effect of all entries up to `index`.
    fn applied_to(&mut self, index: u64, term: u64) -> PyResult<()> {
        self.check_no_ready()?;
        let store = self.node.mut_store();
        (store.applied, store.applied_term) = (index, term);
        self.node.advance_apply_to(index);
        self.set_election_timeout();
        Ok(())
    }

    /// Forget the entries up to `index`, which are applied.
    fn cut(&mut self, index: u64) {
        self.node.mut_store().cut(index);
    }

    /// Return a snapshot message with what the snapshot that is sent is really of.
    fn retarget_snapshot<'py>(
        &self,
        py: Python<'py>,
        message: &[u8],
        index: u64,
        term: u64,
        configuration: Configuration,
    ) -> PyResult<Bound<'py, PyBytes>> {
        let mut message = message_of(message).map_err(|refusal| refusal.raise(py))?;
        let metadata = message.mut_snapshot().mut_metadata();
        (metadata.index, metadata.term) = (index, term);
        metadata.set_conf_state(conf_state_of(configuration));
        bytes_of(py, &message)
    }

    /// (role, term, vote, leader, commit, applied, first, last)
    fn status(&self) -> (&'static str, u64, u64, u64, u64, u64, u64, u64) {
        let raft = &self.node.raft;
        let role = match raft.state {
            StateRole::Leader => "leader",
            StateRole::Follower => "follower",
            StateRole::Candidate => "candidate",
            StateRole::PreCandidate => "pre-candidate",
        };
        let log = &raft.raft_log;
        let (first, last) = (log.first_index(), log.last_index());
        (role, raft.term, raft.vote, raft.leader_id, log.committed, log.applied, first, last)
    }

    fn term(&self) -> u64 {
        self.node.raft.term
    }

    fn leader(&self) -> u64 {
        self.node.raft.leader_id
    }

    fn is_leader(&self) -> bool {
        self.node.raft.state == StateRole::Leader
    }

    fn configuration(&self) -> Configuration {
        configuration_of(&self.node.store().configuration)
    }

    /// How far the others are, while this node leads.
    fn progress(&self) -> Vec<Progress> {
        if !self.is_leader() {
            return Vec::new();
        }
        let mut found: Vec<Progress> = self
            .node
            .raft
            .prs()
            .iter()
            .map(|(id, one)| {
                let state = match one.state {
                    raft::ProgressState::Probe => "probe",
                    raft::ProgressState::Replicate => "replicate",
                    raft::ProgressState::Snapshot => "snapshot",
                };
                (*id, one.matched, one.next_idx, state, one.recent_active)
            })
            .collect();
        found.sort_unstable();
        found
    }

    /// (kind, from, to, term, commit) of an encoded message.
    #[staticmethod]
    fn peek(py: Python<'_>, message: &[u8]) -> PyResult<(i32, u64, u64, u64, u64)> {
        let message = message_of(message).map_err(|refusal| refusal.raise(py))?;
        let kind: MessageType = message.get_msg_type();
        Ok((kind.value(), message.from, message.to, message.term, message.commit))
    }
}
