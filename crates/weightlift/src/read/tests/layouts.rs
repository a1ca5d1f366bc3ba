//! Any layout gives the bytes that a plain read gives.

use proptest::prelude::*;

use super::*;
use crate::read::spans::{self, Span, To};

/// The ends of files that direct reads have to round.
const TAILS: [usize; 5] = [0, 1, 511, 512, 4095];

fn fault() -> impl Strategy<Value = Fault> {
    prop_oneof![
        3 => Just(Fault::None),
        1 => Just(Fault::Short),
        2 => Just(Fault::ShortAligned),
        1 => Just(Fault::EverySecond(EINTR)),
        1 => Just(Fault::EverySecond(EAGAIN)),
        1 => (1_u64..6).prop_map(|nth| Fault::Once(nth, ESTALE)),
        1 => (1_u64..6).prop_map(|nth| Fault::Once(nth, EINVAL)),
    ]
}

/// Pieces of a file of so many bytes. Some places agree with their offsets, as those of the ring
/// do; some are in parts at any address, as those of host tensors.
fn layout(length: usize) -> impl Strategy<Value = Layout> {
    let piece = (0..length, 1_usize..200_000, any::<bool>(), 1_usize..5, 0_usize..600);
    prop::collection::vec(piece, 1..6).prop_map(move |pieces| {
        let mut end = 0;
        let mut layout = Vec::new();
        for (offset, most, agrees, parts, gap) in pieces {
            let most = most.min(length - offset);
            let mut ranges = Vec::new();
            let mut rest = most;
            for part in 0..parts {
                let size = if part + 1 == parts { rest } else { rest / (parts - part) };
                let lead = if agrees && part == 0 {
                    (4096 + offset % 4096 - end % 4096) % 4096
                } else {
                    gap
                };
                if size > 0 {
                    ranges.push((lead, size));
                    end += lead + size;
                }
                rest -= size;
            }
            layout.push((offset as u64, ranges));
        }
        layout
    })
}

fn cases() -> impl Strategy<Value = (usize, Fault, Layout)> {
    (0..TAILS.len(), fault())
        .prop_flat_map(|(tail, fault)| (Just(tail), Just(fault), layout((600 << 10) + TAILS[tail])))
}

#[test]
fn any_layout_reads_as_a_plain_read_does() {
    let test = "any_layout_reads_as_a_plain_read_does";
    let files: Vec<_> = TAILS.iter().map(|tail| Written::new((600 << 10) + tail)).collect();
    let mut alignments = alignments(test);
    alignments.push(DirectAlignment { memory: 4096, offset: 128 << 10 });
    let subjects = subjects(test, &Subject::ALL);
    let mut runner = proptest::test_runner::TestRunner::new(ProptestConfig {
        cases: 100,
        failure_persistence: None,
        ..ProptestConfig::default()
    });
    let ran = runner.run(&cases(), |(tail, fault, layout)| {
        let file = &files[tail];
        let wanted = expected(&layout, &file.bytes);
        for subject in &subjects {
            // Read through the cache an EINVAL is an error.
            let direct = Subject::DIRECT.contains(subject);
            if matches!(fault, Fault::Once(_, EINVAL)) && !direct {
                continue;
            }
            for alignment in &alignments {
                let access = access(file.source(fault), *alignment, DirectIo::Auto);
                let (results, memory) = read(&mut *subject.reader(&access, fault), &layout);
                let what = (subject, alignment, fault);
                for result in results {
                    prop_assert!(result.is_ok(), "{:?} {:?}", what, result);
                }
                assert_same(&memory, &wanted, &what);
            }
        }
        Ok(())
    });
    ran.unwrap();
}

/// FS-07: a padded last read must not go beyond what there is, nor be taken for a failure.
#[test]
fn files_of_odd_length_are_read_directly_to_their_last_byte() {
    let test = "files_of_odd_length_are_read_directly_to_their_last_byte";
    let (alignments, subjects) = (alignments(test), subjects(test, &Subject::DIRECT));
    for tail in TAILS {
        let file = Written::new((200 << 10) + tail);
        let length = file.bytes.len();
        // All of it; its last bytes, with a place that ends where they do; and its last byte.
        let layout: Layout = vec![
            (0, vec![(0, length)]),
            (length as u64 - 5000, vec![(3, 5000)]),
            (length as u64 - 1, vec![(0, 1)]),
        ];
        for alignment in &alignments {
            for subject in &subjects {
                let access = access(file.source(Fault::None), *alignment, DirectIo::On);
                let mut reader = subject.reader(&access, Fault::None);
                let (results, memory) = read(&mut *reader, &layout);
                for result in results {
                    assert_eq!(result.unwrap(), Kind::Direct, "{subject:?} {alignment:?} {tail}");
                }
                assert_same(&memory, &expected(&layout, &file.bytes), &(subject, tail));
            }
        }
    }
}

