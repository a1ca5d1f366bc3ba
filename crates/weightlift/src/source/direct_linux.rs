//! Reads past the page cache: the one opener, and the one table of what says that there are none.

use std::fs::Metadata;
use std::io;
use std::path::Path;

use rustix::fs::OFlags;
use rustix::io::Errno;

use super::Direct;
use super::file_linux::{OpenFile, open_with, regular};
use crate::error::{Error, Result};

/// Opens the regular file at `path` for direct reads, if `same` finds it to be the one that is
/// meant.
pub(super) fn open(path: &Path, same: impl FnOnce(&Metadata) -> Result<()>) -> Result<Direct> {
    open_by(path, same, open_with)
}

/// The same with the system call as an argument.
fn open_by(
    path: &Path,
    same: impl FnOnce(&Metadata) -> Result<()>,
    open: impl FnOnce(&Path, OFlags) -> io::Result<std::fs::File>,
) -> Result<Direct> {
    let file = match open(path, OFlags::DIRECT) {
        Ok(file) => file,
        Err(error) => {
            return match no_direct(&error) {
                Some(why) => Ok(Direct::Unavailable(format!("opening it says {why}"))),
                None => Err(Error::io(error, "open a file", path.display())),
            };
        }
    };
    let (file, metadata) = regular(file, path)?;
    same(&metadata)?;
    Ok(Direct::Open(Box::new(OpenFile(file))))
}

/// Whether an error of opening a file for direct reads, or of such a read, means that this file
/// has none, and its name then. A buffered read answers better what else may be wrong. Anything
/// that is not in this table is an error.
pub(crate) fn no_direct(error: &io::Error) -> Option<&'static str> {
    const TABLE: [(Errno, &str); 4] = [
        // The flag is unknown to the file system (tmpfs before Linux 6.6), or the alignment is not
        // what it wants: ZFS, exFAT and some SD cards want more than they say, at the first read.
        (Errno::INVAL, "EINVAL"),
        (Errno::OPNOTSUPP, "EOPNOTSUPP"),
        // The same number as EOPNOTSUPP on Linux, not so elsewhere.
        (Errno::NOTSUP, "ENOTSUP"),
        // FUSE servers and security modules that allow plain reads only.
        (Errno::PERM, "EPERM"),
    ];
    let errno = Errno::from_io_error(error)?;
    TABLE.iter().find(|(known, _)| *known == errno).map(|(_, name)| *name)
}

#[cfg(test)]
mod tests {
    use std::fs::File;

    use super::*;
    use crate::error::ErrorKind;

    fn answer(errno: Errno) -> Result<Direct> {
        let fail = |_: &Path, flags: OFlags| {
            assert_eq!(flags, OFlags::DIRECT);
            Err(errno.into())
        };
        open_by(Path::new("model"), |_| Ok(()), fail)
    }

    /// FS-05, FS-08, FS-09, FS-11, FS-20: nine places that each had an idea of their own.
    #[test]
    fn the_table_of_errnos_holds() {
        for errno in [Errno::INVAL, Errno::OPNOTSUPP, Errno::NOTSUP, Errno::PERM] {
            assert!(no_direct(&errno.into()).is_some(), "{errno}");
            assert!(matches!(answer(errno), Ok(Direct::Unavailable(_))), "{errno}");
        }
        let errors = [
            (Errno::IO, ErrorKind::Io),
            (Errno::NOENT, ErrorKind::FileNotFound),
            // Not the file system's word on direct reads but on reading the file at all.
            (Errno::ACCESS, ErrorKind::PermissionDenied),
            (Errno::STALE, ErrorKind::Io),
            (Errno::MFILE, ErrorKind::Io),
            (Errno::NOMEM, ErrorKind::Io),
            (Errno::AGAIN, ErrorKind::Io),
            (Errno::INTR, ErrorKind::Io),
            (Errno::FAULT, ErrorKind::Io),
            (Errno::NODEV, ErrorKind::Io),
        ];
        for (errno, kind) in errors {
            assert_eq!(no_direct(&errno.into()), None, "{errno}");
            assert_eq!(answer(errno).err().map(|error| error.kind()), Some(kind), "{errno}");
        }
        assert_eq!(no_direct(&io::Error::other("not from the system")), None);
    }

    #[test]
    fn what_is_opened_is_compared() {
        let file = tempfile::NamedTempFile::new().unwrap();
        let plain = |path: &Path, _| File::open(path);
        let changed = |_: &Metadata| Err(Error::new(ErrorKind::Changed, "another"));
        let opened = open_by(file.path(), changed, plain);
        assert_eq!(opened.err().unwrap().kind(), ErrorKind::Changed);
        assert!(matches!(open_by(file.path(), |_| Ok(()), plain), Ok(Direct::Open(_))));
        let folder = open_by(std::env::temp_dir().as_path(), |_| Ok(()), plain);
        assert_eq!(folder.err().unwrap().kind(), ErrorKind::NotRegular);
    }
}
