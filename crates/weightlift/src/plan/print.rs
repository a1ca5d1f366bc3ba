//! A plan as text: one line a block, then its pieces and copies.

use std::fmt;

use super::Plan;

impl fmt::Display for Plan {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(
            f,
            "{} bytes of {} storages in {} blocks of {}, {} pieces of {}, {} copies",
            self.bytes(),
            self.storages.len(),
            self.blocks.len(),
            crate::options::format_size(self.block_size),
            self.pieces.len(),
            crate::options::format_size(self.piece_size),
            self.copies.len(),
        )?;
        for (number, block) in self.blocks.iter().enumerate() {
            writeln!(f, "block {number}: {} bytes", block.bytes)?;
            for piece in self.pieces_of(number) {
                writeln!(
                    f,
                    "  read source {} at {} +{} to {}",
                    piece.source.0, piece.offset, piece.length, piece.block_offset
                )?;
            }
            for copy in self.copies_of(number) {
                writeln!(
                    f,
                    "  copy {} +{} to storage {} at {}",
                    copy.block_offset,
                    copy.length,
                    self.storages[copy.storage].id.0,
                    copy.storage_offset
                )?;
            }
        }
        Ok(())
    }
}
