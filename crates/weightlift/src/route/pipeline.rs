//! Read, stage, copy: one pipeline with three ends.
//!
//! Readers take the next piece from one counter. Who takes a block's first piece opens the
//! block: it gets a place for every piece, in the destination itself or in a block of the ring,
//! which may mean to wait until that block's last copy is over. Who finishes a block's last
//! piece submits its copies on the one copy stream. Nobody joins anybody, and nothing drains
//! until the end. The calling thread waits for the blocks in the order of their submission and
//! tells which have landed.

use std::collections::VecDeque;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::mpsc::RecvTimeoutError;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError, mpsc};
use std::time::{Duration, Instant};

use crate::error::{Error, ErrorKind, Result};
use crate::memory::{InFlight, OpenBlock, Place, Ring};
use crate::plan::Plan;
use crate::read::{Access, Auto, Claim, Completed, Kind, ReadPiece, Reader};
use crate::system::Threads;
use crate::verify::Checks;

use super::activity::Activity;
use super::targets::Targets;

/// How long a reader sleeps before it looks whether the load was stopped.
const STOP_POLL: Duration = Duration::from_millis(20);

/// What to do. Everything is shared with the readers, whose threads may have been there before
/// and are not bound to a scope.
pub(crate) struct Job {
    pub(crate) plan: Arc<Plan>,
    pub(crate) access: Arc<Access>,
    /// What tensors should be, if that is to be seen to.
    pub(crate) checks: Option<Arc<Checks>>,
    pub(crate) readers: usize,
    pub(crate) end: End,
    pub(crate) stop: Arc<Stop>,
}

/// Where pieces are read to.
pub(crate) enum End {
    /// Straight into the destinations: for every block, the places of its pieces.
    InPlace(Vec<VecDeque<Place>>),
    /// Into a ring, pinned or not, and from there by copies to the device.
    Staged(Staged),
}

/// The end that goes through staging memory.
#[derive(Clone)]
pub(crate) struct Staged {
    pub(crate) ring: Arc<Ring>,
    pub(crate) targets: Arc<Targets>,
}

/// Why readers stop early: an error of one of them, or the caller's wish.
pub(crate) struct Stop {
    flag: AtomicBool,
    error: Mutex<Option<Error>>,
    cancelled: Arc<Cancelled>,
}

/// Whether the caller wishes to stop.
pub(crate) type Cancelled = dyn Fn() -> bool + Send + Sync;

impl Stop {
    pub(crate) fn new(cancelled: Arc<Cancelled>) -> Self {
        Self { flag: AtomicBool::new(false), error: Mutex::new(None), cancelled }
    }

    pub(crate) fn is_set(&self) -> bool {
        self.flag.load(Ordering::Relaxed) || (self.cancelled)()
    }

    /// The first error is the one that counts; those after it are its consequences.
    pub(crate) fn fail(&self, error: Error) {
        lock(&self.error).get_or_insert(error);
        self.flag.store(true, Ordering::Relaxed);
    }

    fn result(&self) -> Result<()> {
        match lock(&self.error).take() {
            _ if (self.cancelled)() => {
                Err(Error::new(ErrorKind::Cancelled, "the load was cancelled"))
            }
            Some(error) => Err(error),
            None => Ok(()),
        }
    }
}

/// What a run took, as far as it came.
#[derive(Debug, Clone, Default)]
pub(crate) struct Measures {
    /// Bytes read, by source.
    pub(crate) read: Vec<u64>,
    /// Bytes of these that were read past the page cache.
    pub(crate) direct: u64,
    /// Threads that read.
    pub(crate) readers: usize,
    pub(crate) first_landed: Option<Instant>,
    pub(crate) last_landed: Option<Instant>,
    pub(crate) first_submitted: Option<Instant>,
    pub(crate) reading: Duration,
    pub(crate) verifying: Duration,
    pub(crate) waiting_for_disk: Duration,
    pub(crate) waiting_for_bus: Duration,
}

