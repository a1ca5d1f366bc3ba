//! FS-19: a disk that rotates is read by two at most, forwards, unless the caller says otherwise.

use std::io::{self, IoSliceMut};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use testkit::{Fault, Random, Spec, in_memory};
use weightlift::{Loader, Model, OpenSource, Result, Source, StorageFacts, storage_facts};

use crate::{assert_same, on_host, options};

const PIECE: u64 = 64 << 10;

/// A file in memory that says what it lies on, and keeps where it was read, in order.
#[derive(Debug, Clone)]
struct Disk {
    bytes: Arc<Vec<u8>>,
    storage: Option<StorageFacts>,
    reads: Arc<Mutex<Vec<u64>>>,
}

impl Disk {
    fn new(bytes: Vec<u8>, rotational: Option<bool>) -> Self {
        // Of the facts about this program only the one that counts here is another.
        let mut facts = storage_facts(std::env::current_exe().unwrap()).unwrap();
        facts.rotational = rotational;
        Self { bytes: Arc::new(bytes), storage: Some(facts), reads: Arc::default() }
    }

    fn take_reads(&self) -> Vec<u64> {
        std::mem::take(&mut *self.reads.lock().unwrap_or_else(PoisonError::into_inner))
    }
}

impl Source for Disk {
    fn name(&self) -> &str {
        "model.safetensors"
    }

    fn length(&self) -> u64 {
        self.bytes.len() as u64
    }

    fn open(&self) -> Result<Box<dyn OpenSource>> {
        Ok(Box::new(self.clone()))
    }

    fn storage(&self) -> Option<StorageFacts> {
        self.storage.clone()
    }

    fn check_unchanged(&self) -> Result<()> {
        Ok(())
    }
}

impl OpenSource for Disk {
    fn read_at(&self, buffers: &mut [IoSliceMut<'_>], offset: u64) -> io::Result<usize> {
        self.reads.lock().unwrap_or_else(PoisonError::into_inner).push(offset);
        // Long enough for all readers to be under way.
        std::thread::sleep(Duration::from_millis(2));
        io::Read::read_vectored(&mut &self.bytes[offset as usize..], buffers)
    }
}

/// How far reads went back behind one that had begun before them, at most, in pieces.
fn back(reads: &[u64]) -> u64 {
    let mut furthest = 0;
    let distances = reads.iter().map(|offset| {
        furthest = furthest.max(*offset);
        (furthest - offset).div_ceil(PIECE)
    });
    distances.max().unwrap_or(0)
}

#[test]
fn a_disk_that_rotates_is_read_forwards_by_two_at_most() {
    let specs = vec![Spec::u8("w", Random::new(19).bytes(6 << 20))];
    let bytes = testkit::safetensors(&specs, 0);
    let index = in_memory(vec![(specs.clone(), Fault::None)]).0.index().clone();
    let loader = |threads: &str| {
        Loader::new(options(&format!("block_size=1MiB,piece_size={PIECE},{threads}")))
    };
    for (rotational, threads, few) in [
        (Some(true), "reading_threads=auto", true),
        (Some(true), "reading_threads=0", true),
        (Some(true), "reading_threads=6", false),
        (Some(false), "reading_threads=auto", false),
        (None, "reading_threads=auto", false),
    ] {
        let disk = Disk::new(bytes.clone(), rotational);
        let source: Arc<dyn Source> = Arc::new(disk.clone());
        let model = Arc::new(Model::from_parts(index.clone(), vec![source]).unwrap());
        let loaded = loader(threads).load_model(&model, on_host()).unwrap();
        assert_same(&loaded, &specs);
        let report = &loaded.report;
        let decision = report.decisions.iter().find(|decision| decision.what == "readers");
        assert_eq!(decision.is_some(), few, "{rotational:?} {threads}");
        if let Some(decision) = decision {
            assert_eq!(decision.chosen, report.reading_threads.to_string());
            assert_eq!(decision.reason, "the disk rotates");
            assert!(report.reading_threads <= 2);
            let reads = disk.take_reads();
            assert!(reads.len() > 90, "{} reads", reads.len());
            assert!(back(&reads) <= 1, "the head went back by {} pieces", back(&reads));
        }
        if threads.ends_with('6') {
            assert_eq!(report.reading_threads, 6);
        }
    }
}
