//! Where storages lie in memory that weightlift allocates: offsets in one allocation. Pure.

use weightlift_index::Index;

use crate::error::{Error, ErrorKind, Result};
use crate::plan::{Plan, PlannedStorage};
use crate::system::PAGE;

/// Storages start at a multiple of this in host memory: a cache line and the widest vector
/// register.
const HOST_ALIGNMENT: u64 = 64;

/// Where storages start, and how many bytes it takes to hold them all.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Layout {
    /// By the storage's number in the plan; none is below the one before it.
    pub(super) offsets: Vec<u64>,
    pub(super) bytes: u64,
}

/// Storages behind one another, each at a multiple of `alignment`.
pub(super) fn packed(storages: &[PlannedStorage], alignment: u64) -> Result<Layout> {
    let mut layout = Layout::empty(storages.len());
    for storage in storages {
        layout.push(layout.bytes.checked_next_multiple_of(alignment), storage.length)?;
    }
    Ok(layout)
}

/// Storages of `plan` in host memory that starts at a page.
///
/// Each starts at a multiple of 64. Beyond that a storage has a wish: one that is alone in its
/// file, such as a raw file, wants to start at a page, which is what engines ask of a buffer
/// that they take over whole; another one whose offset in its file is a multiple of 64 wants that
/// offset's place within a page, so that a direct read can put whole pages in place. A wish is
/// granted where it costs at most a sixteenth of the storage: always from 64 KiB on, where that
/// is a page. All wishes together cost less than a page for each storage, and less than 7 % of
/// the bytes. What lies side by side in a file keeps its distance, and costs nothing.
pub(super) fn for_host(index: &Index, plan: &Plan) -> Result<Layout> {
    let mut in_source = vec![0_u32; index.sources.len()];
    for storage in index.storages.iter().filter(|storage| storage.length > 0) {
        in_source[storage.source.0 as usize] += 1;
    }
    let mut layout = Layout::empty(plan.storages.len());
    for planned in &plan.storages {
        let storage = &index.storages[planned.id.0 as usize];
        let wish = match storage.offset {
            _ if in_source[storage.source.0 as usize] == 1 => Some(0),
            offset if offset.is_multiple_of(HOST_ALIGNMENT) => Some(offset % PAGE as u64),
            _ => None,
        };
        let packed = layout.bytes.checked_next_multiple_of(HOST_ALIGNMENT);
        let cost = packed.zip(wish).map(|(packed, wish)| {
            // Both are multiples of 64, and so is what lies between.
            wish.wrapping_sub(packed) % PAGE as u64
        });
        let cost = cost.filter(|cost| *cost <= planned.length / 16).unwrap_or(0);
        layout.push(packed.and_then(|packed| packed.checked_add(cost)), planned.length)?;
    }
    Ok(layout)
}

/// One storage in host memory of its own, which starts at a page: at its offset's place within a page
/// if that is a multiple of 64.
pub(super) fn alone(index: &Index, planned: &PlannedStorage) -> Result<Layout> {
    let place = index.storages[planned.id.0 as usize].offset % PAGE as u64;
    let start = if place.is_multiple_of(HOST_ALIGNMENT) { place } else { 0 };
    let mut layout = Layout::empty(1);
    layout.push(Some(start), planned.length)?;
    Ok(layout)
}

impl Layout {
    fn empty(storages: usize) -> Self {
        Self { offsets: Vec::with_capacity(storages), bytes: 0 }
    }

