//! Several reads under way on one thread, by io_uring.
#![allow(unsafe_code)] // the kernel writes to places while their reads are under way

use std::collections::VecDeque;
use std::io;
use std::os::fd::AsRawFd;
use std::rc::Rc;
use std::sync::{Arc, OnceLock};

use io_uring::{IoUring, Probe, opcode, types};
use rustix::io::Errno;

use super::access::{Access, BUFFER};
use super::direct_linux::{self, Direct, Opened, Trouble, useful};
use super::fixed_linux::Fixed;
use super::retry::{Attempts, Next, failed};
use super::spans::{self, Span, To};
use super::{Completed, Kind, ReadPiece, Reader};
use crate::error::{Error, ErrorKind, Result};
use crate::memory::{HostRange, Place, Region};
use crate::source;

/// Reads under way at once. A disk that takes requests in parallel is kept busy by a few long
/// ones of each of several threads; more would only hold more of the ring of staging blocks.
const DEPTH: usize = 4;

/// Entries of a queue that are asked for at first. Each costs memory that counts as locked for a
/// user without privileges: with a limit of 64 KiB, 8 were granted where 4096 were not.
const MOST_ENTRIES: u32 = 64;
/// And at last.
const FEWEST_ENTRIES: u32 = 8;

/// A reader with a queue of its own, for reads of either kind. Direct reads follow the same rules
/// as those of [`Direct`]; where a source has none it is read through the cache, by the same queue.
///
/// What is read into belongs to the reader until the kernel has said that the read is over:
/// neither an error nor a drop of the reader gives it back before.
pub(crate) struct Uring<'a> {
    access: &'a Access,
    kind: Kind,
    queue: IoUring,
    /// Reads under way, by the number that the queue knows them by; as many as there may be.
    slots: Vec<Option<UnderWay>>,
    /// Whether there are entries that the kernel does not know of yet.
    unsent: bool,
    /// Why the queue can be used no more.
    lost: Option<Error>,
    attempts: Attempts,
    /// The source that was opened last.
    open: Option<(usize, Rc<Opened>)>,
    /// `BUFFER` bytes for each slot. Mapped when they are first needed, in one region, so that it is
    /// made of huge pages: see [`BUFFER`].
    buffers: Option<Region>,
    pub(super) fixed: Fixed,
    /// Reads what has no descriptor.
    plain: Direct<'a>,
    done: VecDeque<Completed>,
    #[cfg(test)]
    pub(super) faults: Faults,
}

/// What tests change of the kernel's answers.
#[cfg(test)]
#[derive(Default)]
pub(super) struct Faults {
    pub(super) result: Option<Box<dyn FnMut(i32) -> i32>>,
    pub(super) enter: Option<Errno>,
}

/// A piece that is being read.
struct UnderWay {
    piece: ReadPiece,
    place: Place,
    /// Keeps the descriptor open.
    opened: Rc<Opened>,
    span: Span,
    done: usize,
    attempts: Attempts,
}

/// How it goes on with a piece.
enum Step {
    /// Its next read is in the queue.
    UnderWay,
    /// It is read.
    Over,
}

/// How many entries a queue may have; why there can be none otherwise. The system is asked once in
/// a process whether it has what is needed.
pub(crate) fn queue_entries() -> Result<u32, String> {
    static FOUND: OnceLock<Result<u32, String>> = OnceLock::new();
    let most = FOUND.get_or_init(|| {
        let (mut queue, entries) = halving(MOST_ENTRIES, IoUring::new)?;
        can_read(&mut queue).map(|()| entries)
    });
    most.clone()
}

impl<'a> Uring<'a> {
    /// A reader of `kind`, and how many entries its queue has; why there is none otherwise.
    pub(crate) fn new(access: &'a Access, kind: Kind) -> Result<(Self, u32), String> {
        let (queue, entries) = halving(queue_entries()?, IoUring::new)?;
        let slots = std::iter::repeat_with(|| None).take(DEPTH.min(entries as usize)).collect();
        let reader = Self {
            access,
            kind,
            queue,
            slots,
            unsent: false,
            lost: None,
            attempts: Attempts::default(),
            open: None,
            buffers: None,
            fixed: Fixed::new(access),
            plain: Direct::new(access),
            done: VecDeque::new(),
            #[cfg(test)]
            faults: Faults::default(),
        };
        Ok((reader, entries))
    }

