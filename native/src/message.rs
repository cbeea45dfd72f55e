//! A message on its way in, and whether RocketMQ's properties can hold it as it is.

use crate::bytes::{put, Writer};
use crate::hash::java_hash;
use crate::python::Reserved;

pub const TAGS_MAX: usize = u16::MAX as usize;

const ENVELOPE_VERSION: u8 = 1;
const ENVELOPE_HAS_KEY: u8 = 1;
const ENVELOPE_NULL_VALUE: u8 = 2;

#[derive(Clone, Copy)]
pub enum Tags<'a> {
    None,
    One(&'a [u8]),
    Many(&'a [&'a [u8]]),
}

impl<'a> Tags<'a> {
    pub fn as_slice(&self) -> &[&'a [u8]] {
        match self {
            Self::None => &[],
            Self::One(tag) => std::slice::from_ref(tag),
            Self::Many(tags) => tags,
        }
    }
}

pub type Header<'a> = (&'a [u8], Option<&'a [u8]>);

/// Slices of the caller's memory. Their sizes are fixed here; should their bytes change before they
/// are written (an Arrow buffer's may), the record holds other bytes and is whole all the same.
#[derive(Clone, Copy)]
pub struct Message<'a> {
    pub value: Option<&'a [u8]>,
    pub key: Option<&'a [u8]>,
    pub tags: Tags<'a>,
    pub headers: &'a [Header<'a>],
    pub timestamp_ms: Option<i64>,
    pub expires_at_ms: Option<i64>,
}

impl<'a> Message<'a> {
    /// Roughly how many bytes there are to move.
    pub fn payload_size(&self) -> usize {
        self.value.map_or(0, <[u8]>::len)
            + self.key.map_or(0, <[u8]>::len)
            + self.headers.len() * 64
    }

    /// The bytes of value, key, tags and headers, as the limit of a topic counts them.
    pub fn size(&self) -> usize {
        let tags = self.tags.as_slice().iter().map(|tag| tag.len()).sum::<usize>();
        let headers = self.headers.iter();
        let headers = headers.map(|(name, value)| name.len() + value.map_or(0, <[u8]>::len));
        self.value.map_or(0, <[u8]>::len)
            + self.key.map_or(0, <[u8]>::len)
            + tags
            + headers.sum::<usize>()
    }

    /// Whether the headers can be properties.
    pub fn has_plain_headers(&self, reserved: &Reserved) -> bool {
        let mut names: Vec<&[u8]> = Vec::with_capacity(self.headers.len());
        for &(name, value) in self.headers {
            let is_plain =
                is_plain_text(name) && value.is_some_and(is_plain_text) && !reserved.has(name);
            if !is_plain {
                return false;
            }
            names.push(name);
        }
        names.sort_unstable();
        names.windows(2).all(|pair| pair[0] != pair[1])
    }

    /// The tag that TAGS can hold, if there is exactly one.
    pub fn plain_tag(&self) -> Option<&'a [u8]> {
        match &self.tags {
            Tags::One(tag) if is_plain_text(tag) => Some(tag),
            _ => None,
        }
    }

    pub fn envelope_size(&self) -> usize {
        let tags: usize = self.tags.as_slice().iter().map(|tag| 4 + tag.len()).sum();
        let headers: usize = self
            .headers
            .iter()
            .map(|(name, value)| 8 + name.len() + value.map_or(0, <[u8]>::len))
            .sum();
        let (key, value) = (self.key.unwrap_or(&[]), self.value.unwrap_or(&[]));
        6 + key.len() + 2 + tags + 4 + headers + value.len()
    }

    pub fn write_envelope(&self, out: &mut Writer<'_>) {
        let mut flags = 0;
        if self.key.is_some() {
            flags |= ENVELOPE_HAS_KEY;
        }
        if self.value.is_none() {
            flags |= ENVELOPE_NULL_VALUE;
        }
        out.put(&[ENVELOPE_VERSION, flags]);
        sized(out, self.key.unwrap_or(&[]));
        let tags = self.tags.as_slice();
        out.put(&(tags.len() as u16).to_be_bytes());
        for tag in tags {
            sized(out, tag);
        }
        out.put(&(self.headers.len() as u32).to_be_bytes());
        for (name, value) in self.headers {
            sized(out, name);
            match value {
                Some(value) => sized(out, value),
                None => out.put(&(-1i32).to_be_bytes()),
            }
        }
        out.put(self.value.unwrap_or(&[]));
    }
}

