//! PyTorch checkpoints in ZIP archives: what `torch.save` has written since version 1.6.
//!
//! An archive holds records under one folder, whose name does not matter: `data.pkl`, a pickle
//! that says which tensors there are and how they lie in storages; `data/KEY`, the bytes of each
//! storage; `version`; and perhaps `byteorder`. Records are stored as they are, so storages are
//! read where they lie.
//!
//! The pickle is interpreted, never executed: `globals` is the list of names that it may refer
//! to, each of them stands for a value here, and any other is [`ErrorKind::UnsafePickle`]. The
//! submodules state the rest: `zip` what an archive must be, `pickle` what a pickle may hold,
//! `names` what tensors are called.
//!
//! - A storage that tensors use is one [`Storage`](crate::Storage), whole and once, whatever part
//!   of it they use: views and tied tensors share it.
//! - A tensor whose elements lie apart or in another order keeps its strides; none is negative.
//! - A storage's record has at least the bytes that the pickle gives it.
//! - Containers may stand in several places, and each way to a tensor is a name of it. There are
//!   bounds on that by the length of the pickle, which `names` gives with the reasons: a state dict
//!   may stand under ten keys, a thousand under a thousand may not.
//! - What is no tensor, such as the number of an epoch, is passed over.
//! - Where a file comes from a big-endian machine, storages are
//!   [swapped](crate::Encoding::Swapped) by the type of the tensors in them, which must then be of
//!   one width.
//! - `torch.save` can be told to leave checksums out, and `torch.load` looks at none. The pickle is
//!   compared with its checksum unless that is 0; storages are not, for they are not read here.

mod globals;
mod memo;
mod names;
mod pickle;
mod place;
mod rebuild;
mod value;
mod zip;

use std::ops::Range;

use self::zip::Archive;
use crate::detect::{Kind, other_kind, sniff};
use crate::limits::{self, Limits};
use crate::{Bytes, Error, ErrorKind, Format, Index, SourceInfo};

/// The number that the pickle of an older checkpoint begins with, as a pickle has it.
const LEGACY: &[u8] = b"\x8a\x0a\x6c\xfc\x9c\x46\xf9\x20\x6a\xa8\x50\x19";

/// The last version of the archive that is known.
const LAST_VERSION: u64 = 10;

/// Reads the directory and the pickle of a checkpoint.
///
/// `bytes` are the whole archive; `name` is the file's, for the index. Time is linear in the
/// directory and the pickle, but for sorting; of the storages nothing is read but the headers
/// before them.
///
/// # Errors
///
/// - [`ErrorKind::UnknownFormat`], [`ErrorKind::Unsupported`] for other files and for archives of
///   other kinds, naming what was `found`; for a checkpoint of before version 1.6, for TorchScript,
///   and for tensors that are known and not read, with a hint;
/// - [`ErrorKind::UnsafePickle`] if the pickle refers to anything that is not on the list, naming
///   it in `found` and, where that is known, the `key` under which it stands;
/// - [`ErrorKind::Truncated`] if the archive or the pickle ends early;
/// - [`ErrorKind::InvalidHeader`], [`ErrorKind::Overlap`], [`ErrorKind::OutOfRange`],
///   [`ErrorKind::SizeMismatch`], [`ErrorKind::Overflow`], [`ErrorKind::TrailingBytes`] if the
///   archive, the pickle or a tensor contradicts itself;
/// - [`ErrorKind::DuplicateTensor`] if two tensors have the same name;
/// - [`ErrorKind::HeaderTooLarge`], [`ErrorKind::LimitExceeded`] for the [`Limits`].
pub fn parse(bytes: &mut dyn Bytes, name: &str, limits: &Limits) -> Result<Index, Error> {
    refuse_others(bytes)?;
    let records = Records::open(bytes, limits)?;
    let pickle = records.pickle(bytes, limits)?;
    let mut heap = pickle::read(&pickle, limits)?;
    let tensors = names::find(&heap, limits)?;
    heap.keep_tensors();
    let mut index = Index {
        format: Some(Format::PyTorch),
        sources: vec![SourceInfo::file(name, bytes.length())],
        ..Index::default()
    };
    place::add(&mut index, bytes, &records, &heap, tensors, limits)?;
    Ok(index)
}

/// Refuses what is no archive.
fn refuse_others(bytes: &mut dyn Bytes) -> Result<(), Error> {
    // A tar archive has its mark at 257.
    let first = {
        let length = bytes.length().min(512);
        zip::read_range(bytes, 0..length)?
    };
    let legacy = "a checkpoint of PyTorch before version 1.6";
    let convert = "load it with torch.load where you trust it, and save it again with torch.save";
    let pickled = first.starts_with(b"\x80");
    let early = first.get(..64).unwrap_or(&first);
    if pickled && early.windows(LEGACY.len()).any(|part| part == LEGACY) {
        return Err(unsupported(legacy).hint(convert));
    }
    if first.get(257..262) == Some(b"ustar") {
        return Err(unsupported("a tar archive, perhaps a checkpoint of PyTorch 0.1").hint(convert));
    }
    match sniff(&first) {
        Kind::Zip => Ok(()),
        kind => {
            let message = "this is not a PyTorch checkpoint";
            let error = other_kind(ErrorKind::UnknownFormat, message, kind);
            Err(if kind == Kind::Pickle { error.hint(convert) } else { error })
        }
    }
}

fn unsupported(found: &str) -> Error {
    Error::new(ErrorKind::Unsupported, "the file is of a format that is known and not read")
        .with("found", found)
}

/// The records of a checkpoint.
struct Records {
    archive: Archive,
    /// The folder that all of them lie in, with its slash.
    root: Vec<u8>,
    /// Whether numbers are big-endian.
    swapped: bool,
}

