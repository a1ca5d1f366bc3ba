//! From an index to a plan.

use weightlift_index::{Index, SourceId, StorageId};

use super::{Block, Copy, Piece, Plan, PlannedStorage};
use crate::error::{Error, ErrorKind, Result};
use crate::options::{Options, SMALLEST_BLOCK};

/// Pieces of staged loads: small enough that 12 readers share a block of 16 MiB evenly.
const STAGED_PIECE: u64 = 1 << 20;

/// Pieces of loads into host memory: whole huge pages of new memory for one reader each. With
/// 1 MiB two readers make the same page, and the second one's work is thrown away
/// (`bench/first_load.py --device host --settings piece_size=1MiB` shows what that costs).
const HOST_PIECE: u64 = 4 << 20;

/// How large blocks and pieces are, how many blocks there are, and who reads.
///
/// The wishes stand in [`Options`]; a budget too small for them shrinks blocks and pieces
/// first and readers last.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Geometry {
    /// Bytes of a block.
    pub block_size: u64,
    /// Blocks in the ring.
    pub blocks: u64,
    /// Bytes of a piece.
    pub piece_size: u64,
    /// Readers.
    pub readers: usize,
}

impl Geometry {
    /// What `budget` bytes of staging memory allow of the wishes, for a load of `bytes`.
    ///
    /// An error of kind `InvalidOption` if the budget is below two blocks of 4 KiB.
    pub fn new(options: &Options, budget: u64, bytes: u64, readers: usize) -> Result<Self> {
        if budget < 2 * SMALLEST_BLOCK {
            return Err(Error::new(
                ErrorKind::InvalidOption,
                "the staging budget is below two blocks",
            )
            .with("option", "staging_budget")
            .with("value", budget)
            .with("wanted", 2 * SMALLEST_BLOCK));
        }
        // Two blocks at least: one is filled while the other is copied. A model smaller than a
        // block needs no more than its own size: one page more, because its first byte keeps
        // its place within a page.
        let whole =
            whole_pages(bytes.saturating_add(SMALLEST_BLOCK - 1)).saturating_add(SMALLEST_BLOCK);
        let block_size = whole_pages(options.block_size().min(budget / 2)).min(whole);
        let needed = bytes.div_ceil(block_size).saturating_add(1);
        let blocks = (budget / block_size).min(needed.max(1));
        Ok(Self::within(options, block_size, blocks, readers))
    }

    /// For a load straight into host memory: nothing is staged, so no budget bounds it.
    pub(crate) fn for_host(options: &Options, readers: usize) -> Self {
        let block_size = whole_pages(options.block_size());
        let piece_size = whole_pages(options.piece_size().unwrap_or(HOST_PIECE)).min(block_size);
        Self { block_size, blocks: 0, piece_size, readers }
    }

    /// Pieces and readers for a ring that is there.
    pub(crate) fn within(options: &Options, block_size: u64, blocks: u64, readers: usize) -> Self {
        // With fewer pieces in the ring than readers some would never have a place to read
        // into: smaller pieces first, but not below 64 KiB, where a read costs more in system
        // call than in bytes.
        let piece_size = whole_pages(options.piece_size().unwrap_or(STAGED_PIECE)).min(block_size);
        let floor = piece_size.min(64 << 10);
        let share = blocks * block_size / readers.max(1) as u64 / SMALLEST_BLOCK * SMALLEST_BLOCK;
        let piece_size = piece_size.min(share.max(floor));
        let places = blocks * block_size.div_ceil(piece_size);
        let readers = readers.min(usize::try_from(places).unwrap_or(usize::MAX)).max(1);
        Self { block_size, blocks, piece_size, readers }
    }
}

/// Rounds down. No option's size is below a page.
fn whole_pages(bytes: u64) -> u64 {
    bytes / SMALLEST_BLOCK * SMALLEST_BLOCK
}

