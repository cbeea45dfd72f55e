//! RocketMQ's key index files: hash slots, and entries chained from newest to oldest.
//!
//!     ┌───────────┬────────────────┬──────────────────────────┐
//!     │ header 40 │ slots, 4 each  │ entries, 20 each, from 1 │
//!     └───────────┴────────────────┴──────────────────────────┘
//!
//! Entries go to the oldest attached file that has room. A file is read by others while it is
//! written: the entry goes first, then its slot, then the header's count.

use crate::bytes::{i32_at, i64_at, put, View};
use crate::errors::Refusal;

pub const HEADER_SIZE: usize = 40;
const PAGE: usize = 4096;
const SLOT_SIZE: usize = 4;
const ENTRY_SIZE: usize = 20;

/// How a file is divided.
#[derive(Clone, Copy)]
pub struct Division {
    slots: u32,
    entries_max: u32,
    /// 2^64 / slots, rounded up: two products are cheaper than a division.
    inverse: u64,
}

impl Division {
    /// Check the division against the bytes that there are.
    pub fn new(size: usize, slots: i64, entries_max: i64) -> Result<Self, Refusal> {
        let (Ok(slots), Ok(entries_max)) = (i32::try_from(slots), i32::try_from(entries_max))
        else {
            return Err(Refusal::bad("slots and entries_max must fit into 31 bits"));
        };
        if slots < 1 || entries_max < 1 {
            return Err(Refusal::bad("an index needs a slot and an entry"));
        }
        let (slots, entries_max) = (slots as u32, entries_max as u32);
        let inverse = (u64::MAX / u64::from(slots)).wrapping_add(1);
        let division = Self { slots, entries_max, inverse };
        if size < division.entry_at(division.entries_max) {
            return Err(Refusal::bad("the index buffer is too small for its slots and entries"));
        }
        Ok(division)
    }

    #[inline(always)]
    fn slot_at(self, hash: u32) -> usize {
        let fraction = self.inverse.wrapping_mul(hash.into());
        let slot = (u128::from(fraction) * u128::from(self.slots)) >> 64;
        HEADER_SIZE + slot as usize * SLOT_SIZE
    }

    #[inline(always)]
    fn entry_at(self, number: u32) -> usize {
        HEADER_SIZE + self.slots as usize * SLOT_SIZE + number as usize * ENTRY_SIZE
    }
}

struct IndexFile {
    view: View,
    division: Division,
    begin_ms: i64,
    end_ms: i64,
    begin_position: i64,
    end_position: i64,
    slots_used: u32,
    /// Number of the next entry; entry 0 is never used.
    next: u32,
    /// Nothing was written yet, not even a seed from the file before.
    is_fresh: bool,
}

impl IndexFile {
    fn new(view: View, division: Division) -> Self {
        let header = view.bytes();
        let long = |at| i64_at(header, at).unwrap_or(0);
        let int = |at| i32_at(header, at).unwrap_or(0).max(0) as u32;
        let times = [long(0), long(8), long(16), long(24)];
        let next = int(36).max(1);
        Self {
            division,
            begin_ms: times[0],
            end_ms: times[1],
            begin_position: times[2],
            end_position: times[3],
            slots_used: int(32),
            next,
            is_fresh: times == [0; 4] && next == 1,
            view,
        }
    }

    fn room(&self) -> u32 {
        self.division.entries_max.saturating_sub(self.next)
    }

    /// Take over the end of the file before, as RocketMQ does when it creates a file.
    fn seed(&mut self, (end_ms, end_position): (i64, i64)) {
        if end_ms > 0 {
            (self.begin_ms, self.end_ms) = (end_ms, end_ms);
        }
        if end_position > 0 {
            (self.begin_position, self.end_position) = (end_position, end_position);
        }
        self.is_fresh = false;
    }

    /// Seconds since the first entry, as entries keep it.
    #[inline]
    fn seconds(&self, store_ms: i64) -> i32 {
        if self.begin_ms <= 0 {
            return 0;
        }
        let since_ms = store_ms.saturating_sub(self.begin_ms).max(0) as u64;
        (since_ms / 1000).min(i32::MAX as u64) as i32
    }