impl Records {
    fn open(bytes: &mut dyn Bytes, limits: &Limits) -> Result<Self, Error> {
        let archive = Archive::read(bytes, limits)?;
        let root = find_root(&archive)?;
        let mut records = Self { archive, root, swapped: false };
        let version = match records.text(bytes, "version")? {
            Some(version) => Some(version),
            None => records.text(bytes, ".data/version")?,
        };
        let number = version.as_deref().and_then(|text| text.trim_end().parse::<u64>().ok());
        match number {
            Some(1..=LAST_VERSION) => {}
            Some(newer) => {
                return Err(Error::new(
                    ErrorKind::Unsupported,
                    "the checkpoint is of a version that is not known",
                )
                .with("limit", LAST_VERSION)
                .with("actual", newer));
            }
            None => {
                return Err(
                    invalid("the checkpoint does not say its version").with("record", "version")
                );
            }
        }
        records.swapped = match records.text(bytes, "byteorder")?.as_deref() {
            None | Some("little") => false,
            Some("big") => true,
            Some(other) => {
                return Err(invalid("the checkpoint's byte order is not known")
                    .with("record", "byteorder")
                    .with("expected", "little or big")
                    .with("actual", other));
            }
        };
        Ok(records)
    }

    fn find(&self, name: &str) -> Option<&zip::Record> {
        self.archive.find(&[&self.root, name.as_bytes()].concat())
    }

    /// A record that is a word or two.
    fn text(&self, bytes: &mut dyn Bytes, name: &str) -> Result<Option<String>, Error> {
        const LONGEST: u64 = 64;
        let Some(record) = self.find(name) else {
            return Ok(None);
        };
        if record.size() > LONGEST {
            return Err(invalid("a record is longer than it can be")
                .with("record", name)
                .with("limit", LONGEST)
                .with("actual", record.size()));
        }
        let range = self.archive.data(bytes, record)?;
        let text = zip::read_range(bytes, range)?;
        Ok(Some(String::from_utf8_lossy(&text).into_owned()))
    }

    fn pickle(&self, bytes: &mut dyn Bytes, limits: &Limits) -> Result<Vec<u8>, Error> {
        let missing = || invalid("the archive has no data.pkl");
        let record = self.find("data.pkl").ok_or_else(missing)?;
        if record.size() > limits.header_bytes {
            return Err(limits::exceeded(
                ErrorKind::HeaderTooLarge,
                "the pickle is larger than the limit",
                "header_bytes",
                limits.header_bytes,
                record.size(),
            )
            .hint(limits::raise("header_bytes")));
        }
        let range = self.archive.data(bytes, record)?;
        let pickle = zip::read_range(bytes, range)?;
        let actual = zip::crc32(&pickle);
        if record.crc != 0 && record.crc != actual {
            return Err(invalid("the pickle does not have the checksum that the archive gives it")
                .with("record", "data.pkl")
                .with("expected", format_args!("{:08x}", record.crc))
                .with("actual", format_args!("{actual:08x}"))
                .hint("the file is damaged: fetch it again"));
        }
        Ok(pickle)
    }

    /// Where the bytes of a storage lie.
    fn storage(&self, bytes: &mut dyn Bytes, key: &str) -> Result<Range<u64>, Error> {
        // No record has a longer name, and a key is shown in errors.
        let named = key.len() <= usize::from(u16::MAX);
        let record = if named { self.find(&format!("data/{key}")) } else { None };
        match record {
            Some(record) => self.archive.data(bytes, record),
            None => Err(invalid("the archive has no record for a storage")
                .with("storage", key.chars().take(200).collect::<String>())),
        }
    }
}

fn invalid(message: &str) -> Error {
    Error::new(ErrorKind::InvalidHeader, message)
}

/// The folder that the records of a checkpoint lie in; an error if this is no checkpoint.
fn find_root(archive: &Archive) -> Result<Vec<u8>, Error> {
    let first = archive.first_name();
    let root = first.iter().position(|byte| *byte == b'/').map_or(0, |slash| slash + 1);
    let root = first.get(..root).unwrap_or_default().to_vec();
    let has = |name: &str| archive.find(&[&root, name.as_bytes()].concat()).is_some();
    let in_root = |folder: &str| {
        let folder = [&root, folder.as_bytes()].concat();
        archive.names().any(|name| name.starts_with(&folder))
    };
    let other = |found: &str| {
        Error::new(ErrorKind::UnknownFormat, "the archive is not a PyTorch checkpoint")
            .with("found", found)
    };
    if !root.is_empty() && has("data.pkl") {
        if has("constants.pkl") || in_root("code/") {
            return Err(unsupported("a TorchScript archive").hint(
                "save the weights alone: `torch.save(torch.jit.load(path).state_dict(), ...)`",
            ));
        }
        return match archive.names().find(|name| !name.starts_with(&root)) {
            Some(name) => Err(invalid("the archive holds a record outside its folder")
                .with("record", String::from_utf8_lossy(name))),
            None => Ok(root),
        };
    }
    if has(".data/extern_modules") {
        return Err(unsupported("a package of torch.package")
            .hint("save the state dict of the model in it with torch.save"));
    }
    if has("archive_format") {
        return Err(
            unsupported("a program of torch.export").hint("save its state_dict with torch.save")
        );
    }
    if archive.names().next().is_none() {
        return Err(other("an empty ZIP archive"));
    }
    if archive.names().all(|name| name.ends_with(b".npy")) {
        return Err(other("NumPy arrays (.npz)"));
    }
    if archive.find(b"data.pkl").is_some() {
        return Err(other("a checkpoint that was packed anew, without its folder")
            .hint("fetch the file again, or pack it with the folder and without compression"));
    }
    Err(other("a ZIP archive"))
}
