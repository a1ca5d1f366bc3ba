//! The archive: where its records lie.
//!
//! Records are located, never extracted. What is accepted:
//!
//! - one disk, whose end record is the last thing in the file; its comment ends with the file;
//! - the ZIP64 record where its locator stands before the end record, and fields that both have
//!   agree;
//! - the directory lies directly before these, and holds as many records as they say, each name
//!   once;
//! - records lie in the file before the directory and do not overlap;
//! - of a record that is needed: stored, not encrypted, and the header before its data has the
//!   same name. Sizes and checksums there are not looked at: writers of streams leave them out.

use std::ops::Range;

use crate::limits::{self, Limits};
use crate::{Bytes, Error, ErrorKind};

const END: &[u8; 4] = b"PK\x05\x06";
const END_LENGTH: u64 = 22;
const LOCATOR_LENGTH: u64 = 20;
const END64_LENGTH: u64 = 56;
const RECORD: &[u8; 4] = b"PK\x01\x02";
const RECORD_LENGTH: usize = 46;
const LOCAL: &[u8; 4] = b"PK\x03\x04";
const LOCAL_LENGTH: u64 = 30;

/// Values that say: look into the ZIP64 fields.
const IN_64_U16: u64 = 0xffff;
const IN_64_U32: u64 = 0xffff_ffff;

/// The directory of an archive.
pub(super) struct Archive {
    directory: Vec<u8>,
    /// By name.
    records: Vec<Record>,
    /// The record that stands first in the directory.
    first: usize,
}

/// A record as the directory describes it.
pub(super) struct Record {
    /// Of the directory's bytes.
    name: Range<usize>,
    method: u16,
    flags: u16,
    pub(super) crc: u32,
    compressed: u64,
    size: u64,
    /// Where its local header begins.
    header: u64,
    /// Where the next record, or the directory, begins.
    limit: u64,
}

/// What the end of the file says about the directory.
struct End {
    records: u64,
    offset: u64,
    length: u64,
}

impl Archive {
    /// Reads the directory.
    pub(super) fn read(bytes: &mut dyn Bytes, limits: &Limits) -> Result<Self, Error> {
        let end = find_end(bytes)?;
        if end.length > limits.header_bytes {
            return Err(limits::exceeded(
                ErrorKind::HeaderTooLarge,
                "the archive's directory is larger than the limit",
                "header_bytes",
                limits.header_bytes,
                end.length,
            )
            .hint(limits::raise("header_bytes")));
        }
        let directory = read_range(bytes, end.offset..end.offset + end.length)?;
        let mut records = Vec::new();
        let mut at = 0;
        while at < directory.len() {
            let (record, next) = parse_record(&directory, at).ok_or_else(|| {
                invalid("the archive's directory is damaged").with("offset", end.offset + at as u64)
            })?;
            records.push(record);
            at = next;
        }
        if records.len() as u64 != end.records {
            return Err(invalid("the archive's directory has not as many records as it says")
                .with("expected", end.records)
                .with("actual", records.len()));
        }
        let mut archive = Self { directory, records, first: 0 };
        archive.check_ranges(end.offset)?;
        archive.sort_by_name()?;
        Ok(archive)
    }

    /// The record of this name.
    pub(super) fn find(&self, name: &[u8]) -> Option<&Record> {
        let found = self.records.binary_search_by(|record| self.name(record).cmp(name));
        found.ok().and_then(|position| self.records.get(position))
    }

    /// The names of all records, sorted.
    pub(super) fn names(&self) -> impl Iterator<Item = &[u8]> {
        self.records.iter().map(|record| self.name(record))
    }

    /// The name of the record that stands first in the directory.
    pub(super) fn first_name(&self) -> &[u8] {
        self.records.get(self.first).map_or(b"", |record| self.name(record))
    }

    fn name(&self, record: &Record) -> &[u8] {
        self.directory.get(record.name.clone()).unwrap_or_default()
    }

