//! What is read ahead of a stream's position: a row of blocks, filled by threads of its own.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{self, Receiver};
use std::sync::{Arc, Mutex, PoisonError};

use super::handles::{Handles, Short};
use crate::error::{Error, ErrorKind, Result};
use crate::system::{PAGE, Threads};

/// The unit of what is read where nothing shows yet that the reading goes on from here. It begins
/// and ends at multiples of it, so that whoever reads backwards finds the next there too.
const SCATTERED: usize = 8 << 10;

/// What is read when it does.
const FIRST: usize = 64 << 10;

/// From this reach on, or that of a smaller window, other threads read ahead: a header of a few
/// hundred KiB starts none.
const PARALLEL: u64 = 512 << 10;

/// Largest block: what somebody who seeks away waits for, and the unit that threads share.
const LARGEST_BLOCK: usize = 1 << 20;

/// The blocks from shortly before the position to as far as is read ahead, without a gap.
///
/// `reach`, how far that is, begins at 64 KiB, doubles with every block that the reading goes
/// through from end to end, and begins anew after a seek to elsewhere: random reads cost their own
/// pages and a few more, and long ones get the whole window.
pub(super) struct Window {
    handles: Arc<Handles>,
    blocks: VecDeque<Block>,
    /// Reads under way that nobody waits for any more. Their memory is the window's until they end.
    unwanted: VecDeque<Coming>,
    free: Vec<Vec<u8>>,
    /// Buffers that exist, wherever they are; never more than `most`, each of `block` bytes or less.
    made: usize,
    most: usize,
    block: usize,
    reach: u64,
    /// Where the block begins that was read from last.
    entered: u64,
    /// Where the stream begins and ends in the source.
    start: u64,
    end: u64,
    /// Rises when all reads under way have become unwanted: those not begun are left out.
    generation: Arc<AtomicU64>,
    threads: Threads,
    workers: usize,
}

struct Block {
    offset: u64,
    length: usize,
    filled: Filled,
    /// Where `filled` will come from, while a thread has it.
    coming: Option<Coming>,
}

/// Behind a lock only so that the stream can be shared: it is never contended.
type Coming = Mutex<Receiver<Filled>>;

/// A buffer with the bytes that came, and why there are not more.
#[derive(Default)]
struct Filled {
    buffer: Vec<u8>,
    count: usize,
    error: Option<Error>,
}

impl Block {
    fn end(&self) -> u64 {
        self.offset + self.length as u64
    }
}

impl Window {
    /// A window of at most `bytes`, at least a page, over `start..end` of the source.
    pub(super) fn new(
        handles: Arc<Handles>,
        (start, end): (u64, u64),
        bytes: u64,
        readers: usize,
    ) -> Self {
        let bytes = usize::try_from(bytes).unwrap_or(usize::MAX).max(PAGE);
        // Twice as many blocks as readers: half of them are being filled while the others wait
        // to be read.
        let block = (bytes / (2 * readers)).clamp(PAGE, LARGEST_BLOCK);
        let block = 1 << block.ilog2();
        let most = bytes / block;
        // One reader is the calling thread.
        let workers = if readers > 1 { readers.min(most - 1) } else { 0 };
        Self {
            handles,
            blocks: VecDeque::new(),
            unwanted: VecDeque::new(),
            free: Vec::new(),
            made: 0,
            most,
            block,
            reach: 0,
            entered: 0,
            start,
            end,
            generation: Arc::default(),
            threads: Threads::default(),
            workers,
        }
    }

    /// Whether it holds the byte at `at`, or is about to.
    pub(super) fn covers(&self, at: u64) -> bool {
        self.blocks.front().is_some_and(|first| first.offset <= at)
            && self.blocks.back().is_some_and(|last| at < last.end())
    }

    /// Whether other threads read ahead.
    pub(super) fn reads_ahead(&self) -> bool {
        self.workers > 0
    }

    /// How much is read first where the reading goes on: whoever wants that much elsewhere needs no
    /// window.
    pub(super) fn smallest(&self) -> usize {
        FIRST.min(self.block)
    }

