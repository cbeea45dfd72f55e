//! The filters of all subscribers, by level: an arena of nodes with interned levels.
//!
//! A node is 24 bytes, an entry 40 with its reference; levels are stored once for all filters. Maps
//! are keyed by small numbers, so that a subscription takes less than 200 bytes whatever its filter.

use std::collections::HashMap;
use std::hash::{BuildHasher, RandomState};

use super::id_table::IdTable;

const NONE: u32 = u32::MAX;
const ROOT: u32 = 0;
/// Lists with more entries have an index.
const SCANNED_MAX: usize = 32;

#[derive(Clone, Copy)]
struct Node {
    parent: u32,
    level: u32,
    /// The child for `+`.
    plus: u32,
    /// How many other children there are.
    children: u32,
    /// The first entry of filters that end here, and of those that end with `#` here.
    lists: [u32; 2],
}

const EMPTY: Node = Node { parent: NONE, level: NONE, plus: NONE, children: 0, lists: [NONE; 2] };

/// What a subscription asks for.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Options {
    pub qos: u8,
    pub no_local: bool,
    pub retain_as_published: bool,
    /// 0: none.
    pub identifier: u32,
}

/// A subscription's place among those of its filter: the number of its subscriber, and a hash of the
/// filter that the client named where the tree matches another one, else 0.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct Key {
    pub number: i64,
    pub filter: u64,
}

pub struct Entry<T> {
    pub subscriber: T,
    pub key: Key,
    pub options: Options,
    next: u32,
    previous: u32,
}

/// Slots that are used again.
struct Arena<T> {
    slots: Vec<Option<T>>,
    free: Vec<u32>,
}

impl<T> Default for Arena<T> {
    fn default() -> Self {
        Self { slots: Vec::new(), free: Vec::new() }
    }
}

impl<T> Arena<T> {
    fn add(&mut self, value: T) -> u32 {
        if let Some(slot) = self.free.pop() {
            self.slots[slot as usize] = Some(value);
            return slot;
        }
        grow(&mut self.slots);
        self.slots.push(Some(value));
        (self.slots.len() - 1) as u32
    }

    fn remove(&mut self, slot: u32) -> Option<T> {
        let value = self.slots.get_mut(slot as usize)?.take();
        if value.is_some() {
            self.free.push(slot);
        }
        value
    }

    fn get(&self, slot: u32) -> Option<&T> {
        self.slots.get(slot as usize)?.as_ref()
    }

    fn get_mut(&mut self, slot: u32) -> Option<&mut T> {
        self.slots.get_mut(slot as usize)?.as_mut()
    }
}

/// The texts of levels, each once.
#[derive(Default)]
struct Levels {
    numbers: IdTable,
    texts: Vec<Box<str>>,
    uses: Vec<u32>,
    free: Vec<u32>,
    hasher: RandomState,
}

impl Levels {
    fn find(&self, text: &str) -> Option<u32> {
        let hash = self.hasher.hash_one(text);
        self.numbers.find(hash, |number| &*self.texts[number as usize] == text)
    }

    fn acquire(&mut self, text: &str) -> u32 {
        let number = match self.find(text) {
            Some(number) => number,
            None => self.add(text),
        };
        self.uses[number as usize] += 1;
        number
    }

    fn add(&mut self, text: &str) -> u32 {
        let number = match self.free.pop() {
            Some(number) => {
                self.texts[number as usize] = text.into();
                number
            }
            None => {
                grow(&mut self.texts);
                grow(&mut self.uses);
                self.texts.push(text.into());
                self.uses.push(0);
                (self.texts.len() - 1) as u32
            }
        };
        let (texts, hasher) = (&self.texts, &self.hasher);
        let hash_of = |number: u32| hasher.hash_one(&*texts[number as usize]);
        self.numbers.insert(hasher.hash_one(text), number, hash_of);
        number
    }