/// Runs `job`, on `threads` as far as there are enough of them already, which end with it.
/// `prepare` is called on this thread and provides the destinations of a staged end; where there
/// are reader threads they run already and fill the ring meanwhile. `landed` is called on this
/// thread for every block whose bytes are in place, in the order of submission, and `waiting` now
/// and then while there is none.
///
/// Whatever the outcome, no read and no copy of the job is under way when this returns; copies
/// whose end cannot be known have their memory on both sides quarantined.
pub(crate) fn run(
    job: Job,
    threads: &mut Threads,
    prepare: &mut Prepare<'_>,
    landed: &mut dyn FnMut(usize),
    waiting: &dyn Fn(),
) -> (Result<()>, Measures) {
    let readers = job.readers;
    let run = Arc::new(Run::new(job));
    let mut drain = Drain { staged: run.staged.clone(), armed: true };
    let mut collector = Collector { run: &run, landed, waiting, measures: Measures::default() };
    if readers <= 1 {
        collector.measures.readers = 1;
        run.alone(prepare, &mut collector);
    } else {
        Run::together(&run, readers, threads, prepare, &mut collector);
    }
    let mut measures = collector.measures;
    let result = run.stop.result();
    // After a good run every block's own end was waited for.
    drain.armed = result.is_err();
    drop(drain);
    run.access.drop_ahead();
    measures.read = run.read_bytes.iter().map(|bytes| bytes.load(Ordering::Relaxed)).collect();
    measures.direct = run.direct_bytes.load(Ordering::Relaxed);
    measures.verifying = nanoseconds(&run.verifying);
    // It counts as activity, so that nobody takes it for a wait for the device.
    measures.reading = run.activity.reading().saturating_sub(measures.verifying);
    measures.waiting_for_bus = nanoseconds(&run.waiting_for_bus);
    measures.first_submitted = *lock(&run.first_submitted);
    (result, measures)
}

/// Provides destinations.
pub(crate) type Prepare<'p> = dyn FnMut(&Meanwhile<'_>) -> Result<()> + 'p;

/// What goes on while somebody waits for the device.
pub(crate) struct Meanwhile<'m> {
    activity: &'m Activity,
    waiting: &'m dyn Fn(),
}

impl Meanwhile<'_> {
    /// For how long nobody has been reading so far.
    pub(crate) fn idle(&self) -> Duration {
        self.activity.idle()
    }

    /// Says that the calling thread waits; to be called every 20 ms.
    pub(crate) fn wait(&self) {
        (self.waiting)();
    }
}

struct Run {
    plan: Arc<Plan>,
    access: Arc<Access>,
    checks: Option<Arc<Checks>>,
    staged: Option<Staged>,
    stop: Arc<Stop>,
    next_piece: AtomicUsize,
    /// The next piece that could be read ahead.
    next_ahead: AtomicUsize,
    blocks: Vec<BlockState>,
    read_bytes: Vec<AtomicU64>,
    direct_bytes: AtomicU64,
    activity: Activity,
    /// Nanoseconds.
    verifying: AtomicU64,
    /// Nanoseconds.
    waiting_for_bus: AtomicU64,
    first_submitted: Mutex<Option<Instant>>,
}

/// A block on its way from its first piece to its last.
struct BlockState {
    /// Pieces that are not read yet.
    left: AtomicUsize,
    filling: Mutex<Filling>,
    opened: Condvar,
}

#[derive(Default)]
struct Filling {
    /// The ring's block, once the block's first piece was taken; never where pieces go
    /// straight to their destinations.
    block: Option<OpenBlock>,
    /// The pieces' places until readers take them; empty until the block is open.
    places: Vec<Option<Place>>,
    /// Whether somebody is opening it.
    opening: bool,
    /// Whether whoever opens it waits for the ring.
    waiting: bool,
}

