//! The Raft core (raft-rs), bound as a machine without input or output.
//!
//! Python ticks it, hands it messages and proposals, and asks what is `ready`: rows to write,
//! messages to send, entries to apply. Nothing in here reads a clock, a file or a socket. The only
//! chance in Raft, how long a node waits before it stands for election, is computed from a seed and
//! the term, so that a simulation can be played again.

mod core;
mod rows;
mod store;

pub use self::core::RaftCore;
