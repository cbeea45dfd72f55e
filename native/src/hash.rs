//! The hashes of the format: Java's `String.hashCode`, CRC-32, and CRC-32's linearity.

use std::sync::LazyLock;

const POLYNOMIAL: u32 = 0xEDB8_8320;

/// CRC-32 with the top bit cleared, as RocketMQ keeps it in a signed field.
#[inline]
pub fn checksum(data: &[u8]) -> u32 {
    // A clone knows the processor already; asking it again costs as much as a short message.
    static FRESH: LazyLock<crc32fast::Hasher> = LazyLock::new(crc32fast::Hasher::new);
    let mut hasher = FRESH.clone();
    hasher.update(data);
    hasher.finalize() & 0x7FFF_FFFF
}

/// `String.hashCode` of a text that starts with one whose hash is `seed`.
///
/// The text is UTF-8; a byte that is not counts as the surrogate escape that Python makes of it
/// (0xDC00 + byte), so that text and bytes hash alike.
#[inline]
pub fn java_hash(seed: u32, text: &[u8]) -> u32 {
    let mut hash = seed;
    let mut at = 0;
    while let Some(&byte) = text.get(at) {
        if byte < 0x80 {
            hash = hash.wrapping_mul(31).wrapping_add(u32::from(byte));
            at += 1;
            continue;
        }
        let (unit, more, size) = utf16_units(text.get(at..).unwrap_or(&[]));
        hash = hash.wrapping_mul(31).wrapping_add(unit);
        if more != 0 {
            hash = hash.wrapping_mul(31).wrapping_add(more);
        }
        at += size;
    }
    hash
}

/// What an index entry holds for a hash: its absolute value, 0 for the one that has none.
#[inline]
pub fn index_hash(hash: u32) -> u32 {
    let signed = hash as i32;
    if signed == i32::MIN {
        0
    } else {
        signed.unsigned_abs()
    }
}

/// The first one or two UTF-16 units of non-ASCII bytes, and the bytes they take.
fn utf16_units(text: &[u8]) -> (u32, u32, usize) {
    let lead = text.first().copied().unwrap_or(0);
    let escaped = (0xDC00 + u32::from(lead), 0, 1);
    let (count, first_min, first_max) = match lead {
        0xC2..=0xDF => (1, 0x80, 0xBF),
        0xE0 => (2, 0xA0, 0xBF),
        0xED => (2, 0x80, 0x9F),
        0xE1..=0xEF => (2, 0x80, 0xBF),
        0xF0 => (3, 0x90, 0xBF),
        0xF1..=0xF3 => (3, 0x80, 0xBF),
        0xF4 => (3, 0x80, 0x8F),
        _ => return escaped,
    };
    let mut code = u32::from(lead) & (0x3F >> count);
    for n in 1..=count {
        let (low, high) = if n == 1 { (first_min, first_max) } else { (0x80, 0xBF) };
        match text.get(n) {
            Some(&byte) if (low..=high).contains(&byte) => {
                code = code << 6 | u32::from(byte) & 0x3F;
            }
            _ => return escaped,
        }
    }
    if code < 0x1_0000 {
        return (code, 0, count + 1);
    }
    let rest = code - 0x1_0000;
    (0xD800 + (rest >> 10), 0xDC00 + (rest & 0x3FF), count + 1)
}

/// CRC-32 is linear: the checksum of a message whose bytes were XORed with `delta`, which has
/// `size_after` bytes after it, follows from the old checksum alone.
pub fn crc_patch(checksum: u32, size_after: u64, delta: &[u8]) -> u32 {
    let mut hasher = crc32fast::Hasher::new_with_initial(u32::MAX);
    hasher.update(delta);
    checksum ^ shifted(!hasher.finalize(), size_after)
}

/// A CRC remainder as it stands when `size` zero bytes have followed: times x^(8·size) mod P.
fn shifted(remainder: u32, size: u64) -> u32 {
    let mut result = remainder;
    let mut rest = size;
    let mut power = 3; // x^(2^3) is one byte
    while rest != 0 {
        if rest & 1 != 0 {
            result = product(X_POWERS[power % 32], result);
        }
        rest >>= 1;
        power += 1;
    }
    result
}

/// X_POWERS[k] = x^(2^k) mod P; the order of x divides 2^32 - 1, so the powers repeat after 32.
const X_POWERS: [u32; 32] = {
    let mut powers = [0u32; 32];
    powers[0] = 1 << 30;
    let mut k = 1;
    while k < 32 {
        powers[k] = product(powers[k - 1], powers[k - 1]);
        k += 1;
    }
    powers
};

/// Product of two polynomials over GF(2), modulo P, bit-reflected.
const fn product(a: u32, b: u32) -> u32 {
    let mut b = b;
    let mut mask = 1u32 << 31;
    let mut result = 0;
    while mask != 0 {
        if a & mask != 0 {
            result ^= b;
        }
        b = if b & 1 != 0 { (b >> 1) ^ POLYNOMIAL } else { b >> 1 };
        mask >>= 1;
    }
    result
}

#[cfg(test)]
mod tests {
    use super::*;

    fn reference(text: &str) -> u32 {
        text.encode_utf16().fold(0u32, |h, unit| h.wrapping_mul(31).wrapping_add(u32::from(unit)))
    }

    #[test]
    fn hashes_are_javas() {
        for text in ["", "TagA", "键1", "имя", "a😀b", "\u{10FFFF}\u{7FF}\u{800}\u{FFFF}"] {
            assert_eq!(java_hash(0, text.as_bytes()), reference(text), "{text}");
        }
        assert_eq!(java_hash(java_hash(0, b"topic#"), b"key"), reference("topic#key"));
        assert_eq!(index_hash(0x8000_0000), 0);
        assert_eq!(index_hash(u32::MAX), 1);
    }

    #[test]
    fn a_byte_that_is_no_text_counts_as_its_escape() {
        let units = |bytes: &[u8]| -> u32 {
            bytes
                .iter()
                .fold(0, |h: u32, &b| h.wrapping_mul(31).wrapping_add(0xDC00 + u32::from(b)))
        };
        for bytes in [&b"\xff"[..], b"\xed\xa0\x80", b"\xc0\xaf", b"\xf4\x90\x80\x80", b"\xe2\x82"]
        {
            assert_eq!(java_hash(0, bytes), units(bytes), "{bytes:?}");
        }
    }

    #[test]
    fn a_patched_checksum_is_the_computed_one() {
        let mut message: Vec<u8> = (0..5000u32).map(|n| (n * 7 % 251) as u8).collect();
        for (at, size_after) in [(28usize, 4964u64), (0, 4992), (4992, 0), (100, 4892)] {
            let before = crc32fast::hash(&message);
            let delta = 0x0123_4567_89AB_CDEFu64.to_be_bytes();
            for (byte, change) in message[at..at + 8].iter_mut().zip(delta) {
                *byte ^= change;
            }
            assert_eq!(crc_patch(before, size_after, &delta), crc32fast::hash(&message));
        }
    }
}