    fn push(&mut self, start: Option<u64>, length: u64) -> Result<()> {
        let Some((start, end)) = start.and_then(|start| Some((start, start.checked_add(length)?)))
        else {
            return Err(Error::new(
                ErrorKind::OutOfHostMemory,
                "the tensors do not fit 64-bit addresses",
            ));
        };
        self.offsets.push(start);
        self.bytes = end;
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use weightlift_index::{SourceId, SourceInfo, Storage, StorageId};

    use super::*;

    const PAGES: u64 = PAGE as u64;

    fn storages(lengths: &[u64]) -> Vec<PlannedStorage> {
        let ids = (0..).map(StorageId).zip(lengths);
        ids.map(|(id, length)| PlannedStorage { id, length: *length }).collect()
    }

    /// An index of storages by source, offset and length, and the plan that loads them all.
    fn model(storages: &[(u32, u64, u64)]) -> (Index, Plan) {
        let sources = storages.iter().map(|storage| storage.0 + 1).max().unwrap_or(0);
        let index = Index {
            sources: (0..sources).map(|n| SourceInfo::file(n.to_string(), u64::MAX)).collect(),
            storages: storages
                .iter()
                .map(|&(source, offset, length)| Storage {
                    source: SourceId(source),
                    offset,
                    length,
                    encoding: Default::default(),
                })
                .collect(),
            ..Index::default()
        };
        let ids: Vec<_> = (0..).map(StorageId).take(storages.len()).collect();
        let plan = crate::plan::build(&index, &ids, 1 << 24, 1 << 22);
        (index, plan)
    }

    fn host(storages: &[(u32, u64, u64)]) -> Layout {
        let (index, plan) = model(storages);
        for_host(&index, &plan).unwrap()
    }

    #[test]
    fn storages_start_aligned_and_do_not_overlap() {
        let layout = packed(&storages(&[0, 1, 256, 255, 0, 1000]), 256).unwrap();
        assert_eq!(layout.offsets, [0, 0, 256, 512, 768, 768]);
        assert_eq!(layout.bytes, 1768);
        assert!(packed(&storages(&[u64::MAX, 1]), 256).is_err());
        assert!(packed(&storages(&[u64::MAX - 1, 0]), 256).is_err());
    }

    #[test]
    fn what_is_alone_in_its_file_starts_at_a_page() {
        let long = 1 << 20;
        // The third is alone in its file too, and too short to be worth most of a page, but is
        // the first: nothing stands before it.
        for (offset, lengths) in [(0, [long + 1, long]), (88, [long + 5, long]), (8, [9, long])] {
            let layout = host(&[(0, offset, lengths[0]), (1, offset, lengths[1])]);
            assert_eq!(layout.offsets, [0, lengths[0].next_multiple_of(PAGES)]);
        }
        let layout = host(&[(0, 8, 10), (1, 8, 100), (2, 0, 10)]);
        assert_eq!(layout.offsets, [0, 64, 192], "small ones are packed");
    }

    #[test]
    fn large_storages_keep_their_files_place_within_a_page() {
        let long = 100_000;
        let layout = host(&[(0, 4096 + 128, long), (0, 200_000, 5000), (0, 6_000_064, long)]);
        // 200,000 is a multiple of 64; to stand 3392 into a page would cost more than 5000 / 16.
        assert_eq!(layout.offsets[0], 128);
        assert_eq!(layout.offsets[1], (128 + long).next_multiple_of(64));
        assert_eq!(layout.offsets[2] % PAGES, 6_000_064 % PAGES);
        // An offset that is no multiple of 64 has no wish.
        let layout = host(&[(0, 104, long), (0, 104 + long, long)]);
        assert_eq!(layout.offsets, [0, long.next_multiple_of(64)]);
    }

    #[test]
    fn many_small_storages_cost_what_they_hold() {
        let count = 100_000_u32;
        // Side by side, apart by whole and by broken pages, a file each.
        for (step, own_file) in [(4096, false), (8192, false), (4160, false), (0, true)] {
            let all: Vec<_> = (0..count)
                .map(|n| (if own_file { n } else { 0 }, u64::from(n) * step, 4096))
                .collect();
            let bytes = host(&all).bytes;
            assert!(bytes <= u64::from(count) * (4096 + 4096 / 16), "{step}: {bytes}");
        }
    }

    proptest! {
        /// What the page about the host destination promises.
        #[test]
        fn the_rule_holds(
            parts in prop::collection::vec((0..3_u32, 0..9_000_u64, 0..200_000_u64, any::<bool>()), 1..60),
        ) {
            let mut ends = [0_u64; 3];
            let all: Vec<_> = parts
                .iter()
                .map(|&(source, gap, length, aligned)| {
                    let offset = ends[source as usize] + gap;
                    let offset = if aligned { offset.next_multiple_of(64) } else { offset };
                    ends[source as usize] = offset + length;
                    (source, offset, length)
                })
                .collect();
            let (index, plan) = model(&all);
            let layout = for_host(&index, &plan).unwrap();
            let (mut end, mut spent) = (0, 0);
            for (planned, &start) in plan.storages.iter().zip(&layout.offsets) {
                let storage = &index.storages[planned.id.0 as usize];
                let alone = all.iter().filter(|s| s.0 == storage.source.0 && s.2 > 0).count() == 1;
                prop_assert!(start >= end && start.is_multiple_of(64));
                let padding = start - u64::next_multiple_of(end, 64);
                prop_assert!(padding <= planned.length / 16 && padding < PAGES);
                if planned.length >= 64 << 10 {
                    if alone {
                        prop_assert!(start.is_multiple_of(PAGES));
                    } else if storage.offset.is_multiple_of(64) {
                        prop_assert_eq!(start % PAGES, storage.offset % PAGES);
                    }
                }
                spent += start - end;
                end = start + planned.length;
            }
            prop_assert_eq!(layout.bytes, end);
            let most = plan.bytes() / 16 + 64 * plan.storages.len() as u64;
            prop_assert!(spent <= most);
        }
    }
}
