//! Compares tensors with their digests while they are read, in whatever order their pieces come.

use std::collections::HashMap;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};

use weightlift_index::TensorInfo;

use super::manifest::{expected, mismatch};
use super::tree::{self, LEAF};
use super::{Manifest, TensorDigests};
use crate::error::{Error, ErrorKind, Result};
use crate::plan::Plan;
use crate::sync::{Mutex, lock};

/// The tensors of one run of a load, and what was hashed of them. Readers hand in what they have
/// read, each its own pieces, while those are in the processor's cache.
pub(crate) struct Checks {
    /// By the storage's number in the plan.
    ranges: Vec<Vec<Range>>,
    left: AtomicUsize,
}

/// The bytes that a tensor covers in its storage. Tensors that cover the same ones share it.
struct Range {
    offset: u64,
    length: u64,
    expected: Vec<Expected>,
    /// The digests of the leaves, as far as they are made.
    leaves: Box<[AtomicU64]>,
    /// How many are not.
    left: AtomicUsize,
    /// Leaves of which parts came: a piece ended in the middle of them.
    parts: Mutex<HashMap<u64, Part>>,
}

struct Expected {
    name: Box<str>,
    tree: u64,
}

/// The bytes of a leaf that came, each in its place.
struct Part {
    bytes: Vec<u8>,
    filled: u64,
}

impl Checks {
    /// For a run of `plan`, whose storages hold these tensors. An error of kind `Mismatch` if the
    /// manifest does not know them, or says that one without bytes has some.
    pub(crate) fn new(manifest: &Manifest, by_storage: &[Vec<&TensorInfo>]) -> Result<Self> {
        let by_name = manifest.by_name();
        let mut ranges = Vec::with_capacity(by_storage.len());
        let mut left = 0;
        for tensors in by_storage {
            let mut of_storage: Vec<Range> = Vec::new();
            let mut same: HashMap<(u64, u64), usize> = HashMap::new();
            for tensor in tensors {
                let expected = expected(&by_name, tensor)?;
                let place = *same.entry((tensor.offset, tensor.length)).or_insert_with(|| {
                    of_storage.push(Range::new(tensor));
                    of_storage.len() - 1
                });
                of_storage[place].expected.push(Expected::new(expected));
            }
            for range in &of_storage {
                match range.length {
                    0 => range.compare()?,
                    _ => left += 1,
                }
            }
            ranges.push(of_storage);
        }
        Ok(Self { ranges, left: AtomicUsize::new(left) })
    }

    /// Takes note of piece number `piece` of the plan, whose bytes are these, in order. Every piece
    /// is handed in once. An error of kind `Mismatch` if that completes a tensor which is not what
    /// it should be.
    pub(crate) fn piece<'b>(
        &self,
        plan: &Plan,
        piece: usize,
        buffers: impl Iterator<Item = &'b [u8]>,
    ) -> Result<()> {
        let piece = &plan.pieces[piece];
        let copies = plan.copies_of(piece.block);
        let mut at = piece.block_offset;
        let mut next = copies.partition_point(|copy| copy.block_offset + copy.length <= at);
        for mut buffer in buffers {
            while !buffer.is_empty() {
                let copy = copies.get(next).filter(|copy| copy.block_offset <= at);
                let copy = copy.ok_or_else(|| {
                    Error::new(ErrorKind::Internal, "a piece has bytes that no copy has")
                })?;
                let done = at - copy.block_offset;
                let length = buffer.len().min((copy.length - done) as usize);
                let (part, rest) = buffer.split_at(length);
                self.take(copy.storage, copy.storage_offset + done, part)?;
                buffer = rest;
                at += length as u64;
                if done + length as u64 == copy.length {
                    next += 1;
                }
            }
        }
        Ok(())
    }

    /// That nothing was left out.
    pub(crate) fn finish(&self) -> Result<()> {
        match self.left.load(Ordering::Acquire) {
            0 => Ok(()),
            left => Err(Error::new(ErrorKind::Internal, "tensors were loaded and not verified")
                .with("tensors", left)),
        }
    }

    /// Bytes of a storage, from `offset` on.
    fn take(&self, storage: usize, offset: u64, bytes: &[u8]) -> Result<()> {
        let end = offset + bytes.len() as u64;
        for range in &self.ranges[storage] {
            let (from, to) = (offset.max(range.offset), end.min(range.offset + range.length));
            if from < to {
                let part = &bytes[(from - offset) as usize..(to - offset) as usize];
                if range.take(from - range.offset, part) {
                    range.compare()?;
                    self.left.fetch_sub(1, Ordering::AcqRel);
                }
            }
        }
        Ok(())
    }
}

