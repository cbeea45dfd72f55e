//! What the Raft core may ask of its log, held in memory.
//!
//! Python writes the same entries to RocksDB before it says `advance`; after a start it hands them
//! back. The log is short (it is compacted all the time), so memory is the right place for it.

use std::collections::VecDeque;

use raft::eraftpb::{ConfState, Entry, HardState, Snapshot};
use raft::{Error, GetEntriesContext, RaftState, Result, Storage, StorageError};

pub struct LogStore {
    pub hard_state: HardState,
    pub configuration: ConfState,
    pub cut_index: u64,
    pub cut_term: u64,
    pub entries: VecDeque<Entry>,
    /// What the state machine holds: a snapshot is made of it, at this index.
    pub applied: u64,
    pub applied_term: u64,
}

impl LogStore {
    fn last(&self) -> u64 {
        self.cut_index + self.entries.len() as u64
    }

    /// Append entries to the log; those it holds from the first index on are replaced.
    pub fn append(&mut self, entries: &[Entry]) {
        let Some(first) = entries.first() else { return };
        assert!(
            first.index > self.cut_index && first.index <= self.last() + 1,
            "entries [{}, ..) do not follow ({}, {}]",
            first.index,
            self.cut_index,
            self.last()
        );
        self.entries.truncate((first.index - self.cut_index - 1) as usize);
        self.entries.extend(entries.iter().cloned());
    }

    /// Forget the entries up to `index`.
    pub fn cut(&mut self, index: u64) {
        if index <= self.cut_index {
            return;
        }
        assert!(index <= self.applied, "entry {index} is cut before it is applied");
        let dropped = (index - self.cut_index) as usize;
        self.cut_term = self.entries[dropped - 1].term;
        self.entries.drain(..dropped);
        self.cut_index = index;
    }

    /// The state of another node has replaced ours.
    pub fn restore(&mut self, index: u64, term: u64, configuration: ConfState) {
        self.entries.clear();
        (self.cut_index, self.cut_term) = (index, term);
        (self.applied, self.applied_term) = (index, term);
        self.configuration = configuration;
        self.hard_state.commit = self.hard_state.commit.max(index);
        self.hard_state.term = self.hard_state.term.max(term);
    }
}

impl Storage for LogStore {
    fn initial_state(&self) -> Result<RaftState> {
        Ok(RaftState::new(self.hard_state.clone(), self.configuration.clone()))
    }

    fn entries(
        &self,
        low: u64,
        high: u64,
        max_size: impl Into<Option<u64>>,
        _context: GetEntriesContext,
    ) -> Result<Vec<Entry>> {
        if low <= self.cut_index {
            return Err(Error::Store(StorageError::Compacted));
        }
        assert!(high <= self.last() + 1, "entry {high} is after the log");
        let (from, to) = (low - self.cut_index - 1, high - self.cut_index - 1);
        let range = self.entries.range(from as usize..to as usize);
        let limit = max_size.into().unwrap_or(u64::MAX);
        let mut taken: Vec<Entry> = Vec::new();
        let mut size = 0u64;
        for entry in range {
            size += (entry.data.len() + entry.context.len() + 32) as u64;
            if !taken.is_empty() && size > limit {
                break;
            }
            taken.push(entry.clone());
        }
        Ok(taken)
    }

    fn term(&self, index: u64) -> Result<u64> {
        if index == self.cut_index {
            return Ok(self.cut_term);
        }
        if index < self.cut_index {
            return Err(Error::Store(StorageError::Compacted));
        }
        match self.entries.get((index - self.cut_index - 1) as usize) {
            Some(entry) => Ok(entry.term),
            None => Err(Error::Store(StorageError::Unavailable)),
        }
    }

    fn first_index(&self) -> Result<u64> {
        Ok(self.cut_index + 1)
    }

    fn last_index(&self) -> Result<u64> {
        Ok(self.last())
    }

    /// Only what a snapshot is of; the rows are read and sent by Python.
    fn snapshot(&self, request_index: u64, _to: u64) -> Result<Snapshot> {
        if self.applied < request_index || self.applied == 0 {
            return Err(Error::Store(StorageError::SnapshotTemporarilyUnavailable));
        }
        let mut snapshot = Snapshot::default();
        let metadata = snapshot.mut_metadata();
        metadata.index = self.applied;
        metadata.term = self.applied_term;
        metadata.set_conf_state(self.configuration.clone());
        Ok(snapshot)
    }
}