    /// Where the bytes of a record lie.
    pub(super) fn data(&self, bytes: &mut dyn Bytes, record: &Record) -> Result<Range<u64>, Error> {
        let name = self.name(record);
        let about = |kind, message: &str| {
            Error::new(kind, message)
                .with("record", String::from_utf8_lossy(name))
                .with("offset", record.header)
        };
        const ENCRYPTED: u16 = 1 | 1 << 6 | 1 << 13;
        if record.flags & ENCRYPTED != 0 {
            return Err(about(ErrorKind::Unsupported, "a record of the archive is encrypted"));
        }
        let compressed = || {
            about(ErrorKind::Unsupported, "a record of the archive is compressed")
                .hint("load it with torch.load and save it again with torch.save")
        };
        if record.method != 0 {
            return Err(compressed().with("method", record.method));
        }
        if record.compressed != record.size {
            return Err(about(
                ErrorKind::SizeMismatch,
                "a record is stored as it is and has two sizes",
            )
            .with("expected", record.size)
            .with("actual", record.compressed));
        }
        // No further than the next record, which the directory's check has put into the file.
        let head = LOCAL_LENGTH + name.len() as u64;
        let damaged = || about(ErrorKind::InvalidHeader, "the header of a record is damaged");
        let start = record.header.checked_add(head).filter(|start| *start <= record.limit);
        let start = start.ok_or_else(damaged)?;
        let local = read_range(bytes, record.header..start)?;
        let fields = Fields(&local);
        if !local.starts_with(LOCAL) || fields.u16(26) != Some(name.len() as u16) {
            return Err(damaged());
        }
        if local.get(LOCAL_LENGTH as usize..) != Some(name) {
            return Err(about(
                ErrorKind::InvalidHeader,
                "a record has another name than the archive's directory gives it",
            ));
        }
        if fields.u16(8) != Some(0) {
            return Err(compressed());
        }
        let extra = u64::from(fields.u16(28).unwrap_or_default());
        let range = start.checked_add(extra).and_then(|start| {
            let end = start.checked_add(record.size)?;
            (end <= record.limit).then_some(start..end)
        });
        range.ok_or_else(|| {
            about(ErrorKind::Overlap, "a record reaches into what follows it")
                .with("bytes", record.size)
                .with("limit", record.limit)
        })
    }

    /// Checks that records lie before the directory, one after the other, and notes for each
    /// where the next begins.
    fn check_ranges(&mut self, directory: u64) -> Result<(), Error> {
        let mut order: Vec<usize> = (0..self.records.len()).collect();
        // Linear where the directory is in the order of the records, as it mostly is.
        order.sort_by_key(|number| self.records[*number].header);
        let mut limit = directory;
        for number in order.into_iter().rev() {
            let record = &self.records[number];
            let least = (LOCAL_LENGTH + record.name.len() as u64).checked_add(record.compressed);
            let end = least.and_then(|least| record.header.checked_add(least));
            if end.is_none_or(|end| end > limit) {
                let (kind, message) = if end.is_none_or(|end| end > directory) {
                    (ErrorKind::OutOfRange, "a record lies outside its archive")
                } else {
                    (ErrorKind::Overlap, "two records of the archive overlap")
                };
                let name = String::from_utf8_lossy(self.name(record)).into_owned();
                return Err(Error::new(kind, message)
                    .with("record", name)
                    .with("offset", record.header)
                    .with("bytes", record.compressed)
                    .with("limit", limit));
            }
            let next = std::mem::replace(&mut limit, record.header);
            self.records[number].limit = next;
        }
        Ok(())
    }

    fn sort_by_name(&mut self) -> Result<(), Error> {
        let Self { directory, records, .. } = self;
        let first = records.first().map_or(0, |record| record.name.start);
        let name = |record: &Record| directory.get(record.name.clone()).unwrap_or_default();
        records.sort_by(|a, b| name(a).cmp(name(b)));
        if let Some(pair) = records.windows(2).find(|pair| name(&pair[0]) == name(&pair[1])) {
            return Err(invalid("a name stands twice in the archive")
                .with("record", String::from_utf8_lossy(name(&pair[0]))));
        }
        let first = records.iter().position(|record| record.name.start == first);
        self.first = first.unwrap_or_default();
        Ok(())
    }
}

impl Record {
    /// How many bytes it has.
    pub(super) fn size(&self) -> u64 {
        self.size
    }
}

/// Little-endian numbers at fixed places.
struct Fields<'a>(&'a [u8]);

impl Fields<'_> {
    fn array<const N: usize>(&self, at: usize) -> Option<[u8; N]> {
        self.0.get(at..)?.first_chunk().copied()
    }

    fn u16(&self, at: usize) -> Option<u16> {
        self.array(at).map(u16::from_le_bytes)
    }

    fn u32(&self, at: usize) -> Option<u32> {
        self.array(at).map(u32::from_le_bytes)
    }

    fn u64(&self, at: usize) -> Option<u64> {
        self.array(at).map(u64::from_le_bytes)
    }
}

fn invalid(message: &str) -> Error {
    Error::new(ErrorKind::InvalidHeader, message)
}

/// The bytes of a range, whose length the caller has bounded.
pub(super) fn read_range(bytes: &mut dyn Bytes, range: Range<u64>) -> Result<Vec<u8>, Error> {
    let length = range.end.saturating_sub(range.start);
    if range.end > bytes.length() {
        return Err(Error::new(ErrorKind::Truncated, "the file ends inside what it says it holds")
            .with("expected", range.end)
            .with("actual", bytes.length()));
    }
    let mut buffer = Vec::new();
    let reserved = usize::try_from(length).ok().and_then(|length| {
        buffer.try_reserve_exact(length).ok()?;
        Some(length)
    });
    let length = reserved.ok_or_else(|| {
        Error::new(ErrorKind::LimitExceeded, "not enough memory for a part of a header")
            .with("actual", length)
    })?;
    buffer.resize(length, 0);
    bytes.read_at(range.start, &mut buffer)?;
    Ok(buffer)
}

