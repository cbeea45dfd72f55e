//! A record's properties: `name 0x01 value 0x02`, repeated, without escapes.
//!
//! RocketMQ's readers build a map of them: an entry with an empty name or value is not there, the
//! last of a repeated name wins, an entry without 0x01 is skipped, the final 0x02 may be missing.
//! `Properties` answers as that map does; `each_entry` shows all there is.

use crate::bytes::parse_decimal;
use crate::record::{TRAILER_SIZE, TRAILER_START};

pub const BATCH_COUNT_MAX: i64 = 32_767;

const CHUNK: usize = 16;

/// The places of 0x01 and 0x02, found 16 bytes at a time: entries are too short for a search each.
struct Separators<'a> {
    data: &'a [u8],
    /// Where the chunk starts, and which of its bytes are still to be handed out.
    at: usize,
    mask: u32,
    next: usize,
}

impl<'a> Separators<'a> {
    fn new(data: &'a [u8]) -> Self {
        Self { data, at: 0, mask: 0, next: 0 }
    }
}

impl Iterator for Separators<'_> {
    type Item = usize;

    #[inline(always)]
    fn next(&mut self) -> Option<usize> {
        while self.mask == 0 {
            let rest = self.data.get(self.next..).filter(|rest| !rest.is_empty())?;
            self.at = self.next;
            self.mask = match rest.first_chunk::<CHUNK>() {
                Some(chunk) => separators_in(chunk),
                None => {
                    let mut chunk = [0; CHUNK];
                    chunk.get_mut(..rest.len())?.copy_from_slice(rest);
                    separators_in(&chunk)
                }
            };
            self.next += CHUNK;
        }
        let bit = self.mask.trailing_zeros();
        self.mask &= self.mask - 1;
        Some(self.at + bit as usize)
    }
}

#[inline(always)]
fn separators_in(chunk: &[u8; CHUNK]) -> u32 {
    #[cfg(target_arch = "x86_64")]
    // SAFETY: SSE2 is part of the architecture; the load is of the chunk's 16 bytes.
    unsafe {
        use std::arch::x86_64::*;
        let bytes = _mm_loadu_si128(chunk.as_ptr().cast());
        let ones = _mm_cmpeq_epi8(bytes, _mm_set1_epi8(1));
        let twos = _mm_cmpeq_epi8(bytes, _mm_set1_epi8(2));
        _mm_movemask_epi8(_mm_or_si128(ones, twos)) as u32
    }
    #[cfg(not(target_arch = "x86_64"))]
    {
        let is_separator = |byte: u8| u32::from(byte == 1 || byte == 2);
        chunk.iter().rev().fold(0, |mask, &byte| mask << 1 | is_separator(byte))
    }
}

/// Look at the entries that have a name and a value, possibly empty, in order.
#[inline(always)]
pub fn each_entry<'a>(data: &'a [u8], mut look: impl FnMut(&'a [u8], &'a [u8])) {
    const NONE: usize = usize::MAX;
    let mut start = 0;
    let mut split = NONE;
    let mut entry = |start: usize, split: usize, end: usize| {
        if let (Some(name), Some(value)) = (data.get(start..split), data.get(split + 1..end)) {
            look(name, value);
        }
    };
    for at in Separators::new(data) {
        if data.get(at) == Some(&1) {
            split = split.min(at);
            continue;
        }
        if split != NONE {
            entry(start, split, at);
        }
        start = at + 1;
        split = NONE;
    }
    if split != NONE {
        entry(start, split, data.len());
    }
}

/// A part of the properties, which have less than 32 KiB; empty: not there.
#[derive(Default, Clone, Copy)]
struct Span {
    start: u16,
    end: u16,
}

/// The entries that mean something to the store.
#[derive(Default, Clone, Copy)]
pub struct Properties<'a> {
    data: &'a [u8],
    keys: Span,
    tags: Span,
    unique_key: Span,
    delay: Span,
    inner_count: Span,
    inner_base: Span,
    envelope: Span,
    expires: Span,
    kafka: Span,
    tag_header: Span,
    producer: Span,
    group: Span,
    /// Some entry is a header.
    pub has_headers: bool,
}

impl<'a> Properties<'a> {
    #[inline]
    pub fn parse(data: &'a [u8]) -> Self {
        let mut found = Self { data, ..Self::default() };
        each_entry(without_checksum(data), |name, value| {
            let span = found.span(value);
            match name {
                b"KEYS" => set(&mut found.keys, span),
                b"TAGS" => set(&mut found.tags, span),
                b"__CRC32#" => (),
                _ => found.add_other(name, span),
            }
        });
        found
    }

    #[cold]
    fn add_other(&mut self, name: &[u8], span: Span) {
        let place = match name {
            b"PSTK_ENV" => &mut self.envelope,
            b"PSTK_EXP" => &mut self.expires,
            b"PSTK_KFK" => &mut self.kafka,
            b"PSTK_TAG" => &mut self.tag_header,
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
        set(place, span);
    }

    #[inline(always)]
    fn span(&self, value: &[u8]) -> Span {
        let start = value.as_ptr() as usize - self.data.as_ptr() as usize;
        Span { start: start as u16, end: (start + value.len()) as u16 }
    }

    #[inline(always)]
    fn get(&self, span: Span) -> &'a [u8] {
        self.data.get(span.start.into()..span.end.into()).unwrap_or(&[])
    }

