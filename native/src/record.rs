//! A record of the commit log in a buffer: where its fields are, and whether to trust it.
//!
//! `parse` finds the parts and proves that they lie inside the record; `verify` proves that the
//! bytes are those that were written. Both answer with a reason instead of an error: a torn tail is
//! the normal end of a log, and the caller decides what it means.

use crate::bytes::{i16_at, i32_at, i64_at, part, u32_at};
use crate::hash::checksum;
use crate::properties::each_entry;

pub const MAGIC_V1: u32 = 0xDAA3_20A7;
pub const MAGIC_V2: u32 = 0xDAA3_20AB;
pub const MAGIC_BLANK: u32 = 0xCBD4_3194;
pub const SIZE_MIN: usize = 91;
pub const BLANK_SIZE: usize = 8;

pub const BODY_CRC_AT: usize = 8;
pub const QUEUE_ID_AT: usize = 12;
pub const QUEUE_OFFSET_AT: usize = 20;
pub const POSITION_AT: usize = 28;
pub const SYS_FLAG_AT: usize = 36;
pub const BORN_TIMESTAMP_AT: usize = 40;
pub const BORN_HOST_AT: usize = 48;

pub const COMPRESSED: i32 = 1;
pub const TRANSACTION: i32 = 12;
pub const ROLLBACK: i32 = 12;
pub const COMMIT: i32 = 8;
pub const BORN_IPV6: i32 = 16;
pub const STORE_IPV6: i32 = 32;
pub const INNER_BATCH: i32 = 128;

pub const TRAILER_SIZE: usize = 20;
pub const TRAILER_START: &[u8; 9] = b"__CRC32#\x01";
/// From so many bytes on, of 20, a last property is a damaged checksum and not a user's: one with a
/// name of 8 bytes and ten digits has 12.
const TRAILER_LIKENESS: usize = 15;

const NO_TRAILER: Reason = "the record has no checksum, as all others of this store have";

/// Why some bytes are not a record.
pub type Reason = &'static str;

pub struct Record<'a> {
    /// The whole record, TOTALSIZE bytes.
    pub data: &'a [u8],
    pub version: u8,
    pub body_crc: u32,
    pub queue_id: i32,
    pub flag: i32,
    pub queue_offset: i64,
    pub position: i64,
    pub sys_flag: i32,
    pub born_ms: i64,
    pub born_host: &'a [u8],
    pub store_ms: i64,
    pub store_host: &'a [u8],
    pub reconsume_times: i32,
    pub prepared_offset: i64,
    pub body: &'a [u8],
    pub topic: &'a [u8],
    pub properties: &'a [u8],
}

impl<'a> Record<'a> {
    /// Find the parts of the record that starts at `index` of `log`.
    #[inline(always)]
    pub fn parse(log: &'a [u8], index: usize) -> Result<Self, Reason> {
        let head = log.get(index..).unwrap_or(&[]);
        let (Some(size), Some(magic)) = (i32_at(head, 0), u32_at(head, 4)) else {
            return Err("the head is cut short");
        };
        let version = match magic {
            MAGIC_V1 => 1,
            MAGIC_V2 => 2,
            MAGIC_BLANK => return Err("a blank, not a record"),
            _ => return Err("the magic number is wrong"),
        };
        let size = usize::try_from(size).unwrap_or(0);
        if size < SIZE_MIN {
            return Err("the size is impossible");
        }
        let Some(data) = head.get(..size) else {
            return Err("the record is cut short");
        };
        let record = Self::parts(data, version).ok_or("a part leads out of the record")?;
        let end = record.properties.as_ptr() as usize + record.properties.len();
        if end != data.as_ptr() as usize + data.len() {
            return Err("the properties do not end with the record");
        }
        Ok(record)
    }

    #[inline(always)]
    fn parts(data: &'a [u8], version: u8) -> Option<Self> {
        let sys_flag = i32_at(data, SYS_FLAG_AT)?;
        let born_host = part(data, BORN_HOST_AT, host_size(sys_flag & BORN_IPV6))?;
        let store_at = BORN_HOST_AT + born_host.len();
        let store_host = part(data, store_at + 8, host_size(sys_flag & STORE_IPV6))?;
        let tail_at = store_at + 8 + store_host.len();
        let body = part(data, tail_at + 16, i32_at(data, tail_at + 12)?.into())?;
        let topic_at = tail_at + 16 + body.len();
        let (topic, properties_at) = if version == 1 {
            let size = i64::from(*data.get(topic_at)? as i8);
            let topic = part(data, topic_at + 1, size)?;
            (topic, topic_at + 1 + topic.len())
        } else {
            let topic = part(data, topic_at + 2, i16_at(data, topic_at)?.into())?;
            (topic, topic_at + 2 + topic.len())
        };
        let properties = part(data, properties_at + 2, i16_at(data, properties_at)?.into())?;
        Some(Self {
            data,
            version,
            body_crc: u32_at(data, BODY_CRC_AT)?,
            queue_id: i32_at(data, QUEUE_ID_AT)?,
            flag: i32_at(data, 16)?,
            queue_offset: i64_at(data, QUEUE_OFFSET_AT)?,
            position: i64_at(data, POSITION_AT)?,
            sys_flag,
            born_ms: i64_at(data, BORN_TIMESTAMP_AT)?,
            born_host,
            store_ms: i64_at(data, store_at)?,
            store_host,
            reconsume_times: i32_at(data, tail_at)?,
            prepared_offset: i64_at(data, tail_at + 4)?,
            body,
            topic,
            properties,
        })
    }

