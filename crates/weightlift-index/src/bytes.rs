//! The bytes of a file, read by the caller as a parser asks for them.

use std::ops::Range;

use crate::{Error, ErrorKind};

/// The bytes of a file.
///
/// Parsers of formats whose headers have no length of their own, or lie at the end of the file,
/// ask for what they need through this. A slice is one; the library has one over a file.
pub trait Bytes {
    /// How many there are.
    fn length(&self) -> u64;

    /// Fills `buffer` with the bytes that begin at `offset`. Parsers ask only for bytes within
    /// [`length`](Self::length).
    ///
    /// # Errors
    ///
    /// [`ErrorKind::Io`] if they cannot be read.
    fn read_at(&mut self, offset: u64, buffer: &mut [u8]) -> Result<(), Error>;
}

impl Bytes for &[u8] {
    fn length(&self) -> u64 {
        self.len() as u64
    }

    fn read_at(&mut self, offset: u64, buffer: &mut [u8]) -> Result<(), Error> {
        let start = usize::try_from(offset).unwrap_or(usize::MAX);
        let part = start.checked_add(buffer.len()).and_then(|end| self.get(start..end));
        let part = part.ok_or_else(|| {
            Error::new(ErrorKind::Io, "bytes after the end of a slice were asked for")
                .with("offset", offset)
                .with("bytes", buffer.len())
        })?;
        buffer.copy_from_slice(part);
        Ok(())
    }
}

/// Smallest and largest read. A header of some kilobytes is one small read; a run of a hundred
/// megabytes is read in large steps, and what is skipped is not read at all.
const SMALLEST_READ: u64 = 4 << 10;
const LARGEST_READ: u64 = 1 << 20;

/// Reads forward through a range of [`Bytes`].
pub(crate) struct Cursor<'a> {
    bytes: &'a mut dyn Bytes,
    /// What has been read, from `window_start` on.
    window: Vec<u8>,
    window_start: u64,
    position: u64,
    end: u64,
    /// How much to read next: doubled from read to read, small again after a skip.
    step: u64,
}

impl<'a> Cursor<'a> {
    /// At the start of `range`, whose end is cut to that of the bytes.
    pub(crate) fn new(bytes: &'a mut dyn Bytes, range: Range<u64>) -> Self {
        let end = range.end.min(bytes.length());
        let position = range.start.min(end);
        Self {
            bytes,
            window: Vec::new(),
            window_start: position,
            position,
            end,
            step: SMALLEST_READ,
        }
    }

    /// The offset, from the start of the file, of the byte that comes next.
    pub(crate) fn position(&self) -> u64 {
        self.position
    }

    /// How many bytes the range still has.
    pub(crate) fn left(&self) -> u64 {
        self.end - self.position
    }

    /// Passes over `count` bytes, which are not read.
    pub(crate) fn skip(&mut self, count: u64) -> Result<(), Error> {
        self.check(count)?;
        self.position += count;
        Ok(())
    }

    /// Goes to an offset within the range, forward or back, without reading.
    pub(crate) fn seek(&mut self, position: u64) -> Result<(), Error> {
        match position.checked_sub(self.position) {
            Some(ahead) => self.skip(ahead),
            None => {
                if position < self.window_start {
                    self.window.clear();
                    self.window_start = position;
                    self.step = SMALLEST_READ;
                }
                self.position = position;
                Ok(())
            }
        }
    }

    /// The next `count` bytes in one piece. Whoever calls bounds `count` where holding that much
    /// in memory is not wanted; it is compared with what is there before memory is taken.
    pub(crate) fn take(&mut self, count: u64) -> Result<&[u8], Error> {
        self.fill(count)?;
        let start = (self.position - self.window_start) as usize;
        self.position += count;
        Ok(&self.window[start..start + count as usize])
    }

    /// The next `N` bytes.
    pub(crate) fn array<const N: usize>(&mut self) -> Result<[u8; N], Error> {
        let mut array = [0; N];
        array.copy_from_slice(self.take(N as u64)?);
        Ok(array)
    }

    /// The next byte.
    pub(crate) fn byte(&mut self) -> Result<u8, Error> {
        // Numbers of variable length are read byte by byte.
        let at = (self.position - self.window_start) as usize;
        if let Some(byte) = self.window.get(at) {
            self.position += 1;
            return Ok(*byte);
        }
        Ok(self.array::<1>()?[0])
    }

    fn check(&self, count: u64) -> Result<(), Error> {
        if count <= self.left() {
            return Ok(());
        }
        Err(Error::new(ErrorKind::Truncated, "the file ends inside what it says it holds")
            .with("offset", self.position)
            .with("expected", u128::from(self.position) + u128::from(count))
            .with("actual", self.end)
            .hint("the file is cut short or damaged: fetch it again"))
    }