/// A block that was opened, and the places of its pieces.
type Opened = (OpenBlock, Vec<Option<Place>>);

/// A block whose pieces are all read: on its way to the device, or in place.
type Submitted = (usize, Option<InFlight>);

impl Run {
    fn new(job: Job) -> Self {
        let (staged, mut in_place) = match job.end {
            End::InPlace(places) => (None, places.into_iter()),
            End::Staged(staged) => (Some(staged), Vec::new().into_iter()),
        };
        // For the blocks before it there is a place in the ring from the beginning.
        let beyond = staged.as_ref().map(|staged: &Staged| staged.ring.blocks() as usize);
        let first_ahead = beyond.and_then(|block| job.plan.blocks.get(block));
        let first_ahead = first_ahead.map_or(job.plan.pieces.len(), |block| block.pieces.start);
        let mut blocks = Vec::with_capacity(job.plan.blocks.len());
        for block in &job.plan.blocks {
            let places = in_place.next().unwrap_or_default().into_iter().map(Some).collect();
            let filling = Mutex::new(Filling { places, ..Filling::default() });
            let left = AtomicUsize::new(block.pieces.len());
            blocks.push(BlockState { left, filling, opened: Condvar::new() });
        }
        Self {
            read_bytes: job.access.sources().iter().map(|_| AtomicU64::new(0)).collect(),
            direct_bytes: AtomicU64::new(0),
            plan: job.plan,
            access: job.access,
            checks: job.checks,
            staged,
            stop: job.stop,
            next_piece: AtomicUsize::new(0),
            next_ahead: AtomicUsize::new(first_ahead),
            blocks,
            activity: Activity::default(),
            verifying: AtomicU64::new(0),
            waiting_for_bus: AtomicU64::new(0),
            first_submitted: Mutex::new(None),
        }
    }

    /// Reads on the calling thread. The oldest block is waited for only once as many are on
    /// their way as the ring has blocks: then the next one would wait for it anyway.
    fn alone(&self, prepare: &mut Prepare<'_>, collector: &mut Collector<'_, '_>) {
        self.activity.nobody_yet();
        let meanwhile = Meanwhile { activity: &self.activity, waiting: collector.waiting };
        if let Err(error) = prepare(&meanwhile) {
            return self.stop.fail(error);
        }
        let most = self.staged.as_ref().map_or(1, |staged| staged.ring.blocks() as usize);
        let mut on_their_way = VecDeque::new();
        let mut reader = Auto::new(&self.access);
        // Not caught here: a panic on the calling thread, mostly in the caller's own code, is the
        // caller's. `Drain` sees to what is under way.
        let read = self.read_pieces(&mut reader, &mut |submitted| {
            on_their_way.push_back(submitted);
            if on_their_way.len() >= most {
                on_their_way.pop_front().into_iter().for_each(|oldest| collector.land(oldest));
            }
        });
        if let Err(error) = read {
            self.stop.fail(error);
        }
        on_their_way.into_iter().for_each(|submitted| collector.land(submitted));
    }

    /// Reads on `readers` threads while the calling thread prepares and collects.
    fn together(
        run: &Arc<Self>,
        readers: usize,
        threads: &mut Threads,
        prepare: &mut Prepare<'_>,
        collector: &mut Collector<'_, '_>,
    ) {
        let (sender, receiver) = mpsc::channel();
        // As many as the system gives; without any the load fails.
        if let Err(error) = threads.start(readers) {
            let message = "cannot start a reader thread";
            let error = Error::new(ErrorKind::Io, message).with("reason", &error).because(error);
            run.stop.fail(error.hint("--reading-threads 1 needs none"));
        }
        // While some are still being started the others read. Should there be fewer in the end, what
        // is left over here finds nothing to do.
        for _ in 0..readers {
            let (run, sender) = (run.clone(), sender.clone());
            let work = Box::new(move || {
                run.work(&mut Auto::new(&run.access), &mut |submitted| {
                    // The receiver outlives the readers, or the caller panicked: then the ring
                    // and the drain see to what is under way.
                    let _ = sender.send(submitted);
                });
                // The collector takes the senders' end for the end of everything that readers do
                // and hold.
                drop(run);
                drop(sender);
            });
            threads.give(work);
        }
        threads.close();
        drop(sender);
        // Should the caller's code panic below, the readers are to stop, and they are waited for.
        let _stop = StopOnPanic { stop: &run.stop, receiver: &receiver };
        let meanwhile = Meanwhile { activity: &run.activity, waiting: collector.waiting };
        if let Err(error) = prepare(&meanwhile) {
            run.stop.fail(error);
        }
        collector.collect(&receiver);
        collector.measures.readers = readers.min(threads.count());
    }

