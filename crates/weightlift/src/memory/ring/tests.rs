use std::sync::Mutex;

use super::*;

type Log = Arc<Mutex<Vec<&'static str>>>;

#[derive(Debug)]
struct Pinned {
    log: Log,
    works: bool,
}

impl Registration for Pinned {
    fn unregister(&mut self) -> bool {
        self.log.lock().unwrap().push("unregister");
        self.works
    }

    fn abandon(&mut self) {
        self.log.lock().unwrap().push("abandon");
    }
}

struct Pins {
    log: Log,
    unregisters: bool,
}

impl Registrar for Pins {
    fn register(&self, _: HostRange) -> Result<Box<dyn Registration>> {
        Ok(Box::new(Pinned { log: self.log.clone(), works: self.unregisters }))
    }
}

#[derive(Debug)]
struct Ends(bool);

impl Completion for Ends {
    fn wait(&self) -> Result<()> {
        if self.0 { Ok(()) } else { Err(Error::new(ErrorKind::Cuda, "lost")) }
    }
}

fn ring(blocks: u64) -> (Arc<Ring>, Arc<Quarantine>, Log) {
    let quarantine = Arc::new(Quarantine::default());
    let log = Log::default();
    let mut ring = Ring::new(blocks, 8192, quarantine.clone()).unwrap();
    ring.pin(&Pins { log: log.clone(), unregisters: true }).unwrap();
    (Arc::new(ring), quarantine, log)
}

fn write(place: &mut Place, byte: u8) {
    place.buffers(0, usize::MAX, 8).iter_mut().for_each(|buffer| buffer.fill(byte));
}

#[test]
fn places_are_parts_of_their_block_and_the_copy_sees_them() {
    let (ring, quarantine, log) = ring(2);
    let mut open = ring.acquire(&|| false).unwrap();
    let mut first = open.place(3, 5).unwrap();
    let mut second = open.place(8, 4).unwrap();
    assert_eq!((first.len(), second.len()), (5, 4));
    write(&mut first, 1);
    write(&mut second, 2);
    assert!(open.place(11, 1).is_err(), "a place that was given out");
    assert!(open.place(8190, 3).is_err(), "a place past the end");
    drop((first, second));
    let filled = open.seal().unwrap();
    let mut seen = 0;
    let in_flight = filled
        .submit(|range| {
            seen = range.length;
            Ok(Arc::new(Ends(true)))
        })
        .unwrap();
    assert_eq!(seen, 8192);
    in_flight.land().unwrap();
    assert_eq!(ring.take_peak(), 8192);
    drop(ring);
    assert_eq!((quarantine.bytes(), log.lock().unwrap().as_slice()), (0, &["unregister"][..]));
}

#[test]
fn a_block_cannot_be_sealed_while_somebody_may_write_to_it() {
    let (ring, ..) = ring(1);
    let mut open = ring.acquire(&|| false).unwrap();
    let place = open.place(0, 10).unwrap();
    assert!(open.seal().is_err());
    let stopped = std::cell::Cell::new(0);
    let wait = || {
        stopped.set(stopped.get() + 1);
        stopped.get() > 2
    };
    assert!(ring.acquire(&wait).is_err(), "the place still has the block");
    drop(place);
    ring.acquire(&|| false).expect("and with the place it is free again");
}

#[test]
fn copies_that_failed_to_start_free_the_block_only_if_none_runs() {
    let (ring, quarantine, _) = ring(2);
    for idle in [true, false] {
        let filled = ring.acquire(&|| false).unwrap().seal().unwrap();
        let error = Error::new(ErrorKind::Cuda, "no");
        assert!(filled.submit(|_| Err(SubmitError { error, idle })).is_err());
        assert_eq!(ring.is_whole(), idle);
    }
    let bytes = ring.bytes();
    drop(ring);
    assert_eq!(quarantine.bytes(), bytes, "a ring that may still be read stays mapped");
}

#[test]
fn a_ring_dropped_with_copies_under_way_waits_for_them() {
    for ends in [true, false] {
        let (ring, quarantine, log) = ring(1);
        let filled = ring.acquire(&|| false).unwrap().seal().unwrap();
        let in_flight = filled.submit(|_| Ok(Arc::new(Ends(ends)))).unwrap();
        drop(ring);
        drop(in_flight);
        assert_eq!(quarantine.bytes() > 0, !ends);
        let last = if ends { "unregister" } else { "abandon" };
        assert_eq!(log.lock().unwrap().as_slice(), [last], "no unpinning under a copy");
    }
}

#[test]
fn memory_that_stays_pinned_stays_mapped() {
    let quarantine = Arc::new(Quarantine::default());
    let mut ring = Ring::new(1, 4096, quarantine.clone()).unwrap();
    ring.pin(&Pins { log: Log::default(), unregisters: false }).unwrap();
    drop(ring);
    assert_eq!(quarantine.bytes(), 4096);
}