/// Plans to load `wanted` storages of `index` once each. Numbers given twice count once.
///
/// `block_size` and `piece_size` are multiples of 4 KiB, and no piece is larger than a block.
pub(crate) fn build(index: &Index, wanted: &[StorageId], block_size: u64, piece_size: u64) -> Plan {
    let mut order: Vec<StorageId> = wanted.to_vec();
    // File order: reads go forward, and what lies side by side travels together.
    order.sort_unstable_by_key(|id| {
        let storage = &index.storages[id.0 as usize];
        (storage.length > 0, storage.source, storage.offset, storage.length, *id)
    });
    order.dedup();
    let mut builder = Builder::new(block_size, piece_size.min(block_size));
    for (number, id) in order.iter().enumerate() {
        let storage = &index.storages[id.0 as usize];
        builder.storage(number, storage.source, storage.offset, storage.length);
    }
    builder.close_block();
    let storages = order
        .iter()
        .map(|id| PlannedStorage { id: *id, length: index.storages[id.0 as usize].length })
        .collect();
    Plan { storages, ..builder.plan }
}

struct Builder {
    plan: Plan,
    /// The end of the last byte in the open block.
    used: u64,
    /// First piece and first copy of the open block.
    first_piece: usize,
    first_copy: usize,
    bytes: u64,
}

impl Builder {
    fn new(block_size: u64, piece_size: u64) -> Self {
        let plan = Plan {
            block_size,
            piece_size,
            storages: Vec::new(),
            blocks: Vec::new(),
            pieces: Vec::new(),
            copies: Vec::new(),
        };
        Self { plan, used: 0, first_piece: 0, first_copy: 0, bytes: 0 }
    }

    fn storage(&mut self, number: usize, source: SourceId, offset: u64, length: u64) {
        let mut done = 0;
        while done < length {
            let block_offset = self.place(source, offset + done);
            let room = self.plan.block_size - block_offset;
            let step = room.min(length - done);
            self.read(source, offset + done, step, block_offset);
            self.plan.copies.push(Copy {
                block_offset,
                length: step,
                storage: number,
                storage_offset: done,
            });
            self.used = block_offset + step;
            self.bytes += step;
            done += step;
            if self.used == self.plan.block_size {
                self.close_block();
            }
        }
    }

    /// Where in the open block the byte at `offset` goes: right behind the last one if it
    /// continues it, otherwise at the next place of equal remainder modulo a page. Opens a new
    /// block if there is none.
    fn place(&mut self, source: SourceId, offset: u64) -> u64 {
        let page = SMALLEST_BLOCK;
        if let Some(last) = self.plan.pieces.get(self.first_piece..).and_then(<[Piece]>::last)
            && last.source == source
            && last.offset + last.length == offset
        {
            return self.used;
        }
        let aligned = self.used.next_multiple_of(page) + offset % page;
        if aligned < self.plan.block_size {
            return aligned;
        }
        self.close_block();
        offset % page
    }

    /// Adds `length` bytes to the pieces: the last piece grows to its full size first. Pieces
    /// end at multiples of the piece size in the block, so that all but the first and last of
    /// a range are whole pages of the file.
    fn read(&mut self, source: SourceId, mut offset: u64, mut length: u64, mut block_offset: u64) {
        let piece_size = self.plan.piece_size;
        let block = self.plan.blocks.len();
        while length > 0 {
            let to_boundary = piece_size - block_offset % piece_size;
            let step = to_boundary.min(length);
            let open = self.plan.pieces.get_mut(self.first_piece..).and_then(<[Piece]>::last_mut);
            match open {
                Some(last)
                    if last.source == source
                        && last.offset + last.length == offset
                        && last.block_offset + last.length == block_offset
                        && !block_offset.is_multiple_of(piece_size) =>
                {
                    last.length += step;
                }
                _ => self.plan.pieces.push(Piece {
                    block,
                    source,
                    offset,
                    length: step,
                    block_offset,
                }),
            }
            offset += step;
            block_offset += step;
            length -= step;
        }
    }

    fn close_block(&mut self) {
        let pieces = self.first_piece..self.plan.pieces.len();
        let copies = self.first_copy..self.plan.copies.len();
        if !pieces.is_empty() {
            (self.first_piece, self.first_copy) = (pieces.end, copies.end);
            self.plan.blocks.push(Block { pieces, copies, bytes: self.bytes });
        }
        self.used = 0;
        self.bytes = 0;
    }
}
