//! Which bytes go where, in which blocks, pieces and order. Pure: no plan touches a disk.
//!
//! A **block** is the unit of copying, a **piece** the unit of reading. The wanted ranges of
//! all files are laid one after the other, in file order, into blocks that run across tensors;
//! every block is cut into pieces. What a block's bytes are for stands in its **copies**: a
//! part of the block, and the place in a storage where it belongs.

mod build;
mod print;

use std::ops::Range;

use weightlift_index::{SourceId, StorageId};

pub use build::Geometry;
pub(crate) use build::build;

/// A whole load, cut into blocks.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Plan {
    /// Bytes of a full block, a multiple of 4 KiB.
    pub block_size: u64,
    /// Bytes of a full piece, a multiple of 4 KiB.
    pub piece_size: u64,
    /// The storages that are loaded, in the order in which their bytes arrive; those without
    /// bytes stand first.
    pub storages: Vec<PlannedStorage>,
    /// The blocks, in order.
    pub blocks: Vec<Block>,
    /// All pieces; a block's are a range of them.
    pub pieces: Vec<Piece>,
    /// All copies; a block's are a range of them, by ascending offset in the block.
    pub copies: Vec<Copy>,
}

/// A storage that is loaded.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PlannedStorage {
    /// Its number in the index.
    pub id: StorageId,
    /// Its bytes.
    pub length: u64,
}

/// The unit of copying.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Block {
    /// Its pieces, as a range of [`Plan::pieces`].
    pub pieces: Range<usize>,
    /// Its copies, as a range of [`Plan::copies`].
    pub copies: Range<usize>,
    /// Bytes that it carries. Its length in memory can be larger: see [`Piece::block_offset`].
    pub bytes: u64,
}

/// The unit of reading: one range of one source.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Piece {
    /// The block that it belongs to.
    pub block: usize,
    /// Where its bytes are.
    pub source: SourceId,
    /// Their offset in the source.
    pub offset: u64,
    /// Their number, at least 1.
    pub length: u64,
    /// Where they go in the block: equal to `offset` modulo 4 KiB, so that a direct read can
    /// put whole pages in place and a buffered one copies page to page.
    pub block_offset: u64,
}

/// A part of a block that belongs to one storage.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Copy {
    /// Where the bytes are in the block.
    pub block_offset: u64,
    /// Their number, at least 1.
    pub length: u64,
    /// Which storage they belong to, as a number in [`Plan::storages`].
    pub storage: usize,
    /// Where they go in that storage.
    pub storage_offset: u64,
}

impl Plan {
    /// Bytes that the plan delivers: every storage once.
    pub fn bytes(&self) -> u64 {
        self.blocks.iter().map(|block| block.bytes).sum()
    }

    /// The copies of block number `block`.
    pub fn copies_of(&self, block: usize) -> &[Copy] {
        &self.copies[self.blocks[block].copies.clone()]
    }

    /// The pieces of block number `block`.
    pub fn pieces_of(&self, block: usize) -> &[Piece] {
        &self.pieces[self.blocks[block].pieces.clone()]
    }
}