    /// Check both checksums, and that the record is where it says (if `position` is given). A
    /// `strict` check wants a whole-record checksum.
    #[inline]
    pub fn verify(&self, position: Option<i64>, strict: bool) -> Result<(), Reason> {
        if position.is_some_and(|position| position != self.position) {
            return Err("the record belongs to another position");
        }
        if !self.verify_trailer()? && strict {
            return Err(NO_TRAILER);
        }
        self.verify_body()
    }

    /// The same for a reader: where the whole-record checksum is right, the body is what was
    /// written, and need not be looked at again.
    #[inline]
    pub fn verify_once(&self, position: i64, strict: bool) -> Result<(), Reason> {
        if position != self.position {
            return Err("the record belongs to another position");
        }
        match self.verify_trailer()? {
            true => Ok(()),
            false if strict => Err(NO_TRAILER),
            false => self.verify_body(),
        }
    }

    #[inline(always)]
    fn verify_body(&self) -> Result<(), Reason> {
        match self.body_crc == checksum(self.body) {
            true => Ok(()),
            false => Err("the checksum of the body does not match"),
        }
    }

    /// The whole-record checksum, if there is one; says so. A flipped bit in its name must not turn
    /// it into a header, and a lost last page must not pass for the missing separator of an old
    /// client.
    #[inline(always)]
    fn verify_trailer(&self) -> Result<bool, Reason> {
        if let Some((covered, trailer)) = self.trailer() {
            if trailer.starts_with(TRAILER_START) && trailer[19] == 2 {
                let mut expected = [0; TRAILER_SIZE];
                put_trailer(&mut expected, checksum(covered));
                return match *trailer == expected {
                    true => Ok(true),
                    false => Err("the checksum of the record does not match"),
                };
            }
            let value = parse_trailer(trailer);
            let is_right = value.is_some_and(|value| value == u64::from(checksum(covered)));
            if is_right || likeness(trailer) >= TRAILER_LIKENESS {
                return Err("the name of the checksum is damaged");
            }
        }
        if self.properties.last() == Some(&0) {
            return Err("the properties end in zero bytes");
        }
        let mut is_misplaced = false;
        each_entry(self.properties, |name, _| is_misplaced |= name == b"__CRC32#");
        if is_misplaced {
            return Err("the checksum is not where it belongs");
        }
        Ok(false)
    }

    /// What the whole-record checksum covers, and the place where it is, if there is one.
    #[inline(always)]
    pub fn trailer(&self) -> Option<(&'a [u8], &'a [u8; TRAILER_SIZE])> {
        if self.properties.len() < TRAILER_SIZE {
            return None;
        }
        let (covered, trailer) = self.data.split_at_checked(self.data.len() - TRAILER_SIZE)?;
        Some((covered, trailer.try_into().ok()?))
    }

    /// The leader epoch, which is stored where transactions keep their half message's position.
    #[inline]
    pub fn leader_epoch(&self) -> i64 {
        if self.sys_flag & TRANSACTION == 0 {
            self.prepared_offset
        } else {
            0
        }
    }

    /// The body is as a RocketMQ client compressed it; an empty one is left alone.
    #[inline]
    pub fn is_compressed(&self) -> bool {
        self.sys_flag & COMPRESSED != 0 && !self.body.is_empty()
    }

    /// Prepared and rolled back transactions are in no queue.
    #[inline]
    pub fn is_queued(&self) -> bool {
        matches!(self.sys_flag & TRANSACTION, 0 | COMMIT)
    }
}

fn host_size(is_ipv6: i32) -> i64 {
    if is_ipv6 == 0 {
        8
    } else {
        20
    }
}

/// The ten digits of a trailer, least significant first.
#[inline]
pub fn parse_trailer(trailer: &[u8; TRAILER_SIZE]) -> Option<u64> {
    let mut value = 0u64;
    for &digit in trailer[9..19].iter().rev() {
        if !digit.is_ascii_digit() {
            return None;
        }
        value = value * 10 + u64::from(digit - b'0');
    }
    Some(value)
}

/// In how many bytes some 20 bytes are as in a trailer.
fn likeness(bytes: &[u8; TRAILER_SIZE]) -> usize {
    let start = bytes.iter().zip(TRAILER_START).filter(|(byte, expected)| byte == expected);
    let digits = bytes[9..19].iter().filter(|byte| byte.is_ascii_digit());
    start.count() + digits.count() + usize::from(bytes[19] == 2)
}

