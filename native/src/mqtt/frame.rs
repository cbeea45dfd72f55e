//! Where packets begin and end in a buffer.

use super::fields::varint;

pub const PUBLISH: u8 = 3;
pub const PUBACK: u8 = 4;
pub const PUBREC: u8 = 5;
pub const PUBREL: u8 = 6;
pub const PUBCOMP: u8 = 7;
pub const SUBSCRIBE: u8 = 8;
pub const PINGREQ: u8 = 12;

/// What is found at a place of a buffer.
pub enum Frame<'a> {
    /// The first byte, the body, and where the next packet begins.
    Whole(u8, &'a [u8], usize),
    /// The packet has not arrived completely.
    Incomplete,
    /// The reference has to look at it: it is too large, reserved, or has a wrong length.
    Left,
}

#[inline(always)]
pub fn frame(data: &[u8], at: usize, size_max: usize) -> Frame<'_> {
    let Some(&first) = data.get(at) else {
        return Frame::Incomplete;
    };
    if first >> 4 == 0 {
        return Frame::Left;
    }
    let head = data.get(at + 1..).unwrap_or(&[]);
    let Some((size, width)) = varint(head) else {
        return if head.len() < 4 { Frame::Incomplete } else { Frame::Left };
    };
    let begin = at + 1 + width;
    if begin - at + size > size_max {
        return Frame::Left;
    }
    match data.get(begin..begin + size) {
        Some(body) => Frame::Whole(first, body, begin + size),
        None => Frame::Incomplete,
    }
}
