//! The digest that can be made of parts in any order.

use xxhash_rust::xxh3::{Xxh3, xxh3_64};

/// Bytes of a leaf. Pieces of 1 MiB end in the middle of a leaf, whose two parts are copied together
/// then: one byte in sixteen. Smaller leaves would cost more calls: at 64 KiB starting and ending
/// the hash is below a hundredth.
pub(super) const LEAF: u64 = 64 << 10;

/// Leaves of so many bytes.
pub(super) fn leaves(length: u64) -> u64 {
    length.div_ceil(LEAF)
}

/// Bytes of leaf number `leaf` of `length` bytes.
pub(super) fn leaf_bytes(length: u64, leaf: u64) -> u64 {
    LEAF.min(length - leaf * LEAF)
}

/// The digest of a leaf.
pub(super) fn leaf(bytes: &[u8]) -> u64 {
    xxh3_64(bytes)
}

/// The digest of all leaves': the XXH3-64 of theirs, eight bytes each, the lowest first.
pub(super) fn root(leaves: impl Iterator<Item = u64>) -> u64 {
    let mut hasher = Xxh3::new();
    leaves.for_each(|leaf| hasher.update(&leaf.to_le_bytes()));
    hasher.digest()
}

/// The digest of bytes that come in order, in parts of any length.
#[derive(Default)]
pub(crate) struct Tree {
    leaf: Xxh3,
    filled: u64,
    root: Xxh3,
}

impl Tree {
    /// The next bytes.
    pub(crate) fn update(&mut self, mut bytes: &[u8]) {
        while !bytes.is_empty() {
            let (part, rest) = bytes.split_at(bytes.len().min((LEAF - self.filled) as usize));
            self.leaf.update(part);
            self.filled += part.len() as u64;
            bytes = rest;
            if self.filled == LEAF {
                self.end_leaf();
            }
        }
    }

    /// The digest of all of them.
    pub(crate) fn digest(mut self) -> u64 {
        if self.filled > 0 {
            self.end_leaf();
        }
        self.root.digest()
    }

    fn end_leaf(&mut self) {
        self.root.update(&self.leaf.digest().to_le_bytes());
        self.leaf.reset();
        self.filled = 0;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parts_in_order_and_whole_leaves_come_to_the_same() {
        let bytes: Vec<u8> = (0..3 * LEAF + 17).map(|at| (at * 31 % 251) as u8).collect();
        for length in [0, 1, LEAF - 1, LEAF, LEAF + 1, 2 * LEAF, 3 * LEAF + 17] {
            let bytes = &bytes[..length as usize];
            let whole = root(bytes.chunks(LEAF as usize).map(leaf));
            for part in [1_000, 64 << 10, 100_000] {
                let mut tree = Tree::default();
                bytes.chunks(part).for_each(|part| tree.update(part));
                assert_eq!(tree.digest(), whole, "{length} bytes in parts of {part}");
            }
            assert_eq!(leaves(length), bytes.chunks(LEAF as usize).count() as u64);
        }
    }

    /// What manifests hold may not change with the code: digests worked out by the documentation's
    /// rule with another implementation of XXH3 (the package xxhash 4.1.0 for Python).
    #[test]
    fn the_rule_is_that_of_the_documentation() {
        let bytes: Vec<u8> = (0..3 * LEAF + 17).map(|at| (at * 31 % 251) as u8).collect();
        let table = [
            (0, 0x2d06_8005_38d3_94c2),
            (1, 0x1134_25e2_d3c1_afc3),
            (LEAF, 0xf6e0_f291_1881_4663),
            (3 * LEAF + 17, 0x6d16_38fe_5c6b_a275),
        ];
        for (length, digest) in table {
            let mut tree = Tree::default();
            tree.update(&bytes[..length as usize]);
            assert_eq!(tree.digest(), digest, "{length} bytes");
        }
    }
}