/// Finds the end record, and the ZIP64 record where there is one.
fn find_end(bytes: &mut dyn Bytes) -> Result<End, Error> {
    let length = bytes.length();
    let truncated = || {
        Error::new(ErrorKind::Truncated, "the archive has no end: its directory is missing")
            .with("actual", length)
            .hint("the file is cut short: fetch it again")
    };
    // Mostly there is no comment, and then the first look finds it.
    let mut tail = read_range(bytes, length.saturating_sub(END_LENGTH)..length)?;
    if !(tail.starts_with(END) && tail.ends_with(&[0, 0])) {
        let start = length.saturating_sub(END_LENGTH + u64::from(u16::MAX));
        tail = read_range(bytes, start..length)?;
    }
    let fits = |at: &usize| {
        let fields = Fields(tail.get(*at..).unwrap_or_default());
        let comment = fields.u16(20).map(usize::from);
        comment.is_some_and(|comment| at + END_LENGTH as usize + comment == tail.len())
    };
    let places: Vec<usize> =
        tail.windows(4).enumerate().filter(|(_, four)| four == END).map(|(at, _)| at).collect();
    let mut fitting = places.iter().copied().filter(fits);
    let Some(at) = fitting.next() else {
        return Err(match places.last() {
            // With data that happen to hold the mark, this may be wrong about the reason.
            Some(at) if tail.len() - at >= END_LENGTH as usize => Error::new(
                ErrorKind::TrailingBytes,
                "the file goes on after its archive, or is cut short",
            )
            .with("offset", length - (tail.len() - at) as u64)
            .with("actual", length)
            .hint("fetch the file again"),
            _ => truncated(),
        });
    };
    if fitting.next().is_some() {
        return Err(invalid("the archive has two ends, one in the comment of the other"));
    }
    let at_end = length - (tail.len() - at) as u64;
    let fields = Fields(tail.get(at..).unwrap_or_default());
    let number = |at, wide: bool| -> u64 {
        let found = if wide { fields.u32(at) } else { fields.u16(at).map(u32::from) };
        found.unwrap_or_default().into()
    };
    let (disk, disk_of_directory) = (number(4, false), number(6, false));
    let (here, records) = (number(8, false), number(10, false));
    let (size, offset) = (number(12, true), number(16, true));
    let (end, directory_end) = match find_end64(bytes, at_end)? {
        Some((end, at)) => {
            let agree = [
                (records, end.records, IN_64_U16),
                (here, end.records, IN_64_U16),
                (size, end.length, IN_64_U32),
                (offset, end.offset, IN_64_U32),
                (disk, 0, IN_64_U16),
                (disk_of_directory, 0, IN_64_U16),
            ];
            if agree.iter().any(|(short, long, mark)| short != long && short != mark) {
                return Err(invalid("the archive's two ends contradict each other"));
            }
            (end, at)
        }
        None if disk != 0 || disk_of_directory != 0 || here != records => {
            return Err(several_disks());
        }
        None => (End { records, offset, length: size }, at_end),
    };
    if end.offset.checked_add(end.length) != Some(directory_end) {
        return Err(invalid("the archive's directory is not where the archive says")
            .with("offset", end.offset)
            .with("bytes", end.length)
            .with("expected", directory_end)
            .hint("bytes were put before the archive or cut out of it: fetch the file again"));
    }
    Ok(end)
}

/// The ZIP64 record and where it begins, if there is a locator before the end record.
fn find_end64(bytes: &mut dyn Bytes, end: u64) -> Result<Option<(End, u64)>, Error> {
    let Some(at) = end.checked_sub(LOCATOR_LENGTH) else {
        return Ok(None);
    };
    let locator = read_range(bytes, at..end)?;
    if !locator.starts_with(b"PK\x06\x07") {
        return Ok(None);
    }
    let locator = Fields(&locator);
    if locator.u32(4) != Some(0) || locator.u32(16).is_none_or(|disks| disks > 1) {
        return Err(several_disks());
    }
    let damaged = || invalid("the archive's ZIP64 record is damaged").with("offset", at);
    let start = locator.u64(8).unwrap_or(u64::MAX);
    // Its length counts from after itself and fits to the locator, so it is never a number to
    // trust.
    let length = at.checked_sub(start).filter(|length| *length >= END64_LENGTH);
    let length = length.ok_or_else(damaged)?;
    let record = read_range(bytes, start..start + END64_LENGTH)?;
    let fields = Fields(&record);
    if !record.starts_with(b"PK\x06\x06") || fields.u64(4) != Some(length - 12) {
        return Err(damaged());
    }
    let number = |at| fields.u64(at).unwrap_or_default();
    if fields.u32(16) != Some(0) || fields.u32(20) != Some(0) || number(24) != number(32) {
        return Err(several_disks());
    }
    Ok(Some((End { records: number(32), length: number(40), offset: number(48) }, start)))
}

