//! Plans cover every byte once, whatever the layout; no plan touches a source.

use std::collections::HashMap;

use proptest::prelude::*;
use testkit::{Fault, Random, Spec, in_memory};
use weightlift::index::StorageId;
use weightlift::{Loader, Options, Plan, Request};

proptest! {
    #![proptest_config(ProptestConfig { cases: 256, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn every_byte_is_planned_once(
        seed: u64, tensors in 1..80_usize, longest in prop_oneof![Just(64_u64), Just(9_000), Just(100_000)],
        block in 1..=20_u64, piece in 1..=20_u64, some: bool,
    ) {
        let specs = Spec::many(&mut Random::new(seed), tensors, longest);
        let (model, sources) = in_memory(vec![(specs, Fault::None)]);
        let mut options = Options::default();
        options.set_block_size(block * 4096).unwrap();
        options.set_piece_size(Some(piece * 4096)).unwrap();
        let request = if some { Request::new().tensors(["t*[02468]"]) } else { Request::new() };
        let plan = Loader::new(options).plan(&model, &request);
        prop_assume!(plan.is_ok());
        check(&plan.unwrap(), &model.index().storages);
        prop_assert_eq!(sources[0].reads(), 0);
    }
}

/// The rules of a plan, stated anew from its parts.
fn check(plan: &Plan, storages: &[weightlift::index::Storage]) {
    let mut covered: HashMap<StorageId, u64> = HashMap::new();
    assert!(plan.piece_size <= plan.block_size);
    let (mut pieces, mut copies) = (0, 0);
    for (number, block) in plan.blocks.iter().enumerate() {
        assert_eq!(
            (block.pieces.start, block.copies.start),
            (pieces, copies),
            "blocks follow one another"
        );
        (pieces, copies) = (block.pieces.end, block.copies.end);
        let mut end = 0;
        // Every byte of the block: where it is in a source, and where it belongs.
        let mut bytes = HashMap::new();
        for piece in plan.pieces_of(number) {
            assert_eq!(piece.block, number);
            assert!(piece.length >= 1 && piece.length <= plan.piece_size);
            assert!(piece.block_offset >= end, "pieces overlap");
            assert_eq!(piece.block_offset % 4096, piece.offset % 4096, "pages stay pages");
            end = piece.block_offset + piece.length;
            assert!(end <= plan.block_size);
            for byte in (0..piece.length).step_by(97).chain([piece.length - 1]) {
                bytes.insert(piece.block_offset + byte, piece.offset + byte);
            }
        }
        let mut end = 0;
        let mut total = 0;
        for copy in plan.copies_of(number) {
            assert!(copy.length >= 1 && copy.block_offset >= end, "copies overlap");
            end = copy.block_offset + copy.length;
            total += copy.length;
            let planned = &plan.storages[copy.storage];
            let storage = &storages[planned.id.0 as usize];
            let done = covered.entry(planned.id).or_default();
            assert_eq!(*done, copy.storage_offset, "a storage's bytes come from front to back");
            *done += copy.length;
            for (at, offset) in bytes.iter().filter(|(at, _)| (copy.block_offset..end).contains(at))
            {
                let within = copy.storage_offset + at - copy.block_offset;
                assert_eq!(*offset, storage.offset + within, "the right byte of the file");
            }
        }
        assert_eq!(total, block.bytes);
        assert_eq!(total, plan.pieces_of(number).iter().map(|piece| piece.length).sum::<u64>());
    }
    assert_eq!((pieces, copies), (plan.pieces.len(), plan.copies.len()));
    for planned in &plan.storages {
        assert_eq!(covered.get(&planned.id).copied().unwrap_or(0), planned.length);
    }
}

#[test]
fn a_plan_prints() {
    let specs = vec![Spec::u8("a", vec![1; 5000]), Spec::u8("b", vec![2; 10])];
    let (model, _) = in_memory(vec![(specs, Fault::None)]);
    let mut options = Options::default();
    options.set_block_size(4096).unwrap();
    let text = Loader::new(options).plan(&model, &Request::new()).unwrap().to_string();
    let start = model.index().storages[0].offset;
    let first = 4096 - start;
    let expected = format!(
        "5010 bytes of 2 storages in 2 blocks of 4KiB, 2 pieces of 4KiB, 3 copies\n\
         block 0: {first} bytes\n  read source 0 at {start} +{first} to {start}\n  copy {start} +{first} to storage 0 at 0\n\
         block 1: {rest} bytes\n  read source 0 at 4096 +{rest} to 0\n  copy 0 +{tail} to storage 0 at {first}\n  copy {tail} +10 to storage 1 at 0\n",
        rest = 5010 - first,
        tail = 5000 - first,
    );
    assert_eq!(text, expected);
}