    fn release(&mut self, number: u32) {
        self.uses[number as usize] -= 1;
        if self.uses[number as usize] > 0 {
            return;
        }
        let (texts, hasher) = (&self.texts, &self.hasher);
        let hash_of = |number: u32| hasher.hash_one(&*texts[number as usize]);
        self.numbers.remove(hash_of(number), |known| known == number, hash_of);
        self.texts[number as usize] = Box::default();
        self.free.push(number);
    }
}

/// Make room by an eighth: a vector of millions that doubles has mostly room that it does not need.
fn grow<T>(items: &mut Vec<T>) {
    if items.len() == items.capacity() {
        items.reserve_exact((items.len() / 8).max(16));
    }
}

pub struct Tree<T> {
    nodes: Vec<Node>,
    free: Vec<u32>,
    /// By parent and level.
    children: IdTable,
    levels: Levels,
    entries: Arena<Entry<T>>,
    /// The entries of long lists, by node and kind of list.
    indexes: HashMap<(u32, usize), HashMap<Key, u32>>,
    hasher: RandomState,
    count: usize,
    steps_max: usize,
}

/// A filter's levels before a final `#`, and which list of the last node it belongs to.
fn split(filter: &str) -> (impl Iterator<Item = &str>, usize) {
    let (path, list) = match filter.strip_suffix('#') {
        Some("") => (None, 1),
        Some(path) if path.ends_with('/') => (Some(&path[..path.len() - 1]), 1),
        _ => (Some(filter), 0),
    };
    (path.into_iter().flat_map(|path| path.split('/')), list)
}

fn hash_of(nodes: &[Node], hasher: &RandomState, child: u32) -> u64 {
    let node = &nodes[child as usize];
    hasher.hash_one((node.parent, node.level))
}

impl<T> Tree<T> {
    pub fn new(steps_max: usize) -> Self {
        Self {
            nodes: vec![EMPTY],
            free: Vec::new(),
            children: IdTable::default(),
            levels: Levels::default(),
            entries: Arena::default(),
            indexes: HashMap::new(),
            hasher: RandomState::new(),
            count: 0,
            steps_max,
        }
    }

    pub fn len(&self) -> usize {
        self.count
    }

    /// The key of a subscription; `filter` is what the client named.
    pub fn key(&self, number: i64, filter: &str, inner: &str) -> Key {
        let filter = if filter == inner { 0 } else { self.hasher.hash_one(filter) | 1 };
        Key { number, filter }
    }

    /// Add a subscription, or replace the one with this key.
    pub fn add(&mut self, filter: &str, key: Key, subscriber: T, options: Options) {
        let (levels, list) = split(filter);
        let mut node = ROOT;
        for level in levels {
            node = self.child_or_new(node, level);
        }
        if let Some(known) = self.find_entry(node, list, key) {
            if let Some(entry) = self.entries.get_mut(known) {
                (entry.subscriber, entry.options) = (subscriber, options);
            }
            return;
        }
        let next = self.nodes[node as usize].lists[list];
        let entry = self.entries.add(Entry { subscriber, key, options, next, previous: NONE });
        if let Some(second) = self.entries.get_mut(next) {
            second.previous = entry;
        }
        self.nodes[node as usize].lists[list] = entry;
        if let Some(index) = self.indexes.get_mut(&(node, list)) {
            index.insert(key, entry);
        }
        self.count += 1;
    }

    /// Remove a subscription; return what was there.
    pub fn remove(&mut self, filter: &str, key: Key) -> Option<T> {
        let (levels, list) = split(filter);
        let mut node = ROOT;
        for level in levels {
            node = self.child(node, level)?;
        }
        let found = self.find_entry(node, list, key)?;
        let entry = self.entries.remove(found)?;
        match self.entries.get_mut(entry.previous) {
            Some(previous) => previous.next = entry.next,
            None => self.nodes[node as usize].lists[list] = entry.next,
        }
        if let Some(next) = self.entries.get_mut(entry.next) {
            next.previous = entry.previous;
        }
        if let Some(index) = self.indexes.get_mut(&(node, list)) {
            index.remove(&key);
            if index.is_empty() {
                self.indexes.remove(&(node, list));
            }
        }
        self.count -= 1;
        self.prune(node);
        Some(entry.subscriber)
    }