impl Range {
    fn new(tensor: &TensorInfo) -> Self {
        // Tensors lie within their files: a leaf for every 64 KiB that are there.
        let leaves = tree::leaves(tensor.length) as usize;
        Self {
            offset: tensor.offset,
            length: tensor.length,
            expected: Vec::new(),
            leaves: std::iter::repeat_with(AtomicU64::default).take(leaves).collect(),
            left: AtomicUsize::new(leaves),
            parts: Mutex::new(HashMap::new()),
        }
    }

    /// Bytes from `offset` on; whether they were the last ones to come.
    fn take(&self, mut offset: u64, mut bytes: &[u8]) -> bool {
        let mut complete = false;
        while !bytes.is_empty() {
            let leaf = offset / LEAF;
            let whole = tree::leaf_bytes(self.length, leaf);
            let within = offset % LEAF;
            let (part, rest) = bytes.split_at(bytes.len().min((whole - within) as usize));
            let digest = if part.len() as u64 == whole {
                Some(tree::leaf(part))
            } else {
                self.part(leaf, whole, within as usize, part)
            };
            if let Some(digest) = digest {
                self.leaves[leaf as usize].store(digest, Ordering::Relaxed);
                // The last one sees what all others stored.
                complete = self.left.fetch_sub(1, Ordering::AcqRel) == 1;
            }
            offset += part.len() as u64;
            bytes = rest;
        }
        complete
    }

    /// Keeps a part of a leaf; the leaf's digest if it was the last one.
    fn part(&self, leaf: u64, whole: u64, within: usize, bytes: &[u8]) -> Option<u64> {
        let mut parts = lock(&self.parts);
        let empty = || Part { bytes: vec![0; whole as usize], filled: 0 };
        let part = parts.entry(leaf).or_insert_with(empty);
        part.bytes[within..within + bytes.len()].copy_from_slice(bytes);
        part.filled += bytes.len() as u64;
        if part.filled < whole {
            return None;
        }
        let part = parts.remove(&leaf);
        drop(parts);
        part.map(|part| tree::leaf(&part.bytes))
    }

    /// Whether all of it is what it should be, once all leaves are made.
    fn compare(&self) -> Result<()> {
        let actual = tree::root(self.leaves.iter().map(|leaf| leaf.load(Ordering::Relaxed)));
        match self.expected.iter().find(|expected| expected.tree != actual) {
            None => Ok(()),
            Some(expected) => {
                Err(mismatch("a tensor's bytes are not those of the manifest", &expected.name)
                    .with("expected", format_args!("{:016x}", expected.tree))
                    .with("actual", format_args!("{actual:016x}"))
                    .with("digest", "tree")
                    .hint("fetch the file again; `weightlift verify` names all that differ"))
            }
        }
    }
}

impl Expected {
    fn new(tensor: &TensorDigests) -> Self {
        Self { name: (&*tensor.name).into(), tree: tensor.tree }
    }
}

#[cfg(test)]
mod tests {
    use weightlift_index::{Dtype, Index, SourceId, SourceInfo, Storage, StorageId};

    use super::*;
    use crate::verify::Tree;

    fn tensor(name: &str, offset: u64, length: u64) -> TensorInfo {
        let (name, dtype, storage) = (name.into(), Dtype::from_name("U8"), StorageId(0));
        TensorInfo { name, storage, offset, length, dtype, shape: vec![length], strides: None }
    }

