//! A record's properties: `name 0x01 value 0x02`, repeated, without escapes.
//!
//! RocketMQ's readers build a map of them: an entry with an empty name or value is not there, the
//! last of a repeated name wins, an entry without 0x01 is skipped, the final 0x02 may be missing.
//! `Properties` answers as that map does; `Entries` yields all there is.

use memchr::memchr;

use crate::bytes::parse_decimal;

pub const BATCH_COUNT_MAX: i64 = 32_767;

/// The entries that have a name and a value, possibly empty, in order.
pub struct Entries<'a> {
    rest: &'a [u8],
}

impl<'a> Entries<'a> {
    pub fn new(data: &'a [u8]) -> Self {
        Self { rest: data }
    }
}

impl<'a> Iterator for Entries<'a> {
    type Item = (&'a [u8], &'a [u8]);

    #[inline]
    fn next(&mut self) -> Option<Self::Item> {
        while !self.rest.is_empty() {
            let size = memchr(2, self.rest).unwrap_or(self.rest.len());
            let entry = self.rest.get(..size)?;
            self.rest = self.rest.get(size + 1..).unwrap_or(&[]);
            if let Some(split) = memchr(1, entry) {
                return Some((entry.get(..split)?, entry.get(split + 1..)?));
            }
        }
        None
    }
}

/// The entries that mean something to the store. An empty slice: not there.
#[derive(Default, Clone, Copy)]
pub struct Properties<'a> {
    pub keys: &'a [u8],
    pub tags: &'a [u8],
    pub unique_key: &'a [u8],
    pub delay: &'a [u8],
    pub inner_count: &'a [u8],
    pub inner_base: &'a [u8],
    pub envelope: &'a [u8],
    pub expires: &'a [u8],
    pub kafka: &'a [u8],
    pub producer: &'a [u8],
    pub group: &'a [u8],
    /// Some entry is a header.
    pub has_headers: bool,
}

impl<'a> Properties<'a> {
    #[inline]
    pub fn parse(data: &'a [u8]) -> Self {
        let mut found = Self::default();
        for (name, value) in Entries::new(data) {
            match name {
                b"KEYS" => set(&mut found.keys, value),
                b"TAGS" => set(&mut found.tags, value),
                b"__CRC32#" => (),
                _ => found.add_other(name, value),
            }
        }
        found
    }

    fn add_other(&mut self, name: &'a [u8], value: &'a [u8]) {
        let place = match name {
            b"PSTK_ENV" => &mut self.envelope,
            b"PSTK_EXP" => &mut self.expires,
            b"PSTK_KFK" => &mut self.kafka,
            b"PSTK_PRD" => &mut self.producer,
            b"PSTK_GRP" => &mut self.group,
            b"INNER_NUM" => &mut self.inner_count,
            b"INNER_BASE" => &mut self.inner_base,
            _ => {
                self.has_headers |= is_header(name);
                match name {
                    b"UNIQ_KEY" => &mut self.unique_key,
                    b"DELAY" => &mut self.delay,
                    _ => return,
                }
            }
        };
        set(place, value);
    }

    pub fn expires_at_ms(&self) -> Option<i64> {
        parse_decimal(self.expires)
    }

    /// Base offset and number of messages of an inner batch; RocketMQ's batch queues pass over a
    /// record that does not say both.
    pub fn inner_range(&self) -> Option<(i64, i64)> {
        let base = parse_decimal(self.inner_base).filter(|&base| base >= 0)?;
        let count = parse_decimal(self.inner_count)?;
        (1..=BATCH_COUNT_MAX).contains(&count).then_some((base, count))
    }

    /// The words of KEYS, each indexed by itself.
    pub fn key_words(&self) -> impl Iterator<Item = &'a [u8]> {
        self.keys.split(|&byte| byte == b' ').filter(|word| !word.is_empty())
    }

    /// Entries that the key index takes for this record.
    #[inline]
    pub fn index_count(&self) -> usize {
        let words = if self.keys.is_empty() { 0 } else { self.key_words().count() };
        words + usize::from(!self.unique_key.is_empty()) + usize::from(!self.tags.is_empty())
    }
}

#[inline(always)]
fn set<'a>(place: &mut &'a [u8], value: &'a [u8]) {
    if !value.is_empty() {
        *place = value;
    }
}

/// Whether an entry is a user's header (or a foreign client's property) and not the store's own.
pub fn is_header(name: &[u8]) -> bool {
    !name.is_empty()
        && !name.starts_with(b"PSTK_")
        && !name.starts_with(b"INNER_")
        && !matches!(name, b"KEYS" | b"TAGS" | b"__CRC32#")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn entries_are_those_with_a_separator() {
        let all: Vec<_> =
            Entries::new(b"a\x011\x02\x02bc\x02\x01x\x02d\x01\x02e\x012\x013").collect();
        let expected: Vec<(&[u8], &[u8])> =
            vec![(b"a", b"1"), (b"", b"x"), (b"d", b""), (b"e", b"2\x013")];
        assert_eq!(all, expected);
    }

    #[test]
    fn the_last_nonempty_value_wins() {
        let found = Properties::parse(b"KEYS\x01a b\x02KEYS\x01c  d\x02KEYS\x01\x02TAGS\x01t\x02");
        assert_eq!(found.keys, b"c  d");
        assert_eq!(found.index_count(), 3);
        assert!(!found.has_headers);
        assert!(Properties::parse(b"UNIQ_KEY\x01u").has_headers);
    }

    #[test]
    fn an_inner_range_needs_both_numbers() {
        let range = |text: &str| Properties::parse(text.as_bytes()).inner_range();
        assert_eq!(range("INNER_NUM\x013\x02INNER_BASE\x0140\x02"), Some((40, 3)));
        assert_eq!(range("INNER_NUM\x013\x02"), None);
        assert_eq!(range("INNER_NUM\x010\x02INNER_BASE\x010\x02"), None);
        assert_eq!(range("INNER_NUM\x0132768\x02INNER_BASE\x010\x02"), None);
        assert_eq!(range("INNER_NUM\x011\x02INNER_BASE\x01-1\x02"), None);
    }
}