    fn child(&self, node: u32, level: &str) -> Option<u32> {
        if level == "+" {
            return Some(self.nodes[node as usize].plus).filter(|&child| child != NONE);
        }
        self.child_at(node, self.levels.find(level)?)
    }

    fn child_at(&self, parent: u32, level: u32) -> Option<u32> {
        let is_it = |child: u32| {
            let node = &self.nodes[child as usize];
            node.parent == parent && node.level == level
        };
        self.children.find(self.hasher.hash_one((parent, level)), is_it)
    }

    fn child_or_new(&mut self, node: u32, level: &str) -> u32 {
        if let Some(child) = self.child(node, level) {
            return child;
        }
        let number = if level == "+" { NONE } else { self.levels.acquire(level) };
        let made = Node { parent: node, level: number, ..EMPTY };
        let child = match self.free.pop() {
            Some(child) => {
                self.nodes[child as usize] = made;
                child
            }
            None => {
                grow(&mut self.nodes);
                self.nodes.push(made);
                (self.nodes.len() - 1) as u32
            }
        };
        if level == "+" {
            self.nodes[node as usize].plus = child;
        } else {
            self.nodes[node as usize].children += 1;
            let (nodes, hasher) = (&self.nodes, &self.hasher);
            let hash = hasher.hash_one((node, number));
            self.children.insert(hash, child, |child| hash_of(nodes, hasher, child));
        }
        child
    }

    /// The entry of a list with a key. A list that proves to be long gets an index.
    fn find_entry(&mut self, node: u32, list: usize, key: Key) -> Option<u32> {
        if let Some(index) = self.indexes.get(&(node, list)) {
            return index.get(&key).copied();
        }
        let mut found = None;
        let mut count = 0;
        let mut at = self.nodes[node as usize].lists[list];
        while let Some(entry) = self.entries.get(at) {
            if entry.key == key {
                found = Some(at);
                break;
            }
            count += 1;
            at = entry.next;
        }
        if count > SCANNED_MAX {
            let mut index = HashMap::new();
            let mut at = self.nodes[node as usize].lists[list];
            while let Some(entry) = self.entries.get(at) {
                index.insert(entry.key, at);
                at = entry.next;
            }
            self.indexes.insert((node, list), index);
        }
        found
    }

    /// Remove the nodes at the end of a path that nothing needs any more.
    fn prune(&mut self, mut node: u32) {
        while node != ROOT {
            let Node { parent, level: number, plus, children, lists } = self.nodes[node as usize];
            if plus != NONE || children > 0 || lists != [NONE; 2] {
                return;
            }
            if number == NONE {
                self.nodes[parent as usize].plus = NONE;
            } else {
                let (nodes, hasher) = (&self.nodes, &self.hasher);
                let hash = |child| hash_of(nodes, hasher, child);
                self.children.remove(hash(node), |child| child == node, hash);
                self.nodes[parent as usize].children -= 1;
                self.levels.release(number);
            }
            self.free.push(node);
            node = parent;
        }
    }

    /// Visit the entries that match a topic; return whether all were visited.
    pub fn each_match<'a>(&'a self, topic: &str, mut visit: impl FnMut(&'a Entry<T>)) -> bool {
        let mut nodes = vec![ROOT];
        let mut following = Vec::new();
        let mut uses_wildcards = !topic.starts_with('$');
        let mut steps = 0;
        for level in topic.split('/') {
            steps += nodes.len();
            if steps > self.steps_max {
                return false;
            }
            let number = self.levels.find(level);
            for &node in &nodes {
                let Node { plus, children, lists, .. } = self.nodes[node as usize];
                if uses_wildcards {
                    self.each_entry(lists[1], &mut visit);
                }
                if let Some(number) = number.filter(|_| children > 0) {
                    following.extend(self.child_at(node, number));
                }
                if uses_wildcards && plus != NONE {
                    following.push(plus);
                }
            }
            std::mem::swap(&mut nodes, &mut following);
            following.clear();
            uses_wildcards = true;
            if nodes.is_empty() {
                break;
            }
        }
        for &node in &nodes {
            let lists = self.nodes[node as usize].lists;
            self.each_entry(lists[0], &mut visit);
            self.each_entry(lists[1], &mut visit);
        }
        true
    }