    /// What a reader does until there is nothing left to take.
    fn work(&self, reader: &mut Auto<'_>, submitted: &mut dyn FnMut(Submitted)) {
        let worked = catch_unwind(AssertUnwindSafe(|| self.read_pieces(reader, submitted)));
        let died =
            || Error::new(ErrorKind::Internal, "a reader thread died").hint("please report it");
        match worked {
            Ok(Ok(())) => {}
            Ok(Err(error)) => self.stop.fail(error),
            Err(_) => self.stop.fail(died()),
        }
    }

    fn read_pieces(
        &self,
        reader: &mut Auto<'_>,
        submitted: &mut dyn FnMut(Submitted),
    ) -> Result<()> {
        if let Some(staged) = &self.staged {
            staged.ring.touch();
        }
        let mut under_way = 0;
        // Taken, but there was no place for it yet.
        let mut taken = None;
        // Blocks that are read whole and not handed over yet.
        let mut whole = Vec::new();
        let mut more_ahead = true;
        loop {
            while under_way < reader.depth() && !self.stop.is_set() {
                let next = || self.next_piece.fetch_add(1, Ordering::Relaxed);
                let number = taken.take().unwrap_or_else(next);
                let Some(piece) = self.plan.pieces.get(number) else { break };
                // Who has reads under way does not wait for a block: it may be that those must
                // end, and be taken note of, for a block to become free.
                let idle = under_way == 0 && whole.is_empty();
                let wait = idle && (self.is_ready() || !more_ahead);
                let Some(mut place) = self.place(number, wait)? else {
                    taken = Some(number);
                    break;
                };
                place.touch();
                let (source, offset) = (piece.source.0 as usize, piece.offset);
                self.activity.begin();
                reader.submit(ReadPiece { piece: number, source, offset }, place);
                under_way += 1;
            }
            let completed = reader.complete();
            let reads_on = completed.is_some();
            if let Some(completed) = completed {
                under_way -= 1;
                let completed = self.verify(completed);
                self.activity.end();
                whole.extend(self.completed(completed?)?);
            }
            // Until the device is there, handing over is a long wait. Reads that are under way
            // would end in it without anybody taking note, and the clock would count it as
            // reading; and there may be more to read.
            if self.is_ready() || !(reads_on || more_ahead) || self.stop.is_set() {
                for block in whole.drain(..) {
                    submitted((block, self.hand_over(block)?));
                }
            }
            if reads_on {
                continue;
            }
            if whole.is_empty() && (taken.is_none() || self.stop.is_set()) {
                return Ok(());
            }
            more_ahead = more_ahead && self.read_ahead(reader);
        }
    }

    /// Whether blocks can be handed over without a wait for the device.
    fn is_ready(&self) -> bool {
        self.staged.as_ref().is_none_or(|staged| staged.targets.queue().is_some())
    }