fn several_disks() -> Error {
    Error::new(ErrorKind::Unsupported, "the archive is one of several parts")
        .hint("join the parts to one file")
}

/// The record of the directory that begins at `at`, and where the next begins.
fn parse_record(directory: &[u8], at: usize) -> Option<(Record, usize)> {
    let fields = Fields(directory.get(at..)?);
    if !fields.0.starts_with(RECORD) {
        return None;
    }
    let name = RECORD_LENGTH..RECORD_LENGTH + usize::from(fields.u16(28)?);
    let extra = name.end..name.end + usize::from(fields.u16(30)?);
    let end = extra.end + usize::from(fields.u16(32)?);
    let extra = fields.0.get(extra)?;
    fields.0.get(..end)?;
    let mut wide = Wide(find_wide(extra)?);
    // The order is that of the ZIP64 field, not that of the record.
    let size = wide.resolve(fields.u32(24)?)?;
    let compressed = wide.resolve(fields.u32(20)?)?;
    let header = wide.resolve(fields.u32(42)?)?;
    if !matches!(fields.u16(34)?, 0 | 0xffff) {
        return None;
    }
    let record = Record {
        name: at + name.start..at + name.end,
        method: fields.u16(10)?,
        flags: fields.u16(8)?,
        crc: fields.u32(16)?,
        compressed,
        size,
        header,
        limit: 0,
    };
    Some((record, at + end))
}

/// The ZIP64 field among the extra fields, empty if there is none; `None` if they are damaged.
fn find_wide(extra: &[u8]) -> Option<&[u8]> {
    let mut rest = extra;
    let mut found: Option<&[u8]> = None;
    // Fewer than four bytes at the end are padding, which some writers leave.
    while rest.len() >= 4 {
        let fields = Fields(rest);
        let end = 4 + usize::from(fields.u16(2)?);
        if fields.u16(0)? == 1 && found.replace(rest.get(4..end)?).is_some() {
            return None;
        }
        rest = rest.get(end..)?;
    }
    Some(found.unwrap_or_default())
}

/// Takes numbers of 64 bits from the ZIP64 field, for those that stand there.
struct Wide<'a>(&'a [u8]);

impl Wide<'_> {
    fn resolve(&mut self, short: u32) -> Option<u64> {
        if u64::from(short) != IN_64_U32 {
            return Some(short.into());
        }
        let (number, rest) = self.0.split_first_chunk()?;
        self.0 = rest;
        Some(u64::from_le_bytes(*number))
    }
}

/// The checksum of ZIP.
pub(super) fn crc32(bytes: &[u8]) -> u32 {
    const TABLE: [u32; 256] = {
        let mut table = [0; 256];
        let mut i = 0;
        while i < 256 {
            let mut crc = i as u32;
            let mut bit = 0;
            while bit < 8 {
                crc = if crc & 1 == 1 { crc >> 1 ^ 0xedb8_8320 } else { crc >> 1 };
                bit += 1;
            }
            table[i] = crc;
            i += 1;
        }
        table
    };
    !bytes.iter().fold(!0, |crc, byte| crc >> 8 ^ TABLE[((crc ^ u32::from(*byte)) & 0xff) as usize])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_checksum_is_that_of_zip() {
        assert_eq!(crc32(b"123456789"), 0xcbf4_3926);
        assert_eq!(crc32(b""), 0);
    }

    #[test]
    fn numbers_of_64_bits_are_taken_in_their_order_and_only_where_they_are_asked_for() {
        let field = [7_u64.to_le_bytes(), 9_u64.to_le_bytes()].concat();
        let mut wide = Wide(&field);
        assert_eq!(wide.resolve(5), Some(5));
        assert_eq!(wide.resolve(u32::MAX), Some(7));
        assert_eq!(wide.resolve(u32::MAX), Some(9));
        assert_eq!(wide.resolve(u32::MAX), None);
        assert_eq!(find_wide(b"\x02\0\x01\0x\x01\0\x02\0ab\0\0"), Some(&b"ab"[..]));
        assert_eq!(find_wide(b"\x01\0\x02\0ab\x01\0\x02\0cd"), None);
        assert_eq!(find_wide(b"\x02\0\x02\0x"), None);
    }
}