/// Write the trailer for a checksum.
#[inline]
pub fn put_trailer(trailer: &mut [u8; TRAILER_SIZE], value: u32) {
    trailer[..9].copy_from_slice(TRAILER_START);
    let low = value % 10_000;
    let rest = value / 10_000;
    let middle = rest % 10_000;
    let pairs = [low % 100, low / 100, middle % 100, middle / 100, rest / 10_000];
    for (&pair, digits) in pairs.iter().zip(trailer[9..19].chunks_exact_mut(2)) {
        digits.copy_from_slice(&PAIRS[pair as usize % 100]);
    }
    trailer[19] = 2;
}

/// The digits of 0 to 99, backwards.
const PAIRS: [[u8; 2]; 100] = {
    let mut pairs = [[0; 2]; 100];
    let mut n = 0;
    while n < 100 {
        pairs[n] = [b'0' + (n % 10) as u8, b'0' + (n / 10) as u8];
        n += 1;
    }
    pairs
};

/// After the head of a blank: records were here, and a repair found them gone.
const HOLE_MARK: &[u8] = b"PSTKHOLE";
const HOLE_REASON: Reason = "a repair found the rest of this file gone";

/// What is at one position of a log that is being scanned.
pub enum Step<'a> {
    Record(Record<'a>),
    /// The rest of the file is unused.
    Blank,
    /// Nothing was ever written here.
    Fresh,
    Damaged(Reason),
}

/// Look at `index` of `log`, of which the bytes below `end` count. Records are only parsed.
#[inline(always)]
pub fn step(log: &[u8], index: usize, end: usize) -> Step<'_> {
    let Some(counted) = log.get(..end.min(log.len())) else {
        return Step::Damaged("outside the file");
    };
    let (Some(size), Some(magic)) = (i32_at(counted, index), u32_at(counted, index + 4)) else {
        return Step::Damaged("the head is cut short");
    };
    if size == 0 && magic == 0 {
        return Step::Fresh;
    }
    if magic == MAGIC_BLANK {
        return match usize::try_from(size) {
            Ok(size) if size == log.len() - index => {
                if log.get(index + 8..index + 16) == Some(HOLE_MARK) {
                    Step::Damaged(HOLE_REASON)
                } else {
                    Step::Blank
                }
            }
            _ => Step::Damaged("a blank that does not end with the file"),
        };
    }
    match Record::parse(counted, index) {
        Ok(record) => Step::Record(record),
        Err(reason) => Step::Damaged(reason),
    }
}

/// Where a scan stopped, how many records it saw, and why it stopped if not at a proper end.
pub struct Scan {
    pub index: usize,
    pub records: u64,
    pub damage: Option<Reason>,
}

/// Verify every record from `start` on. `base` is the position of `log[0]`.
pub fn check(log: &[u8], base: i64, start: usize, end: usize, strict: bool) -> Scan {
    let end = end.min(log.len());
    let mut scan = Scan { index: start, records: 0, damage: None };
    while scan.index < end {
        match step(log, scan.index, end) {
            Step::Record(record) => {
                if let Err(reason) = record.verify(Some(base + scan.index as i64), strict) {
                    scan.damage = Some(reason);
                    return scan;
                }
                scan.index += record.data.len();
                scan.records += 1;
            }
            Step::Blank => {
                scan.index = log.len();
                return scan;
            }
            Step::Fresh => return scan,
            Step::Damaged(reason) => {
                scan.damage = Some(reason);
                return scan;
            }
        }
    }
    scan
}

/// The first index in `start..end` of a wholly valid record.
pub fn find(log: &[u8], base: i64, start: usize, end: usize, strict: bool) -> Option<usize> {
    let end = end.min(log.len());
    let magic_start = MAGIC_V1.to_be_bytes();
    let finder = memchr::memmem::Finder::new(&magic_start[..3]);
    let mut from = start.checked_add(4)?;
    while let Some(window) = log.get(from..end) {
        let magic = from + finder.find(window)?;
        let index = magic - 4;
        let is_valid = Record::parse(log.get(..end)?, index)
            .is_ok_and(|record| record.verify(Some(base + index as i64), strict).is_ok());
        if is_valid {
            return Some(index);
        }
        from = magic + 1;
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn trailers_hold_their_number_backwards() {
        let mut trailer = [0; TRAILER_SIZE];
        for value in [0, 1, 9, 10, 479_162_575, 1_234_567_890, 0x7FFF_FFFF, u32::MAX] {
            put_trailer(&mut trailer, value);
            assert_eq!(parse_trailer(&trailer), Some(value.into()));
            let digits: String = format!("{value:010}").chars().rev().collect();
            assert_eq!(trailer, format!("__CRC32#\x01{digits}\x02").as_bytes());
        }
    }

    #[test]
    fn only_a_damaged_trailer_is_like_one() {
        assert!(likeness(b"__CRC32$\x011234567890\x02") >= TRAILER_LIKENESS);
        assert!(likeness(b"xxxxx32#\x011234567890\x02") >= TRAILER_LIKENESS);
        assert!(likeness(b"deviceId\x011234567890\x02") < TRAILER_LIKENESS);
        assert!(likeness(b"00000000000000000000") < TRAILER_LIKENESS);
    }
}