    /// Reads the next piece that the ring has no place for into the page cache, while the device
    /// starts. Whether there may be more.
    fn read_ahead(&self, reader: &mut Auto<'_>) -> bool {
        while !self.is_ready() && !self.stop.is_set() {
            let number = self.next_ahead.fetch_add(1, Ordering::Relaxed);
            let Some(piece) = self.plan.pieces.get(number) else { return false };
            let source = piece.source.0 as usize;
            match self.access.claim_ahead(source, piece.offset, piece.length) {
                Claim::Not => {}
                Claim::NoneAnyMore => return false,
                Claim::Read => {
                    self.activity.begin();
                    reader.read_ahead(source, piece.offset, piece.length);
                    self.activity.end();
                    break;
                }
            }
        }
        true
    }

    /// The place of piece `number`. Who asks first for a block's places opens the block; others
    /// of the same block wait meanwhile. `None` where the ring has no block, and to wait for one is
    /// not wished.
    fn place(&self, number: usize, wait: bool) -> Result<Option<Place>> {
        let block = self.plan.pieces[number].block;
        let state = &self.blocks[block];
        let mut filling = lock(&state.filling);
        while let (Some(staged), true) = (&self.staged, filling.places.is_empty()) {
            if filling.opening && filling.waiting && !wait {
                return Ok(None);
            }
            if filling.opening {
                filling = self.wait_for_opening(state, filling)?;
                continue;
            }
            (filling.opening, filling.waiting) = (true, wait);
            drop(filling);
            let opened = self.open(block, staged, wait);
            filling = lock(&state.filling);
            filling.opening = false;
            state.opened.notify_all();
            let Some((open, places)) = opened? else { return Ok(None) };
            (filling.block, filling.places) = (Some(open), places);
        }
        let first = self.plan.blocks[block].pieces.start;
        let place = filling.places.get_mut(number - first).and_then(Option::take);
        place.map(Some).ok_or_else(|| {
            Error::new(ErrorKind::Internal, "a piece was taken twice").with("piece", number)
        })
    }

    /// Takes a block of the ring, with a place for every piece; `None` where none is free and
    /// waiting is not wished.
    fn open(&self, block: usize, staged: &Staged, wait: bool) -> Result<Option<Opened>> {
        let started = Instant::now();
        let open = match wait {
            true => staged.ring.acquire(&|| self.stop.is_set()).map(Some),
            false => staged.ring.try_acquire(),
        };
        add(&self.waiting_for_bus, started);
        let Some(mut open) = open? else { return Ok(None) };
        let pieces = self.plan.pieces_of(block).iter();
        let places = pieces.map(|piece| open.place(piece.block_offset, piece.length).map(Some));
        let places = places.collect::<Result<_>>()?;
        Ok(Some((open, places)))
    }

