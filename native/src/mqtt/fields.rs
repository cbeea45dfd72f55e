//! The data types of MQTT: integers, strings, binary data.

use std::str;

/// Reads the fields of one packet in order; `None`: the packet ends early, or breaks a rule.
#[derive(Clone, Copy)]
pub struct Fields<'a> {
    data: &'a [u8],
    at: usize,
}

impl<'a> Fields<'a> {
    pub fn new(data: &'a [u8]) -> Self {
        Self { data, at: 0 }
    }

    #[inline(always)]
    pub fn is_empty(&self) -> bool {
        self.at == self.data.len()
    }

    #[inline(always)]
    pub fn bytes(&mut self, size: usize) -> Option<&'a [u8]> {
        let end = self.at.checked_add(size)?;
        let found = self.data.get(self.at..end)?;
        self.at = end;
        Some(found)
    }

    #[inline(always)]
    pub fn rest(&mut self) -> &'a [u8] {
        let found = self.data.get(self.at..).unwrap_or(&[]);
        self.at = self.data.len();
        found
    }

    #[inline(always)]
    fn array<const SIZE: usize>(&mut self) -> Option<[u8; SIZE]> {
        self.bytes(SIZE)?.try_into().ok()
    }

    #[inline(always)]
    pub fn u8(&mut self) -> Option<u8> {
        Some(u8::from_be_bytes(self.array()?))
    }

    #[inline(always)]
    pub fn u16(&mut self) -> Option<u16> {
        Some(u16::from_be_bytes(self.array()?))
    }

    #[inline(always)]
    pub fn u32(&mut self) -> Option<u32> {
        Some(u32::from_be_bytes(self.array()?))
    }

    /// A packet id, which is never 0.
    #[inline(always)]
    pub fn packet_id(&mut self) -> Option<u16> {
        self.u16().filter(|&id| id != 0)
    }

    /// A variable byte integer in its shortest form.
    #[inline]
    pub fn varint(&mut self) -> Option<usize> {
        let (value, size) = varint(self.data.get(self.at..)?)?;
        let last = self.data.get(self.at + size - 1)?;
        if *last == 0 && size > 1 {
            return None;
        }
        self.at += size;
        Some(value)
    }

    #[inline(always)]
    pub fn binary(&mut self) -> Option<&'a [u8]> {
        let size = self.u16()?;
        self.bytes(size.into())
    }

    /// A string in which any character but U+0000 may occur.
    pub fn text(&mut self) -> Option<&'a str> {
        str::from_utf8(self.binary()?).ok().filter(|text| !text.contains('\0'))
    }

    /// A string without control characters.
    #[inline]
    pub fn name(&mut self) -> Option<&'a str> {
        name(self.binary()?)
    }
}

/// A variable byte integer at the beginning of bytes, and how many bytes it has. `None`: it has
/// more than four, or the bytes end early.
#[inline(always)]
pub fn varint(data: &[u8]) -> Option<(usize, usize)> {
    let mut value = 0;
    for (index, &byte) in data.iter().take(4).enumerate() {
        value |= usize::from(byte & 0x7F) << (7 * index);
        if byte < 0x80 {
            return Some((value, index + 1));
        }
    }
    None
}

/// Bytes as a string without control characters and without code points that Unicode sets aside.
#[inline]
pub fn name(bytes: &[u8]) -> Option<&str> {
    let is_plain = bytes.iter().fold(true, |plain, &byte| plain & (0x20..0x7F).contains(&byte));
    let text = str::from_utf8(bytes).ok()?;
    (is_plain || !text.chars().any(is_unwanted)).then_some(text)
}

fn is_unwanted(character: char) -> bool {
    let code = u32::from(character);
    character.is_control() || (0xFDD0..=0xFDEF).contains(&code) || code & 0xFFFE == 0xFFFE
}

/// Append a variable byte integer.
#[inline(always)]
pub fn put_varint(out: &mut Vec<u8>, mut value: usize) {
    while value >= 0x80 {
        out.push(value as u8 | 0x80);
        value >>= 7;
    }
    out.push(value as u8);
}

/// How many bytes a variable byte integer has.
#[inline(always)]
pub fn varint_size(value: usize) -> usize {
    match value {
        0..0x80 => 1,
        0x80..0x4000 => 2,
        0x4000..0x20_0000 => 3,
        _ => 4,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn integers_are_read_back_in_their_shortest_form_only() {
        for value in [0, 1, 127, 128, 16_383, 16_384, 2_097_151, 2_097_152, 268_435_455] {
            let mut out = Vec::new();
            put_varint(&mut out, value);
            assert_eq!(out.len(), varint_size(value));
            assert_eq!(Fields::new(&out).varint(), Some(value));
            assert_eq!(Fields::new(&out[..out.len() - 1]).varint(), None);
        }
        assert_eq!(Fields::new(&[0x80, 0]).varint(), None);
        assert_eq!(Fields::new(&[0x80, 0x80, 0x80, 0x80, 1]).varint(), None);
    }

    #[test]
    fn names_have_no_control_characters() {
        assert_eq!(name("a/ß/\u{2A6D4}".as_bytes()), Some("a/ß/\u{2A6D4}"));
        for bad in ["\0", "\u{1f}", "\u{7f}", "\u{9f}", "\u{fdd0}", "\u{ffff}", "\u{1fffe}"] {
            assert_eq!(name(bad.as_bytes()), None, "{bad:?}");
        }
        assert_eq!(name(b"\xed\xa0\x80"), None);
    }
}