    /// Add entries of one record; there must be room for them.
    #[inline]
    fn add(&mut self, hashes: &[u32], position: i64, store_ms: i64) {
        let bytes = self.view.bytes_mut();
        let last_at = self.division.entry_at(self.next + hashes.len() as u32);
        if last_at > bytes.len() {
            debug_assert!(false, "no room in the index");
            return;
        }
        let start = bytes.as_mut_ptr();
        for &hash in hashes {
            let (number, seconds) = (self.next, self.seconds(store_ms));
            // SAFETY: header and slots lie before the entries, and these end inside the buffer.
            let previous = unsafe {
                let slot = start.add(self.division.slot_at(hash)).cast::<[u8; 4]>();
                let entry = start.add(self.division.entry_at(number));
                let found = i32::from_be_bytes(slot.read());
                let previous = if found > 0 && found as u32 <= number { found } else { 0 };
                entry.cast::<[u8; 4]>().write(hash.to_be_bytes());
                entry.add(4).cast::<[u8; 8]>().write(position.to_be_bytes());
                entry.add(12).cast::<[u8; 4]>().write(seconds.to_be_bytes());
                entry.add(16).cast::<[u8; 4]>().write(previous.to_be_bytes());
                slot.write(number.to_be_bytes());
                previous
            };
            if number <= 1 {
                (self.begin_ms, self.begin_position) = (store_ms, position);
            }
            self.slots_used += u32::from(previous == 0);
            self.next += 1;
        }
        (self.end_ms, self.end_position) = (store_ms, position);
        // SAFETY: the header is the start of the buffer.
        let header = unsafe { &mut *start.cast::<[u8; HEADER_SIZE]>() };
        header[..8].copy_from_slice(&self.begin_ms.to_be_bytes());
        header[8..16].copy_from_slice(&store_ms.to_be_bytes());
        header[16..24].copy_from_slice(&self.begin_position.to_be_bytes());
        header[24..32].copy_from_slice(&position.to_be_bytes());
        header[32..36].copy_from_slice(&self.slots_used.to_be_bytes());
        header[36..].copy_from_slice(&self.next.to_be_bytes());
    }

    fn end(&self) -> (i64, i64) {
        (self.end_ms, self.end_position)
    }
}

/// The attached index files, oldest first.
#[derive(Default)]
pub struct KeyIndex {
    files: Vec<IndexFile>,
    /// How many of the files, from the oldest on, are full.
    full: usize,
    room: u64,
    /// End timestamp and position of the file released last.
    released_end: (i64, i64),
    /// The record that the entries end with, and how many of them are its own.
    last: Option<(i64, usize)>,
}

impl KeyIndex {
    pub fn attach(&mut self, view: View, slots: i64, entries_max: i64) -> Result<(), Refusal> {
        let division = Division::new(view.size(), slots, entries_max)?;
        let file = IndexFile::new(view, division);
        self.room += u64::from(file.room());
        self.files.push(file);
        self.skip_full();
        Ok(())
    }

    /// Give back the oldest file's buffer.
    pub fn release(&mut self) -> Option<View> {
        if self.files.is_empty() {
            return None;
        }
        let file = self.files.remove(0);
        self.room -= u64::from(file.room());
        if !file.is_fresh {
            self.released_end = file.end();
        }
        self.full = self.full.saturating_sub(1);
        self.skip_full();
        Some(file.view)
    }

    pub fn attached(&self) -> usize {
        self.files.len()
    }

    pub fn full(&self) -> usize {
        self.full
    }

    #[inline]
    pub fn room(&self) -> u64 {
        self.room
    }

    fn skip_full(&mut self) {
        while self.files.get(self.full).is_some_and(|file| file.room() == 0) {
            self.full += 1;
        }
    }

    /// End timestamp and position of the file before the one that takes the next entry.
    fn previous_end(&self) -> (i64, i64) {
        let before = self.files.iter().take(self.full).rev().find(|file| !file.is_fresh);
        before.map_or(self.released_end, IndexFile::end)
    }

    /// Records below this position are indexed already.
    pub fn end_position(&self) -> i64 {
        let newest = self.files.iter().rev().find(|file| !file.is_fresh);
        newest.map_or(self.released_end, IndexFile::end).1
    }

    pub fn set_last(&mut self, position: i64, count: usize) {
        self.last = Some((position, count));
    }

    /// How many entries the record at a position, not below the end, is known to have already.
    #[inline]
    pub fn count_of(&self, position: i64) -> usize {
        self.last.filter(|last| last.0 == position).map_or(0, |last| last.1)
    }

    /// Fetch the memory that an entry of this hash will need: the slots are too many to be cached.
    #[inline(always)]
    pub fn prefetch(&self, hash: u32) {
        #[cfg(target_arch = "x86_64")]
        if let Some(file) = self.files.get(self.full) {
            if let Some(slot) = file.view.bytes().get(file.division.slot_at(hash)) {
                // SAFETY: a hint; it reads nothing.
                unsafe {
                    use std::arch::x86_64::{_mm_prefetch, _MM_HINT_T0};
                    _mm_prefetch::<_MM_HINT_T0>(std::ptr::from_ref(slot).cast());
                }
            }
        }
        #[cfg(not(target_arch = "x86_64"))]
        let _ = hash;
    }

    /// Add the entries of one record. The caller has made sure of the room.
    #[inline]
    pub fn add(&mut self, hashes: &[u32], position: i64, store_ms: i64) {
        if hashes.is_empty() {
            return;
        }
        match self.files.get_mut(self.full) {
            Some(file) if !file.is_fresh && hashes.len() < file.room() as usize => {
                file.add(hashes, position, store_ms);
                self.room -= hashes.len() as u64;
            }
            _ => self.add_across(hashes, position, store_ms),
        }
    }

