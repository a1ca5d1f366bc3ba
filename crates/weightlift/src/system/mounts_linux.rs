//! What is mounted where, as `/proc/self/mountinfo` tells.

use std::ffi::OsString;
use std::fs;
use std::os::unix::ffi::OsStringExt;
use std::path::{Path, PathBuf};

/// A line of `mountinfo`.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Mount {
    pub(super) id: u64,
    /// Major and minor number of the file system's device.
    pub(super) device: (u32, u32),
    /// Which folder of the file system is mounted.
    pub(super) root: PathBuf,
    /// Where.
    pub(super) point: PathBuf,
    pub(super) file_system: String,
    /// A device, or whatever the file system calls what it comes from.
    pub(super) source: PathBuf,
    /// The file system's own options.
    pub(super) options: String,
}

/// All mounts that this process sees, none where that cannot be read. `root` stands for `/`.
pub(super) fn mounts(root: &Path) -> Vec<Mount> {
    let text = fs::read(root.join("proc/self/mountinfo")).unwrap_or_default();
    text.split(|byte| *byte == b'\n').filter_map(parse).collect()
}

/// `36 35 98:0 /mnt1 /mnt2 rw,noatime master:1 - ext3 /dev/root rw,errors=continue`, where
/// between the options and the dash may be any number of fields.
fn parse(line: &[u8]) -> Option<Mount> {
    let mut fields = line.split(|byte| *byte == b' ');
    let mut next = || fields.next();
    let id = std::str::from_utf8(next()?).ok()?.parse().ok()?;
    next()?;
    let (major, minor) = std::str::from_utf8(next()?).ok()?.split_once(':')?;
    let device = (major.parse().ok()?, minor.parse().ok()?);
    let root = path(next()?);
    let point = path(next()?);
    while next()? != b"-" {}
    let file_system = String::from_utf8_lossy(next()?).into_owned();
    let source = path(next()?);
    let options = String::from_utf8_lossy(next().unwrap_or_default()).into_owned();
    Some(Mount { id, device, root, point, file_system, source, options })
}

/// Space, tab, newline and backslash stand there as a backslash and three octal digits.
fn path(field: &[u8]) -> PathBuf {
    let mut bytes = Vec::with_capacity(field.len());
    let mut rest = field;
    while let [first, after @ ..] = rest {
        let escaped = match after {
            [a @ b'0'..=b'3', b @ b'0'..=b'7', c @ b'0'..=b'7', ..] if *first == b'\\' => {
                Some((a - b'0') * 64 + (b - b'0') * 8 + (c - b'0'))
            }
            _ => None,
        };
        bytes.push(escaped.unwrap_or(*first));
        rest = if escaped.is_some() { &after[3..] } else { after };
    }
    PathBuf::from(OsString::from_vec(bytes))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_are_taken_apart_and_garbage_is_left_out() {
        let folder = tempfile::tempdir().unwrap();
        fs::create_dir_all(folder.path().join("proc/self")).unwrap();
        let text = "\
            36 35 0:45 /sub\\040folder /my\\134disk rw master:1 shared:2 - btrfs /dev/sdb1 rw,x=y\n\
            37 35 8:1 / / rw - ext4 /dev/sda1 rw\n\
            38 35 8:1 / / rw\n\
            39 35 eight:1 / / rw - ext4 /dev/sda1 rw\n\
            \n\
            40";
        fs::write(folder.path().join("proc/self/mountinfo"), text).unwrap();
        let found = mounts(folder.path());
        assert_eq!(found.len(), 2, "{found:?}");
        let expected = Mount {
            id: 36,
            device: (0, 45),
            root: "/sub folder".into(),
            point: "/my\\disk".into(),
            file_system: "btrfs".into(),
            source: "/dev/sdb1".into(),
            options: "rw,x=y".into(),
        };
        assert_eq!(found[0], expected);
        assert!(mounts(Path::new("/nowhere")).is_empty());
    }
}