/// Two gigabytes and four are where counts and offsets of 32 bits end.
#[test]
fn offsets_beyond_4_gib_are_read() {
    let test = "offsets_beyond_4_gib_are_read";
    let file = tempfile::NamedTempFile::new().unwrap();
    let real = Random::new(7).bytes(300_000);
    let borders = [(1_u64 << 31) - 100_001, (1 << 32) - 100_001];
    for border in borders {
        std::os::unix::fs::FileExt::write_all_at(file.as_file(), &real, border).unwrap();
    }
    file.as_file().sync_all().unwrap();
    let local = || LocalFile::open_new(file.path().to_owned(), "a file").unwrap().0;
    let layout: Layout = borders.map(|border| (border, vec![(1, real.len())])).to_vec();
    let wanted = [&[0], &real[..], &[0], &real[..]].concat();
    let subjects = subjects(test, &Subject::ALL);
    for alignment in alignments(test) {
        for subject in &subjects {
            let access = access(vec![Arc::new(local())], alignment, DirectIo::On);
            let (results, memory) = read(&mut *subject.reader(&access, Fault::None), &layout);
            results.into_iter().for_each(|result| assert!(result.is_ok(), "{result:?}"));
            assert_same(&memory, &wanted, subject);
        }
    }
}

fn all_spans(place: &[(usize, usize)], start: u64, alignment: (u32, u32)) -> Vec<Span> {
    let length = place.iter().map(|(skip, length)| skip + length).sum();
    let place = Scratch::new(length).place(place);
    let alignment = DirectAlignment { memory: alignment.0, offset: alignment.1 };
    let mut done = 0;
    let mut all = Vec::new();
    while let Some(span) = spans::next(&place, start, done, 1 << 20, alignment) {
        let came = spans::came(&span, span.length, alignment);
        assert!(came > 0 && span.offset.is_multiple_of(u64::from(alignment.offset)), "{span:?}");
        assert!(span.length.is_multiple_of(alignment.offset as usize), "{span:?}");
        all.push(span);
        done += came;
    }
    assert_eq!(done, place.len());
    all
}

#[test]
fn whole_pages_go_in_place_and_only_ends_through_the_buffer() {
    const MIB: usize = 1 << 20;
    let in_place = |offset, length| Span { offset, length, to: To::Place };
    let copied =
        |offset, length, skip, wanted| Span { offset, length, to: To::Buffer { skip, wanted } };
    // As the ring's: the place agrees with the offset.
    assert_eq!(all_spans(&[(0, MIB)], 8192, (512, 4096)), [in_place(8192, MIB)]);
    assert_eq!(
        all_spans(&[(100, MIB)], 4096 + 100, (512, 4096)),
        [
            copied(4096, 4096, 100, 3996),
            in_place(8192, MIB - 4096),
            copied(4096 + MIB as u64, 4096, 0, 100),
        ]
    );
    // An address that never fits: all of it by the buffer, a MiB at a time.
    assert_eq!(all_spans(&[(256, MIB)], 0, (512, 512)), [copied(0, MIB, 0, MIB)]);
    assert_eq!(
        all_spans(&[(256, MIB)], 10, (512, 512)),
        [copied(0, MIB, 10, MIB - 10), copied(MIB as u64, 512, 0, 10)]
    );
    // The memory's unit is the larger: 3,584 bytes on, both fit.
    assert_eq!(
        all_spans(&[(512, MIB)], 0, (4096, 512)),
        [copied(0, 3584, 0, 3584), in_place(3584, MIB - 3584)]
    );
    // Small parts are read together with what lies beside them.
    let small = [(0, 4096), (4096, 4096), (4096, 4096)];
    assert_eq!(all_spans(&small, 0, (512, 512)), [copied(0, 12288, 0, 12288)]);
    // Without an alignment nothing is rounded.
    assert_eq!(all_spans(&[(3, MIB)], 5, (1, 1)), [in_place(5, MIB)]);
    assert_eq!(all_spans(&[(3, 100)], 5, (1, 1)), [copied(5, 100, 0, 100)]);
}

/// FS-01: no read asks for 2 GiB or more.
#[test]
fn no_read_is_longer_than_a_gib() {
    const GIB: usize = 1 << 30;
    let lengths = |alignment| -> Vec<usize> {
        all_spans(&[(0, 3 * GIB)], 0, alignment).iter().map(|span| span.length).collect()
    };
    assert_eq!(lengths((512, 4096)), [GIB; 3]);
    assert_eq!(lengths((1, 1)), [GIB; 3]);
}

/// A reader that went on behind 100 bytes of a 512-byte unit would ask for what it may not.
#[test]
fn what_came_counts_in_whole_units() {
    let alignment = DirectAlignment { memory: 512, offset: 512 };
    let span = Span { offset: 512, length: 4096, to: To::Place };
    let copied = Span { to: To::Buffer { skip: 100, wanted: 3000 }, ..span };
    for (count, place, buffer) in [
        (0, 0, 0),
        (100, 0, 0),
        (101, 0, 1),
        (1300, 1024, 1200),
        (4096, 4096, 3000),
        (9999, 4096, 3000),
    ] {
        assert_eq!(spans::came(&span, count, alignment), place, "{count}");
        assert_eq!(spans::came(&copied, count, alignment), buffer, "{count}");
    }
}