    fn each_entry<'a>(&'a self, first: u32, visit: &mut impl FnMut(&'a Entry<T>)) {
        let mut at = first;
        while let Some(entry) = self.entries.get(at) {
            visit(entry);
            at = entry.next;
        }
    }

    /// All subscribers, as often as they have subscriptions.
    pub fn subscribers(&self) -> impl Iterator<Item = &T> {
        self.entries.slots.iter().flatten().map(|entry| &entry.subscriber)
    }

    /// Remove everything.
    pub fn clear(&mut self) {
        *self = Self::new(self.steps_max);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const OPTIONS: Options =
        Options { qos: 1, no_local: false, retain_as_published: false, identifier: 0 };

    fn add(tree: &mut Tree<i64>, number: i64, filter: &str) {
        let key = tree.key(number, filter, filter);
        tree.add(filter, key, number, OPTIONS);
    }

    fn matches(tree: &Tree<i64>, topic: &str) -> Vec<i64> {
        let mut found = Vec::new();
        assert!(tree.each_match(topic, |entry| found.push(entry.subscriber)));
        found.sort_unstable();
        found
    }

    #[test]
    fn filters_match_as_mqtt_says() {
        let mut tree = Tree::new(1000);
        let filters = ["#", "+", "a/b", "a/+", "a/#", "+/b", "$SYS/#", "/", "a//b", "+/+/b"];
        for (number, filter) in filters.iter().enumerate() {
            add(&mut tree, number as i64, filter);
        }
        assert_eq!(matches(&tree, "a"), [0, 1, 4]);
        assert_eq!(matches(&tree, "a/b"), [0, 2, 3, 4, 5]);
        assert_eq!(matches(&tree, "$SYS"), [6]);
        assert_eq!(matches(&tree, "$SYS/x/y"), [6]);
        assert_eq!(matches(&tree, "/"), [0, 7]);
        assert_eq!(matches(&tree, "a//b"), [0, 4, 8, 9]);
        assert_eq!(tree.len(), filters.len());
    }

    #[test]
    fn what_is_removed_leaves_nothing() {
        let mut tree = Tree::new(1000);
        let filters = ["a/b/c", "a/+/c", "a/b/#", "#", "x"];
        for number in 0..100 {
            for filter in filters {
                add(&mut tree, number, filter);
                add(&mut tree, number, filter);
            }
        }
        assert_eq!(tree.len(), 500);
        assert_eq!(matches(&tree, "a/b/c").len(), 400);
        for number in 0..100 {
            for filter in filters {
                let key = tree.key(number, filter, filter);
                assert_eq!(tree.remove(filter, key), Some(number));
                assert_eq!(tree.remove(filter, key), None);
            }
        }
        assert_eq!(tree.len(), 0);
        assert!(tree.children.len() == 0 && tree.levels.numbers.len() == 0);
        assert_eq!(tree.free.len() + 1, tree.nodes.len());
        assert!(tree.indexes.is_empty());
    }

    #[test]
    fn a_match_ends_at_the_limit_of_steps() {
        let mut tree = Tree::new(20);
        for bits in 0..64u32 {
            let level = |bit: u32| if (bits >> bit) & 1 == 1 { "+" } else { "a" };
            let filter: Vec<&str> = (0..6).map(level).collect();
            add(&mut tree, i64::from(bits), &filter.join("/"));
        }
        assert!(!tree.each_match("a/a/a/a/a/a", |_| ()));
        assert!(tree.each_match("b/a/a", |_| ()));
    }
}