    /// Add entries where a file begins or ends.
    #[cold]
    fn add_across(&mut self, hashes: &[u32], position: i64, store_ms: i64) {
        let mut rest = hashes;
        while !rest.is_empty() {
            let end = self.previous_end();
            let Some(file) = self.files.get_mut(self.full) else {
                debug_assert!(false, "no room in the index");
                return;
            };
            if file.is_fresh {
                file.seed(end);
            }
            let count = rest.len().min(file.room() as usize);
            file.add(&rest[..count], position, store_ms);
            self.room -= count as u64;
            rest = &rest[count..];
            self.skip_full();
        }
    }
}

/// Add entries (hash, position, store time) to a file while it has room; return how many. The
/// caller has seeded a fresh one.
pub fn fill(
    view: View,
    division: Division,
    entries: impl Iterator<Item = (u32, i64, i64)>,
) -> usize {
    let mut file = IndexFile::new(view, division);
    let room = file.room() as usize;
    let mut added = 0;
    for (hash, position, store_ms) in entries.take(room) {
        file.add(&[hash], position, store_ms);
        added += 1;
    }
    added
}

/// What a query asks an index file for.
pub struct Lookup {
    pub hash: u32,
    pub begin_ms: i64,
    pub end_ms: i64,
    pub count_max: usize,
}

/// RocketMQ's walk: positions of records whose key may be the one looked for, newest first.
///
/// Times are whole seconds since the first entry, as the file keeps them. A chain that does not
/// fall strictly is damaged and ends the walk, so there are at most as many steps as entries.
pub fn lookup(index: &[u8], division: Division, asked: &Lookup) -> Vec<i64> {
    let mut found = Vec::new();
    let read = |at: usize| i32_at(index, at).unwrap_or(0);
    let begin_ms = i64_at(index, 0).unwrap_or(0);
    // Not bounded by the header's count: a writer sets the slot before the count, and a reader that
    // took such a slot for damage would miss all entries of the chain. Callers compare the key.
    let mut above = division.entries_max as i32;
    let mut number = read(division.slot_at(asked.hash));
    while number > 0 && number < above && found.len() < asked.count_max {
        let at = division.entry_at(number as u32);
        let seconds = i64::from(read(at + 12));
        if seconds < 0 {
            break;
        }
        let time_ms = begin_ms.saturating_add(seconds * 1000);
        let is_in_time = asked.begin_ms <= time_ms && time_ms <= asked.end_ms;
        if is_in_time && read(at) == asked.hash as i32 {
            found.push(i64_at(index, at + 4).unwrap_or(0));
        }
        if time_ms < asked.begin_ms {
            break;
        }
        above = number;
        number = read(at + 16);
    }
    found
}

/// Keep entries 1..keep, clear the others, and build slots and chains anew.
pub fn relink(index: &mut [u8], division: Division, keep: i64, stop: i64) {
    let keep = keep.clamp(1, division.entries_max.into()) as u32;
    let first_cleared = division.entry_at(keep);
    let stop = usize::try_from(stop).unwrap_or(0);
    let end = division.entry_at(division.entries_max).min(stop);
    clear(index, first_cleared, end.max(first_cleared));
    // Slots are built aside: a store into the mapped file costs a fault and a write of its page,
    // and most pages are as they should be.
    let mut slots = vec![0u8; division.entry_at(1) - HEADER_SIZE];
    let mut slots_used = 0u32;
    for number in 1..keep {
        let at = division.entry_at(number);
        let hash = i32_at(index, at).unwrap_or(0).unsigned_abs();
        let slot_at = division.slot_at(hash) - HEADER_SIZE;
        let previous = i32_at(&slots, slot_at).unwrap_or(0);
        slots_used += u32::from(previous == 0);
        if i32_at(index, at + 16) != Some(previous) {
            put(index, at + 16, &previous.to_be_bytes());
        }
        put(&mut slots, slot_at, &number.to_be_bytes());
    }
    if let Some(stored) = index.get_mut(HEADER_SIZE..HEADER_SIZE + slots.len()) {
        for (page, built) in stored.chunks_mut(PAGE).zip(slots.chunks(PAGE)) {
            if page != built {
                page.copy_from_slice(built);
            }
        }
    }
    put(index, 32, &slots_used.to_be_bytes());
    put(index, 36, &keep.to_be_bytes());
}

/// Zero a range without touching what is zero: the file is sparse and shall stay so.
fn clear(data: &mut [u8], start: usize, end: usize) {
    let Some(range) = data.get_mut(start..end) else {
        return;
    };
    for chunk in range.chunks_mut(PAGE) {
        if chunk.iter().any(|&byte| byte != 0) {
            chunk.fill(0);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_slot_of_a_hash_is_its_remainder() {
        for slots in [1i64, 2, 3, 7, 100, 250_000, 5_000_000, i32::MAX.into()] {
            let division = Division::new(usize::MAX, slots, 1).unwrap();
            for hash in [0u32, 1, 2, 99, 100, 12_345_678, i32::MAX as u32, 1 << 31] {
                let expected = HEADER_SIZE + (hash % slots as u32) as usize * SLOT_SIZE;
                assert_eq!(division.slot_at(hash), expected, "{hash} in {slots}");
            }
        }
    }
}
