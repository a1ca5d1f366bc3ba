//! Sources that are made of others: bytes that a header holds, and files of the other byte order.

use std::io::{self, IoSliceMut};
use std::sync::Arc;

use weightlift_index::{Encoding, Index, SourceId, SourceInfo};

use super::{Direct, OpenSource, Source};
use crate::error::{Error, ErrorKind, Result};
use crate::system::StorageFacts;

/// Adds what the index asks for beyond files: a source for the bytes that it holds itself, and one
/// for every way in which a file's bytes are swapped, which are raw then. Offsets stay those of
/// the file.
pub(super) fn add(index: &mut Index, sources: &mut Vec<Arc<dyn Source>>) -> Result<()> {
    if sources.len() < index.sources.len() {
        for (position, info) in index.sources.iter().enumerate() {
            if let Some(bytes) = &info.decoded {
                let decoded = Decoded { name: (&*info.name).into(), bytes: bytes.clone() };
                sources.insert(position.min(sources.len()), Arc::new(decoded));
            }
        }
    }
    let mut swapped: Vec<(SourceId, Swap, SourceId)> = Vec::new();
    for storage in &mut index.storages {
        let Encoding::Swapped(width) = storage.encoding else { continue };
        let swap = Swap { width, phase: (storage.offset % u64::from(width.max(1))) as u8 };
        let known = swapped.iter().find(|(of, how, _)| (*of, *how) == (storage.source, swap));
        storage.encoding = Encoding::Raw;
        storage.source = match known {
            Some((_, _, id)) => *id,
            None => {
                let position = storage.source.0 as usize;
                let (Some(of), Some(info)) = (sources.get(position), index.sources.get(position))
                else {
                    return Err(Error::new(ErrorKind::Internal, "a storage without a source"));
                };
                let id = SourceId(index.sources.len() as u32);
                swapped.push((storage.source, swap, id));
                let (of, info) = (of.clone(), SourceInfo::file(info.name.clone(), info.length));
                index.sources.push(info);
                sources.push(Arc::new(Swapped { of, swap }));
                id
            }
        };
    }
    Ok(())
}

/// Bytes that the index holds.
#[derive(Debug)]
struct Decoded {
    name: Box<str>,
    bytes: Arc<Vec<u8>>,
}

impl Source for Decoded {
    fn name(&self) -> &str {
        &self.name
    }

    fn length(&self) -> u64 {
        self.bytes.len() as u64
    }

    fn open(&self) -> Result<Box<dyn OpenSource>> {
        Ok(Box::new(OpenDecoded(self.bytes.clone())))
    }

    fn open_direct(&self) -> Result<Direct> {
        Ok(Direct::InMemory)
    }

    fn check_unchanged(&self) -> Result<()> {
        Ok(())
    }
}

struct OpenDecoded(Arc<Vec<u8>>);

impl OpenSource for OpenDecoded {
    fn read_at(&self, buffers: &mut [IoSliceMut<'_>], offset: u64) -> io::Result<usize> {
        let start = usize::try_from(offset).unwrap_or(usize::MAX).min(self.0.len());
        io::Read::read_vectored(&mut &self.0[start..], buffers)
    }
}

/// Reverses groups of `width` bytes; groups begin where an offset is `phase` modulo `width`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Swap {
    width: u8,
    phase: u8,
}

/// A file of the other byte order.
#[derive(Debug)]
struct Swapped {
    of: Arc<dyn Source>,
    swap: Swap,
}

impl Source for Swapped {
    fn name(&self) -> &str {
        self.of.name()
    }

    fn length(&self) -> u64 {
        self.of.length()
    }

    fn open(&self) -> Result<Box<dyn OpenSource>> {
        Ok(Box::new(OpenSwapped { of: self.of.open()?, swap: self.swap }))
    }

    fn storage(&self) -> Option<StorageFacts> {
        self.of.storage()
    }

    fn check_unchanged(&self) -> Result<()> {
        self.of.check_unchanged()
    }

    fn is_touched(&self) -> bool {
        self.of.is_touched()
    }
}

struct OpenSwapped {
    of: Box<dyn OpenSource>,
    swap: Swap,
}

