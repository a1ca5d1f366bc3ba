//! What an input says beside the file it holds.

use weightlift_index::{Bytes, Error, Limits};

/// An input: a byte that chooses limits, a byte that is the target's own, and the rest.
pub(crate) struct Input<'a> {
    /// A bit for each limit that is small: header, index, tensors, text, list, depth, rank.
    pub(crate) limits: Limits,
    /// What the target makes of it.
    pub(crate) choice: u8,
    /// The file.
    pub(crate) file: &'a [u8],
}

impl<'a> Input<'a> {
    /// Takes an input apart; `None` if it is too short.
    pub(crate) fn new(input: &'a [u8]) -> Option<Self> {
        let [small, choice, file @ ..] = input else { return None };
        let mut limits = Limits::default();
        let fields = [
            (&mut limits.header_bytes, 128),
            (&mut limits.index_bytes, 64),
            (&mut limits.tensors, 2),
            (&mut limits.text_bytes, 8),
            (&mut limits.list_values, 3),
            (&mut limits.depth, 2),
            (&mut limits.rank, 2),
        ];
        for (bit, (field, value)) in fields.into_iter().enumerate() {
            if small >> bit & 1 == 1 {
                *field = value;
            }
        }
        Some(Self { limits, choice: *choice, file })
    }
}

/// A file that ends in zeros and watches over how it is read.
pub(crate) struct Watched<'a> {
    there: &'a [u8],
    length: u64,
    read: u64,
}

impl<'a> Watched<'a> {
    /// The bytes, and zeros up to one of eight lengths: data that are there but need not be in the
    /// input.
    pub(crate) fn new(there: &'a [u8], choice: u8) -> Self {
        let zeros = [0, 1, 32, 100, 4096, 10_000, 1 << 16, 1 << 18][usize::from(choice & 7)];
        Self { there, length: there.len() as u64 + zeros, read: 0 }
    }

    /// Checks that not much more was read than there is. A read is 4 KiB at least, so a parser that
    /// jumps reads more than it looks at, by a factor; one that reads the whole for each of
    /// its parts reads more than that.
    pub(crate) fn check(&self) {
        let most = 128 * self.length + (1 << 20);
        assert!(self.read <= most, "{} bytes were read of {}", self.read, self.length);
    }
}

impl Bytes for Watched<'_> {
    fn length(&self) -> u64 {
        self.length
    }

    fn read_at(&mut self, offset: u64, buffer: &mut [u8]) -> Result<(), Error> {
        let end = offset.checked_add(buffer.len() as u64).expect("ends are numbers");
        assert!(end <= self.length, "bytes after the end were asked for");
        self.read += buffer.len() as u64;
        buffer.fill(0);
        let rest = usize::try_from(offset).ok().and_then(|start| self.there.get(start..));
        for (to, from) in buffer.iter_mut().zip(rest.unwrap_or_default()) {
            *to = *from;
        }
        Ok(())
    }
}
