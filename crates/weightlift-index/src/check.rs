//! What must hold for the tensors of every format.

use std::hash::{BuildHasher, RandomState};

/// The number of elements of a shape; `None` if it is too large to be a size.
///
/// Each dimension is at most `i64::MAX`, and so that the order of dimensions does not matter, the
/// product of those that are not zero must fit 64 bits. A zero makes the tensor empty.
pub(crate) fn elements(shape: &[u64]) -> Option<u64> {
    let mut product = 1u64;
    let mut empty = false;
    for &dim in shape {
        if dim > i64::MAX as u64 {
            return None;
        }
        if dim == 0 {
            empty = true;
        } else {
            product = product.checked_mul(dim)?;
        }
    }
    Some(if empty { 0 } else { product })
}

/// The first item, in their order, whose name an earlier one has, after that earlier one; `None`
/// if each has a name of its own.
///
/// Sorting hashes is faster than filling a set, and takes 16 bytes an item for a short time. The
/// hash is keyed at random, so that nobody can choose names that collide.
pub(crate) fn repeated<T>(items: &[T], name: impl Fn(&T) -> &str) -> Option<(&T, &T)> {
    let hasher = RandomState::new();
    let mut hashes: Vec<(u64, usize)> =
        items.iter().enumerate().map(|(i, item)| (hasher.hash_one(name(item)), i)).collect();
    hashes.sort_unstable();
    let mut repeated: Option<(usize, usize)> = None;
    for same_hash in hashes.chunk_by(|a, b| a.0 == b.0) {
        for (position, &(_, second)) in same_hash.iter().enumerate().skip(1) {
            let earlier = &same_hash[..position];
            let first = earlier.iter().find(|(_, i)| name(&items[*i]) == name(&items[second]));
            if let Some(&(_, first)) = first {
                // The one that a reader meets first, whatever the hashes.
                if repeated.is_none_or(|(_, known)| second < known) {
                    repeated = Some((first, second));
                }
                break;
            }
        }
    }
    repeated.map(|(first, second)| (&items[first], &items[second]))
}