impl OpenSource for OpenSwapped {
    /// Fills the first buffer alone. Whole groups are read in place and reversed there; a group
    /// that the buffer holds a part of is read apart, so a read may begin and end anywhere.
    fn read_at(&self, buffers: &mut [IoSliceMut<'_>], offset: u64) -> io::Result<usize> {
        let Some(buffer) = buffers.iter_mut().find(|buffer| !buffer.is_empty()) else {
            return Ok(0);
        };
        let width = usize::from(self.swap.width);
        let into = ((offset + self.swap.width as u64 - u64::from(self.swap.phase))
            % u64::from(self.swap.width)) as usize;
        if into == 0 && buffer.len() >= width {
            let whole = buffer.len() / width * width;
            let count = self.of.read_at(&mut [IoSliceMut::new(&mut buffer[..whole])], offset)?;
            // A read may come short within a group: the rest of it is fetched by itself.
            let whole = count / width * width;
            if whole > 0 {
                buffer[..whole].chunks_exact_mut(width).for_each(<[u8]>::reverse);
                return Ok(whole);
            }
            if count == 0 {
                return Ok(0);
            }
        }
        let mut group = [0; 8];
        let group = &mut group[..width];
        let start = offset - into as u64;
        let mut filled = 0;
        while filled < width {
            let rest = &mut group[filled..];
            match self.of.read_at(&mut [IoSliceMut::new(rest)], start + filled as u64)? {
                0 => return Ok(0),
                count => filled += count,
            }
        }
        group.reverse();
        let count = (width - into).min(buffer.len());
        buffer[..count].copy_from_slice(&group[into..into + count]);
        Ok(count)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Reads at most `most` bytes at a time.
    struct Short(Vec<u8>, usize);

    impl OpenSource for Short {
        fn read_at(&self, buffers: &mut [IoSliceMut<'_>], offset: u64) -> io::Result<usize> {
            let rest = &self.0[(offset as usize).min(self.0.len())..];
            let count = rest.len().min(buffers[0].len()).min(self.1);
            buffers[0][..count].copy_from_slice(&rest[..count]);
            Ok(count)
        }
    }

    #[test]
    fn any_part_of_a_swapped_storage_reads_as_the_whole_does() {
        for (width, start) in [(2_usize, 0_usize), (2, 1), (4, 3), (8, 5)] {
            let groups = 5;
            let file: Vec<u8> = (0..(start + groups * width) as u8).collect();
            let mut wanted = file.clone();
            wanted[start..].chunks_exact_mut(width).for_each(<[u8]>::reverse);
            for most in [1, 3, 7, 100] {
                let swap = Swap { width: width as u8, phase: (start % width) as u8 };
                let of = Box::new(Short(file.clone(), most));
                let open = OpenSwapped { of, swap };
                for from in start..file.len() {
                    for to in from..=file.len() {
                        let mut buffer = vec![0; to - from];
                        let mut done = 0;
                        while done < buffer.len() {
                            let rest = &mut buffer[done..];
                            let at = (from + done) as u64;
                            let count = open.read_at(&mut [IoSliceMut::new(rest)], at).unwrap();
                            assert!(count > 0);
                            done += count;
                        }
                        assert_eq!(buffer, wanted[from..to], "{width} {start} {most} {from}..{to}");
                    }
                }
            }
        }
    }

    #[test]
    fn decoded_bytes_read_from_any_offset() {
        let open = OpenDecoded(Arc::new(b"abcdef".to_vec()));
        let (mut one, mut two) = ([0; 2], [0; 9]);
        let mut buffers = [IoSliceMut::new(&mut one), IoSliceMut::new(&mut two)];
        assert_eq!(open.read_at(&mut buffers, 1).unwrap(), 5);
        assert_eq!((&one, &two[..3]), (b"bc", &b"def"[..]));
        assert_eq!(open.read_at(&mut [IoSliceMut::new(&mut two)], 6).unwrap(), 0);
        assert_eq!(open.read_at(&mut [IoSliceMut::new(&mut two)], u64::MAX).unwrap(), 0);
    }
}
