//! A hash table of small numbers whose keys are kept elsewhere: four bytes a slot.
//!
//! Open addressing with linear probing; a removal moves the numbers after it back, so that no slot
//! is lost. The caller hashes, and compares what a number stands for.

const NONE: u32 = u32::MAX;
const SLOTS_MIN: usize = 16;

#[derive(Default)]
pub struct IdTable {
    slots: Vec<u32>,
    count: usize,
}

impl IdTable {
    #[cfg(test)]
    pub fn len(&self) -> usize {
        self.count
    }

    #[inline]
    fn slot_of(&self, hash: u64) -> usize {
        hash as usize & (self.slots.len() - 1)
    }

    #[inline]
    fn after(&self, slot: usize) -> usize {
        (slot + 1) & (self.slots.len() - 1)
    }

    #[inline]
    fn slot_with(&self, hash: u64, is_it: impl Fn(u32) -> bool) -> Option<usize> {
        if self.slots.is_empty() {
            return None;
        }
        let mut slot = self.slot_of(hash);
        while self.slots[slot] != NONE {
            if is_it(self.slots[slot]) {
                return Some(slot);
            }
            slot = self.after(slot);
        }
        None
    }

    #[inline]
    pub fn find(&self, hash: u64, is_it: impl Fn(u32) -> bool) -> Option<u32> {
        self.slot_with(hash, is_it).map(|slot| self.slots[slot])
    }

    /// Add a number that is not in the table; `hash_of` is asked when it grows.
    pub fn insert(&mut self, hash: u64, id: u32, hash_of: impl Fn(u32) -> u64) {
        if (self.count + 1) * 4 > self.slots.len() * 3 {
            let size = (self.slots.len() * 2).max(SLOTS_MIN);
            let old = std::mem::replace(&mut self.slots, vec![NONE; size]);
            for known in old.into_iter().filter(|&known| known != NONE) {
                self.place(hash_of(known), known);
            }
        }
        self.place(hash, id);
        self.count += 1;
    }

    fn place(&mut self, hash: u64, id: u32) {
        let mut slot = self.slot_of(hash);
        while self.slots[slot] != NONE {
            slot = self.after(slot);
        }
        self.slots[slot] = id;
    }

    pub fn remove(&mut self, hash: u64, is_it: impl Fn(u32) -> bool, hash_of: impl Fn(u32) -> u64) {
        let Some(mut hole) = self.slot_with(hash, is_it) else {
            return;
        };
        self.count -= 1;
        let mask = self.slots.len() - 1;
        let mut slot = self.after(hole);
        while self.slots[slot] != NONE {
            let home = self.slot_of(hash_of(self.slots[slot]));
            // It may move if its home is not between the hole and its slot.
            if slot.wrapping_sub(home) & mask >= slot.wrapping_sub(hole) & mask {
                self.slots[hole] = self.slots[slot];
                hole = slot;
            }
            slot = self.after(slot);
        }
        self.slots[hole] = NONE;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::HashMap;

    #[test]
    fn it_answers_as_a_map_after_any_changes() {
        // Few hashes, so that many numbers share their slots.
        let hash_of = |id: u32| u64::from(id % 7) * 5;
        let mut table = IdTable::default();
        let mut expected = HashMap::new();
        let mut state = 1u32;
        for _ in 0..20_000 {
            state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
            let id = state >> 16 & 127;
            if expected.remove(&id).is_some() {
                table.remove(hash_of(id), |known| known == id, hash_of);
            } else {
                table.insert(hash_of(id), id, hash_of);
                expected.insert(id, ());
            }
            assert_eq!(table.len(), expected.len());
        }
        for id in 0..128 {
            let found = table.find(hash_of(id), |known| known == id);
            assert_eq!(found.is_some(), expected.contains_key(&id));
        }
    }
}