    /// Makes the window hold the next `count` bytes.
    fn fill(&mut self, count: u64) -> Result<(), Error> {
        self.check(count)?;
        let window_end = self.window_start + self.window.len() as u64;
        if self.position + count <= window_end {
            return Ok(());
        }
        if self.position > window_end {
            // Something was skipped: what follows may be skipped too.
            self.step = SMALLEST_READ;
        }
        let kept = window_end.saturating_sub(self.position) as usize;
        self.window.drain(..self.window.len() - kept);
        self.window_start = self.position;
        let wanted = count.max(self.step).min(self.left());
        self.window.try_reserve_exact(wanted as usize - kept).map_err(|error| {
            Error::new(ErrorKind::LimitExceeded, "not enough memory for a part of a header")
                .with("actual", wanted)
                .because(error)
        })?;
        self.window.resize(wanted as usize, 0);
        let read_at = self.position + kept as u64;
        self.bytes.read_at(read_at, &mut self.window[kept..]).inspect_err(|_| {
            self.window.truncate(kept);
        })?;
        self.step = (self.step * 2).min(LARGEST_READ);
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Counts what is read of it.
    struct Counting(Vec<u8>, u64);

    impl Bytes for Counting {
        fn length(&self) -> u64 {
            self.0.len() as u64
        }

        fn read_at(&mut self, offset: u64, buffer: &mut [u8]) -> Result<(), Error> {
            self.1 += buffer.len() as u64;
            self.0.as_slice().read_at(offset, buffer)
        }
    }

    #[test]
    fn walks_through_in_any_steps() {
        let all: Vec<u8> = (0..300_000_u32).map(|i| (i % 251) as u8).collect();
        for step in [1_usize, 7, 4095, 4096, 5000, 70_000] {
            let mut bytes = Counting(all.clone(), 0);
            let mut cursor = Cursor::new(&mut bytes, 10..u64::MAX);
            let mut at = 10;
            while cursor.left() > 0 {
                let count = step.min(cursor.left() as usize);
                assert_eq!(cursor.position(), at as u64);
                assert_eq!(cursor.take(count as u64).unwrap(), &all[at..at + count]);
                at += count;
            }
            assert_eq!(at, all.len());
            assert_eq!(bytes.1, all.len() as u64 - 10, "each byte is read once");
        }
    }

    #[test]
    fn what_is_skipped_is_not_read() {
        let mut bytes = Counting(vec![7; 10_000_000], 0);
        let mut cursor = Cursor::new(&mut bytes, 0..10_000_000);
        for _ in 0..9 {
            assert_eq!(cursor.array::<4>().unwrap(), [7; 4]);
            cursor.skip(1_000_000).unwrap();
        }
        assert_eq!(bytes.1, 9 * SMALLEST_READ);
    }

    #[test]
    fn goes_back_as_well_as_forward() {
        let all: Vec<u8> = (0..100_000_u32).map(|i| (i % 251) as u8).collect();
        let mut bytes = Counting(all.clone(), 0);
        let mut cursor = Cursor::new(&mut bytes, 0..u64::MAX);
        for at in [5000, 5000, 4999, 5100, 0, 99_990, 4, 1 << 12, 0] {
            cursor.seek(at).unwrap();
            assert_eq!(cursor.position(), at);
            assert_eq!(cursor.take(10).unwrap(), &all[at as usize..at as usize + 10]);
        }
        assert_eq!(cursor.seek(100_001).unwrap_err().kind(), ErrorKind::Truncated);
        assert!(bytes.1 <= 9 * SMALLEST_READ);
    }

    #[test]
    fn a_count_beyond_the_end_takes_no_memory() {
        for count in [5, u64::MAX] {
            let mut bytes: &[u8] = b"abcd";
            let mut cursor = Cursor::new(&mut bytes, 0..4);
            for error in [cursor.take(count).map(drop), cursor.skip(count)].map(Result::unwrap_err)
            {
                assert_eq!(error.kind(), ErrorKind::Truncated);
                assert_eq!(error.get("actual"), Some("4"));
            }
            assert_eq!(cursor.take(4).unwrap(), b"abcd");
        }
    }

    #[test]
    fn an_error_while_reading_leaves_the_cursor_where_it_was() {
        struct Broken;
        impl Bytes for Broken {
            fn length(&self) -> u64 {
                1 << 40
            }
            fn read_at(&mut self, _: u64, _: &mut [u8]) -> Result<(), Error> {
                Err(Error::new(ErrorKind::Io, "broken"))
            }
        }
        let mut bytes = Broken;
        let mut cursor = Cursor::new(&mut bytes, 0..u64::MAX);
        assert_eq!(cursor.byte().unwrap_err().kind(), ErrorKind::Io);
        assert_eq!(cursor.position(), 0);
        cursor.skip((1 << 40) - 1).unwrap();
        assert_eq!(cursor.byte().unwrap_err().kind(), ErrorKind::Io);
        assert_eq!(cursor.left(), 1);
    }
}