    /// The bytes at `at`, before the end, as many as lie there in one piece: at least one, and
    /// `want` if that suits.
    ///
    /// `sequential` says that the last read ended here; `ahead`, that more should be read ahead.
    /// After an error the window is empty: what comes next is read anew.
    pub(super) fn bytes(
        &mut self,
        at: u64,
        want: usize,
        sequential: bool,
        ahead: bool,
    ) -> Result<&[u8]> {
        if !self.covers(at) {
            self.begin(at, want, sequential)?;
        }
        // The block before this one stays for those who step back a little.
        let behind = usize::from(self.most > 2);
        let mut index = self.blocks.iter().take_while(|block| block.end() <= at).count();
        while index > behind {
            self.retire_first();
            index -= 1;
        }
        let offset = self.blocks[index].offset;
        if sequential && ahead {
            if offset > self.entered {
                self.grow();
            }
            self.read_ahead(at)?;
        }
        self.entered = offset;
        let mut skip = (at - offset) as usize;
        self.settle(index);
        if self.blocks[index].filled.count < skip {
            // What cannot be read lies before `at`, where nobody asked for it.
            self.clear();
            self.read_here(at, 1, end_of_block(at, SCATTERED.min(self.block)))?;
            (index, skip) = (0, 0);
        }
        let block = &mut self.blocks[index];
        if block.filled.count == skip {
            let died = || Error::new(ErrorKind::Internal, "a thread that read ahead died");
            let error = block.filled.error.take().unwrap_or_else(died);
            self.clear();
            return Err(error);
        }
        let Filled { buffer, count, .. } = &self.blocks[index].filled;
        Ok(&buffer[skip..*count])
    }

    /// Forgets all; the next block is a small one again.
    pub(super) fn clear(&mut self) {
        if self.blocks.iter().any(|block| block.coming.is_some()) {
            self.generation.fetch_add(1, Ordering::Relaxed);
        }
        while !self.blocks.is_empty() {
            self.retire_first();
        }
        self.reach = 0;
    }

    /// Makes the block that holds `at` the window's next, or its only one.
    fn begin(&mut self, at: u64, want: usize, sequential: bool) -> Result<()> {
        let goes_on = self.blocks.back().is_some_and(|last| last.end() == at);
        if !(sequential && goes_on) {
            self.clear();
        }
        self.entered = at;
        if !sequential {
            let unit = SCATTERED.min(self.block);
            return self.read_here(at, unit, end_of_block(at.saturating_add(want as u64), unit));
        }
        self.grow();
        self.read_ahead(at)?;
        if self.covers(at) {
            return Ok(());
        }
        self.read_here(at, PAGE, end_of_block(at, self.block.min(self.reach as usize)))
    }

    /// Reads a block that holds `at` and goes to `end`, on this thread.
    fn read_here(&mut self, at: u64, unit: usize, end: u64) -> Result<()> {
        let offset = self.next_offset(at, unit);
        let length = (end.min(self.end) - offset).min(self.block as u64) as usize;
        let buffer = self.buffer(length.max(self.smallest()))?;
        let mut filled = Filled { buffer, ..Filled::default() };
        filled.fill(&self.handles, offset, length);
        self.blocks.push_back(Block { offset, length, filled, coming: None });
        Ok(())
    }

    fn grow(&mut self) {
        self.reach = (self.reach * 2).clamp(self.smallest() as u64, self.size());
    }

    fn size(&self) -> u64 {
        (self.most * self.block) as u64
    }

    /// Has threads read what is missing of the reach.
    fn read_ahead(&mut self, at: u64) -> Result<()> {
        if self.reach < PARALLEL.min(self.size()) || self.workers == 0 {
            return Ok(());
        }
        let until = self.end.min(at.saturating_add(self.reach));
        let size = (self.reach as usize / (2 * self.workers)).clamp(self.smallest(), self.block);
        let size = 1 << size.ilog2();
        loop {
            let next = self.blocks.back().map_or(at, Block::end);
            if next >= until {
                return Ok(());
            }
            if self.threads.start(self.workers).is_err() {
                self.workers = 0;
                return Ok(());
            }
            let needed = next <= at;
            if !needed && !self.has_buffer() {
                return Ok(());
            }
            let buffer = match self.buffer(size) {
                Err(error) if needed => return Err(error),
                // Reading ahead can wait until there is memory.
                Err(_) => return Ok(()),
                Ok(buffer) => buffer,
            };
            let offset = self.next_offset(next, PAGE);
            let length = (end_of_block(next, size).min(self.end) - offset) as usize;
            let (sender, receiver) = mpsc::sync_channel(1);
            let (handles, generation) = (self.handles.clone(), self.generation.clone());
            let wanted = generation.load(Ordering::Relaxed);
            self.threads.give(Box::new(move || {
                let mut filled = Filled { buffer, ..Filled::default() };
                if generation.load(Ordering::Relaxed) == wanted {
                    filled.fill(&handles, offset, length);
                }
                // Nobody may be waiting any more.
                let _ = sender.send(filled);
            }));
            let (filled, coming) = (Filled::default(), Some(Mutex::new(receiver)));
            self.blocks.push_back(Block { offset, length, filled, coming });
        }
    }