    fn wait_for_opening<'f>(
        &self,
        state: &BlockState,
        filling: MutexGuard<'f, Filling>,
    ) -> Result<MutexGuard<'f, Filling>> {
        if self.stop.is_set() {
            return Err(Error::new(ErrorKind::Cancelled, "the load was stopped"));
        }
        // All are woken at once: if each woke the next, as those who wait for a lock do, the last
        // of a dozen would begin a read's time after the first.
        let waited = state.opened.wait_timeout(filling, STOP_POLL);
        Ok(waited.unwrap_or_else(PoisonError::into_inner).0)
    }

    /// Compares a piece with what it should be, if that is to be done, while it is in the
    /// processor's cache and its place is this reader's alone.
    fn verify(&self, mut completed: Completed) -> Result<Completed> {
        if let (Some(checks), Ok(_)) = (&self.checks, &completed.result) {
            let started = Instant::now();
            let buffers = completed.place.buffers(0, usize::MAX, usize::MAX);
            let buffers = buffers.iter().map(|buffer| &**buffer);
            let verified = checks.piece(&self.plan, completed.piece, buffers);
            add(&self.verifying, started);
            verified?;
        }
        Ok(completed)
    }

    /// Counts a piece; the number of its block if that was the last one of it.
    fn completed(&self, completed: Completed) -> Result<Option<usize>> {
        let kind = completed.result?;
        let piece = &self.plan.pieces[completed.piece];
        if kind == Kind::Direct {
            self.direct_bytes.fetch_add(piece.length, Ordering::Relaxed);
        }
        self.read_bytes[piece.source.0 as usize].fetch_add(piece.length, Ordering::Relaxed);
        // Before the count: whoever counts the last piece finds all places gone.
        drop(completed.place);
        let left = self.blocks[piece.block].left.fetch_sub(1, Ordering::AcqRel);
        Ok((left == 1).then_some(piece.block))
    }

    fn hand_over(&self, block: usize) -> Result<Option<InFlight>> {
        self.staged.as_ref().map(|staged| self.submit(block, staged)).transpose()
    }

    fn submit(&self, block: usize, staged: &Staged) -> Result<InFlight> {
        let open = lock(&self.blocks[block].filling).block.take();
        let open = open.ok_or_else(|| Error::new(ErrorKind::Internal, "a block ended twice"))?;
        let filled = open.seal()?;
        let copies = staged.targets.copies(self.plan.copies_of(block), &|| self.stop.is_set())?;
        let queue = staged.targets.queue();
        let queue =
            queue.ok_or_else(|| Error::new(ErrorKind::Internal, "places without a queue"))?;
        lock(&self.first_submitted).get_or_insert_with(Instant::now);
        filled.submit(|source| queue.submit(source, &copies))
    }
}

/// Waits for blocks in the order of their submission.
struct Collector<'a, 'l> {
    run: &'a Run,
    landed: &'l mut dyn FnMut(usize),
    waiting: &'l dyn Fn(),
    measures: Measures,
}

impl Collector<'_, '_> {
    /// Until every reader is gone.
    fn collect(&mut self, submitted: &mpsc::Receiver<Submitted>) {
        loop {
            let started = Instant::now();
            let next = loop {
                match submitted.recv_timeout(STOP_POLL) {
                    Ok(next) => break next,
                    Err(RecvTimeoutError::Timeout) => (self.waiting)(),
                    Err(RecvTimeoutError::Disconnected) => return,
                }
            };
            // Every block before this one has landed: in this time nothing was on its way.
            self.measures.waiting_for_disk += started.elapsed();
            self.land(next);
        }
    }

    fn land(&mut self, (block, in_flight): Submitted) {
        match in_flight.map_or(Ok(()), InFlight::land) {
            Ok(()) => {
                let now = Instant::now();
                self.measures.first_landed.get_or_insert(now);
                self.measures.last_landed = Some(now);
                (self.landed)(block);
            }
            Err(error) => self.run.stop.fail(error),
        }
    }
}

/// Waits for all copies when a run did not end well, also by a panic. Where even that fails
/// the destinations are given up: somebody may still be writing to them.
struct Drain {
    staged: Option<Staged>,
    armed: bool,
}

impl Drop for Drain {
    fn drop(&mut self) {
        if let (Some(staged), true) = (&self.staged, self.armed)
            && staged.targets.queue().is_some_and(|queue| queue.drain().is_err())
        {
            staged.targets.quarantine();
        }
    }
}

struct StopOnPanic<'a> {
    stop: &'a Stop,
    receiver: &'a mpsc::Receiver<Submitted>,
}

impl Drop for StopOnPanic<'_> {
    fn drop(&mut self) {
        if std::thread::panicking() {
            self.stop.flag.store(true, Ordering::Relaxed);
            // Until every reader is gone.
            self.receiver.iter().for_each(drop);
        }
    }
}

fn add(sum: &AtomicU64, started: Instant) {
    sum.fetch_add(started.elapsed().as_nanos() as u64, Ordering::Relaxed);
}

fn nanoseconds(sum: &AtomicU64) -> Duration {
    Duration::from_nanos(sum.load(Ordering::Relaxed))
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
