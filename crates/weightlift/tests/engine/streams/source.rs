//! A source in memory that is watched, and breaks where it is told to.

use std::io::{self, IoSliceMut};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::SeqCst};
use std::time::Duration;

use weightlift::{Error, ErrorKind, OpenSource, Result, Source};

#[derive(Debug)]
pub struct Watched(Arc<State>);

#[derive(Debug)]
struct State {
    content: Vec<u8>,
    slow: Duration,
    bad: AtomicU64,
    /// Whether all behind it is bad too.
    all_bad: AtomicBool,
    reads: AtomicU64,
    bytes: AtomicU64,
    active: AtomicU64,
    peak: AtomicU64,
    opened: AtomicU64,
    open: AtomicU64,
    most_open: AtomicU64,
}

impl Watched {
    pub fn new(content: Vec<u8>) -> Arc<Self> {
        Self::slow(content, Duration::ZERO)
    }

    /// Every read takes this long.
    pub fn slow(content: Vec<u8>, slow: Duration) -> Arc<Self> {
        let zero = AtomicU64::default;
        let (bad, most_open) = (u64::MAX.into(), u64::MAX.into());
        Arc::new(Self(Arc::new(State {
            content,
            slow,
            bad,
            all_bad: AtomicBool::new(false),
            reads: zero(),
            bytes: zero(),
            active: zero(),
            peak: zero(),
            opened: zero(),
            open: zero(),
            most_open,
        })))
    }

    /// The byte at `offset` cannot be read (EIO).
    pub fn break_at(&self, offset: u64) {
        self.0.bad.store(offset, SeqCst);
    }

    /// Nothing from `offset` on can be read.
    pub fn break_from(&self, offset: u64) {
        self.0.all_bad.store(true, SeqCst);
        self.break_at(offset);
    }

    pub fn mend(&self) {
        self.0.bad.store(u64::MAX, SeqCst);
    }

    /// So many may be open at once; more are too many open files (EMFILE).
    pub fn allow_open(&self, count: u64) {
        self.0.most_open.store(count, SeqCst);
    }

    pub fn reads(&self) -> u64 {
        self.0.reads.load(SeqCst)
    }

    /// Bytes read so far.
    pub fn bytes(&self) -> u64 {
        self.0.bytes.load(SeqCst)
    }

    /// Most reads that were under way at once.
    pub fn peak(&self) -> u64 {
        self.0.peak.load(SeqCst)
    }

    pub fn opened(&self) -> u64 {
        self.0.opened.load(SeqCst)
    }
}

impl Source for Watched {
    fn name(&self) -> &str {
        "watched"
    }

    fn length(&self) -> u64 {
        self.0.content.len() as u64
    }

    fn open(&self) -> Result<Box<dyn OpenSource>> {
        const EMFILE: i32 = 24;
        if self.0.open.fetch_add(1, SeqCst) >= self.0.most_open.load(SeqCst) {
            self.0.open.fetch_sub(1, SeqCst);
            let error = io::Error::from_raw_os_error(EMFILE);
            return Err(Error::new(ErrorKind::Io, "cannot open a file").because(error));
        }
        self.0.opened.fetch_add(1, SeqCst);
        Ok(Box::new(Open(self.0.clone())))
    }

    fn check_unchanged(&self) -> Result<()> {
        Ok(())
    }
}

struct Open(Arc<State>);

impl OpenSource for Open {
    fn read_at(&self, buffers: &mut [IoSliceMut<'_>], offset: u64) -> io::Result<usize> {
        const EIO: i32 = 5;
        let state = &*self.0;
        state.peak.fetch_max(state.active.fetch_add(1, SeqCst) + 1, SeqCst);
        state.reads.fetch_add(1, SeqCst);
        std::thread::sleep(state.slow);
        let bad = state.bad.load(SeqCst);
        let result = if offset == bad || (offset > bad && state.all_bad.load(SeqCst)) {
            Err(io::Error::from_raw_os_error(EIO))
        } else {
            let end = if offset < bad { bad } else { u64::MAX };
            let end = state.content.len().min(usize::try_from(end).unwrap());
            let mut rest = state.content.get(offset as usize..end).unwrap_or_default();
            io::Read::read_vectored(&mut rest, buffers)
        };
        state.bytes.fetch_add(*result.as_ref().unwrap_or(&0) as u64, SeqCst);
        state.active.fetch_sub(1, SeqCst);
        result
    }
}

impl Drop for Open {
    fn drop(&mut self) {
        self.0.open.fetch_sub(1, SeqCst);
    }
}