    #[inline(always)]
    pub fn keys(&self) -> &'a [u8] {
        self.get(self.keys)
    }

    #[inline(always)]
    pub fn tags(&self) -> &'a [u8] {
        self.get(self.tags)
    }

    #[inline(always)]
    pub fn unique_key(&self) -> &'a [u8] {
        self.get(self.unique_key)
    }

    pub fn delay(&self) -> &'a [u8] {
        self.get(self.delay)
    }

    pub fn group(&self) -> &'a [u8] {
        self.get(self.group)
    }

    pub fn has_group(&self) -> bool {
        self.group.end != 0
    }

    pub fn has_producer(&self) -> bool {
        self.producer.end != 0
    }

    /// The body is an envelope.
    pub fn is_envelope(&self) -> bool {
        self.envelope.end != 0 && self.get(self.envelope) == b"1"
    }

    /// The body is a Kafka batch.
    pub fn is_kafka(&self) -> bool {
        self.get(self.kafka) == b"1"
    }

    /// The header of a Kafka batch whose values are tags, where the record says which.
    pub fn tag_header(&self) -> Option<&'a [u8]> {
        self.get(self.tag_header).strip_prefix(b"=")
    }

    #[inline]
    pub fn expires_at_ms(&self) -> Option<i64> {
        if self.expires.end == 0 {
            return None;
        }
        parse_decimal(self.get(self.expires))
    }

    /// Base offset and number of messages of an inner batch; RocketMQ's batch queues pass over a
    /// record that does not say both.
    #[inline]
    pub fn inner_range(&self) -> Option<(i64, i64)> {
        if self.inner_base.end == 0 {
            return None;
        }
        let base = parse_decimal(self.get(self.inner_base)).filter(|&base| base >= 0)?;
        let count = parse_decimal(self.get(self.inner_count))?;
        (1..=BATCH_COUNT_MAX).contains(&count).then_some((base, count))
    }

    /// The words of KEYS, each indexed by itself.
    pub fn key_words(&self) -> impl Iterator<Item = &'a [u8]> {
        self.keys().split(|&byte| byte == b' ').filter(|word| !word.is_empty())
    }

    /// Entries that the key index takes for this record.
    #[inline]
    pub fn index_count(&self) -> usize {
        let words = if self.keys.end == 0 { 0 } else { self.key_words().count() };
        words + usize::from(self.unique_key.end != 0) + usize::from(self.tags.end != 0)
    }
}

/// The properties before a checksum at their end, which nearly all have and no reader looks up.
#[inline(always)]
fn without_checksum(data: &[u8]) -> &[u8] {
    match data.split_last_chunk::<TRAILER_SIZE>() {
        Some((rest, trailer))
            if trailer.starts_with(TRAILER_START)
                && trailer[TRAILER_SIZE - 1] == 2
                && matches!(rest.last(), None | Some(2)) =>
        {
            rest
        }
        _ => data,
    }
}

#[inline(always)]
fn set(place: &mut Span, span: Span) {
    if span.start < span.end {
        *place = span;
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

    fn entries(data: &[u8]) -> Vec<(&[u8], &[u8])> {
        let mut all = Vec::new();
        each_entry(data, |name, value| all.push((name, value)));
        all
    }

    #[test]
    fn entries_are_those_with_a_separator() {
        let all = entries(b"a\x011\x02\x02bc\x02\x01x\x02d\x01\x02e\x012\x013");
        let expected: Vec<(&[u8], &[u8])> =
            vec![(b"a", b"1"), (b"", b"x"), (b"d", b""), (b"e", b"2\x013")];
        assert_eq!(all, expected);
    }

    #[test]
    fn entries_of_any_size_are_found() {
        for size in 0..70 {
            let name = vec![b'n'; size];
            let value = vec![b'v'; 70 - size];
            let data = [&name[..], b"\x01", &value, b"\x02x\x01y"].concat();
            let expected: Vec<(&[u8], &[u8])> = vec![(&name, &value), (b"x", b"y")];
            assert_eq!(entries(&data), expected);
        }
        assert!(entries(b"").is_empty());
        assert!(entries(b"no separator at all, and quite long").is_empty());
    }

    #[test]
    fn a_checksum_is_only_cut_off_where_it_is_an_entry() {
        let trailer = b"__CRC32#\x010123456789\x02";
        let plain = [&b"KEYS\x01k\x02"[..], trailer].concat();
        assert_eq!(without_checksum(&plain), b"KEYS\x01k\x02");
        let named = [&b"a"[..], trailer].concat();
        assert_eq!(without_checksum(&named), named);
        assert_eq!(without_checksum(trailer), b"");
    }

    #[test]
    fn the_last_nonempty_value_wins() {
        let found = Properties::parse(b"KEYS\x01a b\x02KEYS\x01c  d\x02KEYS\x01\x02TAGS\x01t\x02");
        assert_eq!(found.keys(), b"c  d");
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