    /// Puts the next read of a piece into the queue; whoever calls puts the piece into the slot.
    fn ask(&mut self, slot: usize, read: &mut UnderWay) -> Result<Step> {
        let (start, alignment) = (read.piece.offset, read.opened.alignment);
        let Some(span) = spans::next(&read.place, start, read.done, BUFFER, alignment) else {
            return Ok(Step::Over);
        };
        read.span = span;
        let memory = match span.to {
            To::Place => read.place.range_at(read.done),
            To::Buffer { .. } => self.buffer(slot)?,
        };
        let internal = |what| Err(Error::new(ErrorKind::Internal, what));
        if span.length > memory.length {
            return internal("a read is longer than what it goes to");
        }
        let Some(descriptor) = read.opened.source.descriptor() else {
            return internal("a queued read has no descriptor");
        };
        let descriptor = types::Fd(descriptor.as_raw_fd());
        // At most 1 GiB: it fits.
        let (pointer, length) = (memory.pointer.as_ptr(), span.length as u32);
        let number = self.fixed.number(&self.queue, self.access, memory, span.length);
        let entry = match number {
            Some(number) => {
                let read = opcode::ReadFixed::new(descriptor, pointer, length, number);
                read.offset(span.offset).build()
            }
            None => opcode::Read::new(descriptor, pointer, length).offset(span.offset).build(),
        };
        let entry = entry.user_data(slot as u64);
        // SAFETY: the kernel writes at most `span.length` bytes at `memory.pointer`, which lie in
        // one range of the place or in the slot's buffer. The place and the descriptor belong to
        // `read`, which stands in its slot, untouched, until its completion was taken out of the
        // queue (`take`, `drop`); the buffers stay as long as the reader, and of them the slot's
        // part is not looked at before. Where the end of a read cannot be waited for all of these
        // are never let go (`lose`).
        let pushed = unsafe { self.queue.submission().push(&entry) };
        // A queue has at least as many entries as there are slots, and each slot has one.
        if pushed.is_err() {
            return internal("a queue of reads is full");
        }
        self.unsent = true;
        Ok(Step::UnderWay)
    }

    /// The part of the buffers that is this slot's.
    fn buffer(&mut self, slot: usize) -> Result<HostRange> {
        let whole = match &self.buffers {
            Some(buffers) => buffers.range(),
            None => {
                let length = BUFFER * self.slots.len();
                let whole = self.buffers.insert(Region::new(length as u64)?).range();
                self.fixed.add(whole);
                whole
            }
        };
        // SAFETY: slots are numbered from 0, and the region has `BUFFER` bytes for each.
        let pointer = unsafe { whole.pointer.add(slot * BUFFER) };
        Ok(HostRange { pointer, length: BUFFER })
    }

    /// Registers the buffers at once, however little was read.
    #[cfg(test)]
    pub(super) fn register_now(&mut self) {
        self.buffer(0).unwrap();
        self.fixed.register(&self.queue, self.access);
    }

    /// What comes after a read has ended with `result`.
    fn go_on(&mut self, slot: usize, read: &mut UnderWay, result: i32) -> Result<Step> {
        let source = self.access.source(read.piece.source);
        let offset = read.span.offset;
        let refused = match usize::try_from(result) {
            Ok(count) => {
                let missing = read.place.len() - read.done;
                match useful(source, &read.span, count, missing, read.opened.alignment) {
                    Ok(useful) => {
                        if let To::Buffer { skip, .. } = read.span.to {
                            let buffer = self.buffer(slot)?;
                            debug_assert!(skip + useful <= buffer.length);
                            // SAFETY: what was useful lies within the span, and the span within
                            // the slot's part of the region, which is initialised (anonymous pages
                            // are zeroed). The slot's read is over, so that nobody writes there.
                            let bytes = unsafe {
                                let start = buffer.pointer.add(skip).as_ptr();
                                std::slice::from_raw_parts(start, useful)
                            };
                            read.place.write(read.done, bytes);
                        }
                        read.done += useful;
                        read.attempts.progressed();
                        None
                    }
                    Err(Trouble::Refused(why)) => Some(why),
                    Err(Trouble::Failed(error)) => return Err(error),
                }
            }
            Err(_) => {
                let error = io::Error::from_raw_os_error(result.wrapping_neg());
                match (source::no_direct(&error), read.attempts.after(&error)) {
                    (Some(why), _) if read.opened.kind == Kind::Direct => {
                        Some(direct_linux::refused_read(why))
                    }
                    (_, Next::Again) => None,
                    (_, Next::Reopen) => {
                        self.open = None;
                        self.reopen(read)?;
                        None
                    }
                    (_, Next::Fail) => return Err(failed(error, source, offset)),
                }
            }
        };
        if let Some(why) = refused {
            self.access.refuse(read.piece.source, &why)?;
            self.reopen(read)?;
        }
        self.ask(slot, read)
    }

