//! Compressed content of Kafka batches, inflated piece by piece up to a limit.
//!
//! What would go beyond the limit sets a flag and ends in an error, so that it differs from
//! content that is damaged.

use std::cell::Cell;
use std::io::{BufRead, Error, ErrorKind, Read, Result as Outcome};

use ruzstd::decoding::{BlockDecodingStrategy, FrameDecoder};

use crate::bytes::u32_at;
use crate::inflate::{XERIAL_HEAD_SIZE, XERIAL_MAGIC};

pub const PIECE_SIZE: usize = 32 << 10;

/// One bare block, or those of the frame that Java clients write.
pub struct SnappyBlocks<'a> {
    rest: &'a [u8],
    is_framed: bool,
    block: Vec<u8>,
    at: usize,
    left: u64,
    is_over: &'a Cell<bool>,
}

impl<'a> SnappyBlocks<'a> {
    pub fn new(content: &'a [u8], limit: u64, is_over: &'a Cell<bool>) -> Option<Self> {
        let is_framed = content.starts_with(XERIAL_MAGIC);
        let rest = if is_framed { content.get(XERIAL_HEAD_SIZE..)? } else { content };
        Some(Self { rest, is_framed, block: Vec::new(), at: 0, left: limit, is_over })
    }

    /// Whether nothing follows the block that is read.
    pub fn is_spent(&self) -> bool {
        self.rest.is_empty()
    }

    fn next_block(&mut self) -> Option<()> {
        let (block, rest) = match self.is_framed {
            true => {
                let size = u32_at(self.rest, 0)? as usize;
                self.rest.get(4..)?.split_at_checked(size)?
            }
            false => (self.rest, &[][..]),
        };
        let size = snap::raw::decompress_len(block).ok()?;
        // A block grows at most about 21-fold; a greater claim must not cost memory.
        if size / 64 > block.len() {
            return None;
        }
        if size as u64 > self.left {
            self.is_over.set(true);
            return None;
        }
        self.left -= size as u64;
        self.block.resize(size, 0);
        let written = snap::raw::Decoder::new().decompress(block, &mut self.block).ok()?;
        self.block.truncate(written);
        self.at = 0;
        self.rest = rest;
        Some(())
    }
}

impl Read for SnappyBlocks<'_> {
    fn read(&mut self, target: &mut [u8]) -> Outcome<usize> {
        let size = self.fill_buf()?.read(target)?;
        self.consume(size);
        Ok(size)
    }
}

impl BufRead for SnappyBlocks<'_> {
    fn fill_buf(&mut self) -> Outcome<&[u8]> {
        while self.at >= self.block.len() && !self.rest.is_empty() {
            self.next_block().ok_or_else(|| Error::from(ErrorKind::InvalidData))?;
        }
        Ok(self.block.get(self.at..).unwrap_or(&[]))
    }

    fn consume(&mut self, size: usize) {
        self.at += size;
    }
}

/// A frame, decoded piece by piece: the decoder holds back as much as its window has, which must
/// count against the limit as well.
pub struct ZstdPieces<'a> {
    decoder: FrameDecoder,
    rest: &'a [u8],
    left: u64,
    is_over: &'a Cell<bool>,
}

impl<'a> ZstdPieces<'a> {
    pub fn new(content: &'a [u8], limit: u64, is_over: &'a Cell<bool>) -> Option<Self> {
        let mut decoder = FrameDecoder::new();
        let mut rest = content;
        decoder.init(&mut rest).ok()?;
        // One piece more: the last may be begun at the limit.
        Some(Self { decoder, rest, left: limit + PIECE_SIZE as u64, is_over })
    }

    /// Whether nothing follows what was decoded.
    pub fn is_spent(&self) -> bool {
        self.rest.is_empty()
    }
}

impl Read for ZstdPieces<'_> {
    fn read(&mut self, target: &mut [u8]) -> Outcome<usize> {
        while self.decoder.can_collect() == 0 && !self.decoder.is_finished() {
            if self.left < PIECE_SIZE as u64 {
                self.is_over.set(true);
                return Err(ErrorKind::InvalidData.into());
            }
            self.left -= PIECE_SIZE as u64;
            let strategy = BlockDecodingStrategy::UptoBytes(PIECE_SIZE);
            let decoded = self.decoder.decode_blocks(&mut self.rest, strategy);
            decoded.map_err(|_| Error::from(ErrorKind::InvalidData))?;
        }
        self.decoder.read(target)
    }
}
