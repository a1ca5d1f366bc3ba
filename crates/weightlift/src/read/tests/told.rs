//! FS-09: file systems differ in what direct reads must be multiples of, and tell it.

use super::*;

/// A file whose direct reads are refused unless they keep to its alignment, as by the kernel; of
/// more than 512 bytes no disk here would.
#[derive(Debug)]
struct Strict {
    file: LocalFile,
    alignment: DirectAlignment,
    reads: Arc<AtomicU64>,
}

impl Source for Strict {
    fn name(&self) -> &str {
        self.file.name()
    }

    fn length(&self) -> u64 {
        self.file.length()
    }

    fn open(&self) -> Result<Box<dyn OpenSource>> {
        self.file.open()
    }

    fn open_direct(&self) -> Result<source::Direct> {
        let (alignment, reads) = (self.alignment, self.reads.clone());
        Ok(match self.file.open_direct()? {
            source::Direct::Open(inner) => {
                source::Direct::Open(Box::new(OpenStrict { inner, alignment, reads }))
            }
            other => other,
        })
    }

    fn check_unchanged(&self) -> Result<()> {
        self.file.check_unchanged()
    }
}

struct OpenStrict {
    inner: Box<dyn OpenSource>,
    alignment: DirectAlignment,
    reads: Arc<AtomicU64>,
}

impl OpenSource for OpenStrict {
    fn read_at(&self, buffers: &mut [IoSliceMut<'_>], offset: u64) -> io::Result<usize> {
        self.reads.fetch_add(1, Ordering::Relaxed);
        let DirectAlignment { memory, offset: unit } = self.alignment;
        let fits = buffers.iter().all(|buffer| {
            (buffer.as_ptr() as usize).is_multiple_of(memory as usize)
                && buffer.len().is_multiple_of(unit as usize)
        });
        if !fits || !offset.is_multiple_of(u64::from(unit)) {
            return Err(io::Error::from_raw_os_error(EINVAL));
        }
        self.inner.read_at(buffers, offset)
    }
}

#[test]
fn direct_reads_keep_to_the_alignment_that_is_told() {
    let test = "direct_reads_keep_to_the_alignment_that_is_told";
    if alignments(test).is_empty() {
        return;
    }
    let file = Written::new((1 << 20) + 100_003);
    let length = file.bytes.len();
    // All of it where the ring would put it; some of it anywhere; and the last byte.
    let layout: Layout = vec![
        (0, vec![(0, length)]),
        (70_001, vec![(3, 100_000), (77, 200_001)]),
        (length as u64 - 1, vec![(5, 1)]),
    ];
    // ext4 on disks of either sector; and ZFS, whose unit is the dataset's record.
    for (memory, offset) in [(4, 512), (512, 512), (512, 4096), (4096, 4096), (4096, 128 << 10)] {
        let alignment = DirectAlignment { memory, offset };
        for subject in [Subject::Direct, Subject::Auto] {
            let reads = Arc::new(AtomicU64::new(0));
            let strict = Strict { file: file.local(), alignment, reads: reads.clone() };
            let access = access(vec![Arc::new(strict)], alignment, DirectIo::On);
            let (results, memory) = read(&mut *subject.reader(&access, Fault::None), &layout);
            for result in results {
                assert_eq!(result.unwrap(), Kind::Direct, "{subject:?} {alignment:?}");
            }
            assert_same(&memory, &expected(&layout, &file.bytes), &(subject, alignment));
            assert!(reads.load(Ordering::Relaxed) >= 3);
        }
    }
}
