//! A source in memory that misbehaves on purpose.

use std::io::{self, IoSliceMut};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use weightlift::{Error, ErrorKind, OpenSource, Result, Source};

/// How a source misbehaves.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Fault {
    /// Not at all.
    #[default]
    None,
    /// Every read comes short: 1 to n bytes.
    Short(u64),
    /// Every second read is interrupted by a signal first.
    Interrupted,
    /// So many reads in a row say that they would block, then one works, and so on.
    WouldBlock(u64),
    /// The n-th read, counted from 1, fails with this error of the operating system.
    Errno(u64, i32),
    /// From the n-th read on every read finds the end of the file.
    Ends(u64),
    /// Every read finds its handle stale, as on NFS.
    Stale,
    /// Every read takes this long.
    Slow(Duration),
    /// The n-th read panics.
    Panics(u64),
}

/// A source in memory. Shared by its readers, so that counts are over all of them.
#[derive(Debug)]
pub struct Faulty {
    state: Arc<State>,
}

#[derive(Debug)]
struct State {
    name: String,
    bytes: Vec<u8>,
    fault: Fault,
    reads: AtomicU64,
    opened: AtomicU64,
    changed: AtomicBool,
}

impl Faulty {
    /// A source that holds `bytes`.
    pub fn new(name: impl Into<String>, bytes: Vec<u8>, fault: Fault) -> Self {
        let (reads, opened) = (AtomicU64::new(0), AtomicU64::new(0));
        let changed = AtomicBool::new(false);
        let state = State { name: name.into(), bytes, fault, reads, opened, changed };
        Self { state: Arc::new(state) }
    }

    /// Reads so far.
    pub fn reads(&self) -> u64 {
        self.state.reads.load(Ordering::Relaxed)
    }

    /// How often it was opened.
    pub fn opened(&self) -> u64 {
        self.state.opened.load(Ordering::Relaxed)
    }

    /// From now on the source is not what it was.
    pub fn change(&self) {
        self.state.changed.store(true, Ordering::Relaxed);
    }
}

impl Source for Faulty {
    fn name(&self) -> &str {
        &self.state.name
    }

    fn length(&self) -> u64 {
        self.state.bytes.len() as u64
    }

    fn open(&self) -> Result<Box<dyn OpenSource>> {
        self.check_unchanged()?;
        self.state.opened.fetch_add(1, Ordering::Relaxed);
        Ok(Box::new(Opened(self.state.clone())))
    }

    fn check_unchanged(&self) -> Result<()> {
        if self.state.changed.load(Ordering::Relaxed) {
            return Err(
                Error::new(ErrorKind::Changed, "the source changed").with("file", self.name())
            );
        }
        Ok(())
    }
}

struct Opened(Arc<State>);

impl OpenSource for Opened {
    fn read_at(&self, buffers: &mut [IoSliceMut<'_>], offset: u64) -> io::Result<usize> {
        let number = self.0.reads.fetch_add(1, Ordering::Relaxed) + 1;
        let mut most = u64::MAX;
        match self.0.fault {
            Fault::Short(longest) => most = 1 + number.wrapping_mul(0x9e37_79b9) % longest,
            Fault::Interrupted if number % 2 == 1 => return Err(io::ErrorKind::Interrupted.into()),
            Fault::WouldBlock(times) if !number.is_multiple_of(times + 1) => {
                return Err(io::ErrorKind::WouldBlock.into());
            }
            Fault::Errno(nth, errno) if number == nth => {
                return Err(io::Error::from_raw_os_error(errno));
            }
            Fault::Stale => return Err(io::ErrorKind::StaleNetworkFileHandle.into()),
            Fault::Ends(nth) if number >= nth => most = 0,
            Fault::Slow(time) => std::thread::sleep(time),
            Fault::Panics(nth) if number == nth => panic!("a source that panics"),
            _ => {}
        }
        let mut at = usize::try_from(offset).unwrap_or(usize::MAX).min(self.0.bytes.len());
        let mut done = 0;
        for buffer in buffers {
            let room = (most - done as u64).min(buffer.len() as u64) as usize;
            let count = room.min(self.0.bytes.len() - at);
            buffer[..count].copy_from_slice(&self.0.bytes[at..at + count]);
            at += count;
            done += count;
            if count < buffer.len() {
                break;
            }
        }
        Ok(done)
    }
}