    /// Opens the source of a piece again. If that is for another kind of reads the piece is read
    /// from its beginning: it is counted as one kind or the other.
    fn reopen(&mut self, read: &mut UnderWay) -> Result<()> {
        let opened = self.opened(read.piece.source)?;
        if opened.kind != read.opened.kind {
            read.done = 0;
        }
        read.opened = opened;
        Ok(())
    }

    /// The source, opened for direct reads if these are wished and there are any.
    fn opened(&mut self, source: usize) -> Result<Rc<Opened>> {
        let direct = self.kind == Kind::Direct && !self.access.is_refused(source);
        if let Some((number, opened)) = &self.open
            && *number == source
            && (opened.kind == Kind::Buffered || direct)
        {
            return Ok(opened.clone());
        }
        let opened = match direct.then(|| direct_linux::open(self.access, source)) {
            Some(Ok(opened)) => opened,
            Some(Err(Trouble::Failed(error))) => return Err(error),
            Some(Err(Trouble::Refused(why))) => {
                self.access.refuse(source, &why)?;
                Opened::cached(self.access.source(source).open()?)
            }
            None => Opened::cached(self.access.source(source).open()?),
        };
        let (_, opened) = self.open.insert((source, Rc::new(opened)));
        Ok(opened.clone())
    }

    /// Takes the reads that have ended out of the queue, and goes on with their pieces.
    fn take(&mut self) {
        // What ends after that ends for nobody.
        while self.lost.is_none()
            && let Some((slot, result)) = self.next_ended()
        {
            let Some(mut read) = self.slots.get_mut(slot).and_then(Option::take) else {
                debug_assert!(false, "a read ended that nobody began");
                continue;
            };
            match self.go_on(slot, &mut read, result) {
                Ok(Step::UnderWay) => self.slots[slot] = Some(read),
                Ok(Step::Over) => self.over(read, Ok(())),
                Err(error) => self.over(read, Err(error)),
            }
        }
    }

    fn next_ended(&mut self) -> Option<(usize, i32)> {
        let entry = self.queue.completion().next()?;
        let (slot, result) = (entry.user_data() as usize, entry.result());
        #[cfg(test)]
        if let Some(distort) = &mut self.faults.result {
            return Some((slot, distort(result)));
        }
        Some((slot, result))
    }

    fn over(&mut self, read: UnderWay, result: Result<()>) {
        let UnderWay { piece, place, opened, .. } = read;
        if opened.kind == Kind::Buffered && result.is_ok() {
            self.access.count(piece.source, place.len());
        }
        let result = result.map(|()| opened.kind);
        self.done.push_back(Completed { piece: piece.piece, place, result });
    }

    /// Tells the kernel of what is in the queue, and waits until `wait` reads have ended or a
    /// signal came. Where the kernel will have no more of it everything under way is lost.
    fn enter(&mut self, wait: usize) {
        let entered = self.queue.submit_and_wait(wait);
        #[cfg(test)]
        let entered = self.faults.enter.map_or(entered, |errno| Err(errno.into()));
        match entered {
            Ok(_) => {
                self.unsent = false;
                self.attempts.progressed();
            }
            // What was not taken stays in the queue for the next time.
            Err(error) if self.attempts.after(&error) == Next::Again => {}
            Err(error) => self.lose(error),
        }
    }

    /// The end of what is under way cannot be learnt any more: the kernel may be writing to those
    /// places for as long as the process lives, so that they are never let go.
    fn lose(&mut self, error: io::Error) {
        let lost = Error::new(ErrorKind::Io, "the kernel's queue of reads cannot be used any more")
            .with("reason", &error)
            .because(error);
        for read in self.slots.iter_mut().filter_map(Option::take) {
            let (piece, error) = (read.piece.piece, lost.repeat());
            std::mem::forget(read);
            let place = Place::empty(Arc::new(()));
            self.done.push_back(Completed { piece, place, result: Err(error) });
        }
        std::mem::forget(self.buffers.take());
        self.lost = Some(lost);
    }

    fn any_under_way(&self) -> bool {
        self.slots.iter().any(Option::is_some)
    }
}