    /// Where a block begins that holds `at`: where the one before ends, or at a multiple of `unit`.
    fn next_offset(&self, at: u64, unit: usize) -> u64 {
        match self.blocks.back() {
            Some(last) => last.end(),
            None => (at / unit as u64 * unit as u64).max(self.start),
        }
    }

    /// Waits until the block is filled.
    fn settle(&mut self, index: usize) {
        let block = &mut self.blocks[index];
        if let Some(mut coming) = block.coming.take() {
            block.filled = wait_for(&mut coming).unwrap_or_default();
        }
    }

    /// Takes the first block out; its buffer is free, or will be.
    fn retire_first(&mut self) {
        let Some(block) = self.blocks.pop_front() else { return };
        match block.coming {
            Some(coming) => self.unwanted.push_back(coming),
            None => self.free.push(block.filled.buffer),
        }
    }

    /// Whether there is a buffer to be had without waiting and without taking a block's.
    fn has_buffer(&mut self) -> bool {
        while self.free.is_empty() {
            let Some(coming) = self.unwanted.front_mut() else { break };
            let receiver = coming.get_mut().unwrap_or_else(PoisonError::into_inner);
            match receiver.try_recv() {
                Ok(filled) => self.free.push(filled.buffer),
                Err(mpsc::TryRecvError::Empty) => break,
                Err(mpsc::TryRecvError::Disconnected) => self.made -= 1,
            }
            self.unwanted.pop_front();
        }
        !self.free.is_empty() || self.made < self.most
    }

    /// A buffer of at least `size` bytes, a block at the most. Waits for one, or takes that of the
    /// first block, where the window has no more.
    fn buffer(&mut self, size: usize) -> Result<Vec<u8>> {
        while !self.has_buffer() {
            if let Some(mut coming) = self.unwanted.pop_front() {
                match wait_for(&mut coming) {
                    Some(filled) => self.free.push(filled.buffer),
                    None => self.made -= 1,
                }
            } else if self.blocks.is_empty() {
                return Err(Error::new(ErrorKind::Internal, "the window lost its memory"));
            } else {
                self.retire_first();
            }
        }
        if let Some(position) = self.free.iter().position(|buffer| buffer.capacity() >= size) {
            return Ok(self.free.swap_remove(position));
        }
        if self.made == self.most {
            // All of them are small ones, of the window's beginnings.
            self.free.pop();
            self.made -= 1;
        }
        let mut buffer = Vec::new();
        buffer.try_reserve_exact(size).map_err(|error| out_of_memory(size as u64, error))?;
        self.made += 1;
        debug_assert!(self.made <= self.most, "more memory than the window");
        Ok(buffer)
    }
}

impl Filled {
    fn fill(&mut self, handles: &Handles, offset: u64, length: usize) {
        if self.buffer.len() < length {
            self.buffer.resize(length, 0);
        }
        match handles.read(&mut self.buffer[..length], offset) {
            Ok(()) => self.count = length,
            Err(Short { done, error }) => (self.count, self.error) = (done, Some(error)),
        }
    }
}

impl Drop for Window {
    fn drop(&mut self) {
        // What the threads have not begun is left out; what they have is waited for.
        self.generation.fetch_add(1, Ordering::Relaxed);
    }
}

/// Blocks of `size` bytes end at multiples of it.
fn end_of_block(at: u64, size: usize) -> u64 {
    (at / size as u64 + 1).saturating_mul(size as u64)
}

/// `None` if whoever was to send it died.
fn wait_for(coming: &mut Coming) -> Option<Filled> {
    coming.get_mut().unwrap_or_else(PoisonError::into_inner).recv().ok()
}

pub(super) fn out_of_memory(bytes: u64, error: std::collections::TryReserveError) -> Error {
    Error::new(ErrorKind::OutOfHostMemory, "there is not enough memory to read into")
        .with("bytes", bytes)
        .with("reason", &error)
        .because(error)
}