    /// Three tensors in one storage: two of the same bytes, and a view of some.
    fn tensors() -> [TensorInfo; 4] {
        let all = 5 * LEAF + 9;
        [
            tensor("a", 0, all),
            tensor("tied", 0, all),
            tensor("view", LEAF / 2, 2 * LEAF + 100),
            tensor("none", 70, 0),
        ]
    }

    fn digest(bytes: &[u8]) -> u64 {
        let mut tree = Tree::default();
        tree.update(bytes);
        tree.digest()
    }

    fn manifest(tensors: &[TensorInfo], bytes: &[u8]) -> Manifest {
        let of = |tensor: &TensorInfo| TensorDigests {
            name: tensor.name.to_string(),
            dtype: tensor.dtype.name().to_owned(),
            shape: tensor.shape.clone(),
            length: tensor.length,
            xxh3: 0,
            tree: digest(&bytes[tensor.offset as usize..][..tensor.length as usize]),
        };
        Manifest::new(tensors.iter().map(of).collect(), Vec::new())
    }

    fn plan(length: u64, piece: u64) -> Plan {
        let storage =
            Storage { source: SourceId(0), offset: 100, length, encoding: Default::default() };
        let index = Index {
            sources: vec![SourceInfo::file("f", length + 100)],
            storages: vec![storage],
            ..Index::default()
        };
        crate::plan::build(&index, &[StorageId(0)], 8 * piece, piece)
    }

    /// Hands in all pieces in the order of `order`; the error, if there is one.
    fn run(plan: &Plan, manifest: &Manifest, bytes: &[u8], order: &[usize]) -> Result<()> {
        let tensors = tensors();
        let checks = Checks::new(manifest, &[tensors.iter().collect()])?;
        for number in order {
            assert_eq!(checks.finish().unwrap_err().kind(), ErrorKind::Internal);
            let piece = &plan.pieces[*number];
            let start = piece.offset as usize - 100;
            let piece = &bytes[start..start + piece.length as usize];
            // As the places of host memory are: in several buffers.
            let (first, second) = piece.split_at(piece.len() / 3);
            checks.piece(plan, *number, [first, second].into_iter())?;
        }
        checks.finish()
    }

    #[test]
    fn any_order_of_pieces_comes_to_the_same_for_tensors_that_share_bytes() {
        let length = 5 * LEAF + 9;
        let bytes: Vec<u8> = (0..length).map(|at| (at * 131 % 253) as u8).collect();
        let manifest = manifest(&tensors(), &bytes);
        for piece in [4096, 20 << 10, 1 << 20] {
            let plan = plan(length, piece);
            let count = plan.pieces.len();
            let backwards: Vec<usize> = (0..count).rev().collect();
            let every_third = (0..3).flat_map(|first| (first..count).step_by(3)).collect();
            for order in [(0..count).collect(), backwards, every_third] {
                run(&plan, &manifest, &bytes, &order).unwrap();
                // Where the view is, and where it is not.
                for (at, name) in [(LEAF, ["a", "view"]), (0, ["a", "a"]), (length - 1, ["a", "a"])]
                {
                    let mut wrong = bytes.clone();
                    wrong[at as usize] ^= 0x80;
                    let error = run(&plan, &manifest, &wrong, &order).unwrap_err();
                    let tensor = error.value("tensor").unwrap();
                    assert!(name.contains(&tensor), "{tensor}: byte {at}, pieces of {piece}");
                }
            }
        }
    }

    #[test]
    fn tensors_of_the_same_bytes_are_each_compared() {
        let length = 5 * LEAF + 9;
        let bytes = vec![7; length as usize];
        let mut manifest = manifest(&tensors(), &bytes);
        manifest.tensors[1].tree ^= 1;
        let plan = plan(length, 1 << 20);
        let error = run(&plan, &manifest, &bytes, &[0]).unwrap_err();
        assert_eq!(error.value("tensor"), Some("tied"));
    }
}