fn sized(out: &mut Writer<'_>, data: &[u8]) {
    out.put(&(data.len() as u32).to_be_bytes());
    out.put(data);
}

/// The hash of `seed` and `key` if KEYS can hold the key. KEYS is split at spaces, properties at
/// 0x01 and 0x02.
#[inline(always)]
pub fn plain_key_hash(seed: u32, key: &[u8]) -> Option<u32> {
    let (mut hash, mut seen, mut has_separator) = (seed, 0u8, false);
    for &byte in key {
        hash = hash.wrapping_mul(31).wrapping_add(u32::from(byte));
        seen |= byte;
        has_separator |= byte.wrapping_sub(1) < 2 || byte == b' ';
    }
    if has_separator || key.is_empty() {
        return None;
    }
    if seen >= 0x80 {
        return std::str::from_utf8(key).is_ok().then(|| java_hash(seed, key));
    }
    Some(hash)
}

#[inline]
pub fn is_plain_text(text: &[u8]) -> bool {
    let mut seen = 0u8;
    let mut has_separator = false;
    for &byte in text {
        seen |= byte;
        has_separator |= byte == 1 || byte == 2;
    }
    !text.is_empty() && !has_separator && (seen < 0x80 || std::str::from_utf8(text).is_ok())
}

pub const KEY_TOKEN_MAX: usize = 1 + 8 + 16;

/// What KEYS holds for the key of an envelope: `~`, its CRC-32, its size, in hexadecimal.
pub fn key_token(key: &[u8], token: &mut [u8; KEY_TOKEN_MAX]) -> usize {
    let checksum = crc32fast::hash(key);
    token[0] = b'~';
    for (n, digit) in token[1..9].iter_mut().enumerate() {
        *digit = hex(checksum >> (28 - 4 * n));
    }
    let size = key.len();
    let digits = (usize::BITS - (size | 1).leading_zeros()).div_ceil(4) as usize;
    for n in 0..digits {
        put(token, 9 + n, &[hex((size >> (4 * (digits - 1 - n))) as u32)]);
    }
    9 + digits
}

fn hex(value: u32) -> u8 {
    b"0123456789abcdef"[(value & 15) as usize]
}

#[cfg(test)]
mod tests {
    use super::*;

    fn token(key: &[u8]) -> String {
        let mut token = [0; KEY_TOKEN_MAX];
        let size = key_token(key, &mut token);
        String::from_utf8_lossy(&token[..size]).into_owned()
    }

    #[test]
    fn tokens_hold_checksum_and_size() {
        assert_eq!(token(b""), "~000000000");
        assert_eq!(token(b"123456789"), "~cbf439269");
        assert_eq!(token(&[0u8; 4096]), format!("~{:08x}1000", crc32fast::hash(&[0u8; 4096])));
    }

    fn message<'a>() -> Message<'a> {
        Message {
            value: Some(b"v"),
            key: Some(b"k"),
            tags: Tags::One(b"t"),
            headers: &[(b"h", Some(b"1"))],
            timestamp_ms: None,
            expires_at_ms: None,
        }
    }

    #[test]
    fn odd_fields_are_not_plain() {
        let reserved = Reserved::of(&["WAIT"], &["PSTK_"]);
        assert!(message().has_plain_headers(&reserved));
        let odd: [&[Header<'_>]; 5] = [
            &[(b"h", None)],
            &[(b"h", Some(b""))],
            &[(b"WAIT", Some(b"1"))],
            &[(b"PSTK_X", Some(b"1"))],
            &[(b"h", Some(b"1")), (b"h", Some(b"2"))],
        ];
        for headers in odd {
            assert!(!Message { headers, ..message() }.has_plain_headers(&reserved));
        }
        for key in [&b""[..], b"a b", b"\xff", b"\x01", b"x\x02"] {
            assert_eq!(plain_key_hash(0, key), None, "{key:?}");
        }
        assert_eq!(plain_key_hash(7, "ключ".as_bytes()), Some(java_hash(7, "ключ".as_bytes())));
        assert_eq!(plain_key_hash(7, b"key"), Some(java_hash(7, b"key")));
    }

    #[test]
    fn an_envelope_takes_the_bytes_it_says() {
        let mut out = vec![0u8; message().envelope_size()];
        let mut writer = Writer::new(&mut out);
        message().write_envelope(&mut writer);
        assert_eq!(writer.left(), 0);
    }
}