impl Reader for Uring<'_> {
    fn depth(&self) -> usize {
        self.slots.len()
    }

    fn submit(&mut self, piece: ReadPiece, place: Place) {
        let number = piece.piece;
        let free = self.slots.iter().position(Option::is_none);
        let ready = match (&self.lost, free) {
            (Some(lost), _) => Err(lost.repeat()),
            (None, None) => Err(Error::new(ErrorKind::Internal, "more reads than a reader takes")),
            (None, Some(slot)) => self.opened(piece.source).map(|opened| (slot, opened)),
        };
        let (slot, opened) = match ready {
            Ok(ready) => ready,
            Err(error) => {
                let result = Err(error);
                return self.done.push_back(Completed { piece: number, place, result });
            }
        };
        if opened.source.descriptor().is_none() {
            self.plain.submit(piece, place);
            return self.done.extend(self.plain.complete());
        }
        let span = Span { offset: piece.offset, length: 0, to: To::Place };
        let attempts = Attempts::default();
        let mut read = UnderWay { piece, place, opened, span, done: 0, attempts };
        match self.ask(slot, &mut read) {
            Ok(Step::UnderWay) => self.slots[slot] = Some(read),
            Ok(Step::Over) => self.over(read, Ok(())),
            Err(error) => self.over(read, Err(error)),
        }
        self.enter(0);
    }

    fn complete(&mut self) -> Option<Completed> {
        loop {
            self.take();
            if self.unsent {
                self.enter(0);
            }
            if let Some(completed) = self.done.pop_front() {
                return Some(completed);
            }
            if !self.any_under_way() {
                return None;
            }
            self.enter(1);
        }
    }
}

impl Drop for Uring<'_> {
    /// Waits for what is under way: a disk takes back no read that it has, so that calling them
    /// off would save nothing.
    fn drop(&mut self) {
        while self.any_under_way() {
            self.enter(1);
            while let Some((slot, _)) = self.next_ended() {
                drop(self.slots.get_mut(slot).and_then(Option::take));
            }
        }
    }
}

/// A queue of `most` entries, or of half as many and so on where there is too little memory for
/// it, and its number of entries.
fn halving<T>(most: u32, open: impl Fn(u32) -> io::Result<T>) -> Result<(T, u32), String> {
    let mut entries = most;
    loop {
        match open(entries) {
            Ok(queue) => return Ok((queue, entries)),
            Err(error)
                if Errno::from_io_error(&error) == Some(Errno::NOMEM)
                    && entries > FEWEST_ENTRIES =>
            {
                entries = (entries / 2).max(FEWEST_ENTRIES);
            }
            Err(error) => return Err(format!("io_uring with {entries} entries: {error}")),
        }
    }
}

/// Whether the kernel knows the one operation that is needed, as Linux 5.6 and later do, and each
/// of the three calls is allowed: a filter of system calls may name any of them.
fn can_read(queue: &mut IoUring) -> Result<(), String> {
    let mut probe = Probe::new();
    let asked = queue.submitter().register_probe(&mut probe);
    asked.map_err(|error| format!("asking io_uring what it can do: {error}"))?;
    if !probe.is_supported(opcode::Read::CODE) {
        return Err("this kernel's io_uring has no plain reads".to_owned());
    }
    // SAFETY: it refers to no memory.
    let pushed = unsafe { queue.submission().push(&opcode::Nop::new().build()) };
    pushed.map_err(|error| format!("giving io_uring something to do: {error}"))?;
    loop {
        match queue.submit_and_wait(1) {
            Ok(_) => return Ok(()),
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(format!("having io_uring do something: {error}")),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// UR-01 and UR-02: containers forbid it, and small limits of locked memory make it small.
    #[test]
    fn a_queue_is_halved_for_memory_alone() {
        let granting = |most: u32| {
            move |entries| if entries <= most { Ok(()) } else { Err(Errno::NOMEM.into()) }
        };
        assert_eq!(halving(64, granting(4096)), Ok(((), 64)));
        assert_eq!(halving(64, granting(31)), Ok(((), 16)));
        assert_eq!(halving(64, granting(8)), Ok(((), 8)));
        assert!(halving(64, granting(7)).unwrap_err().contains("8 entries"));
        for errno in [Errno::PERM, Errno::NOSYS, Errno::ACCESS, Errno::INVAL] {
            let asked = std::cell::Cell::new(0);
            let refused = halving(64, |_| {
                asked.set(asked.get() + 1);
                Err::<(), _>(errno.into())
            });
            assert!(refused.unwrap_err().contains("64 entries"), "{errno}");
            assert_eq!(asked.get(), 1, "{errno}");
        }
    }
}
