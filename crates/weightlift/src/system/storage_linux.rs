//! Asks the kernel what a file lies on.

use std::fs;
use std::os::fd::AsFd;
use std::path::{Path, PathBuf};

use rustix::fs::{AtFlags, Mode, OFlags, StatxFlags};
use rustix::io::Errno;

use super::mounts_linux::mounts;
use super::storage::{DirectAlignment, StorageFacts, StorageKind};
use crate::error::{Error, Result};

/// What direct reads from disks known are happy with: sectors have 512 or 4096 bytes. Too small
/// only where `statx` tells more, or where the first read fails (`EINVAL`) and is done otherwise.
const DIRECT_ALIGNMENT: u32 = 4096;

/// How deep devices may be stacked, so that a broken `/sys` ends.
const DEEPEST: u32 = 8;

/// What the file or folder at `path` lies on. Links are followed; the right to read the file is
/// not needed, and nothing is read from it. Alignment is told of files only; of a folder it is
/// what can be assumed.
///
/// # Errors
///
/// [`ErrorKind::FileNotFound`](crate::ErrorKind::FileNotFound),
/// [`ErrorKind::PermissionDenied`](crate::ErrorKind::PermissionDenied) and
/// [`ErrorKind::Io`](crate::ErrorKind::Io), with the path. What the system does not tell is no
/// error, but unknown.
pub fn storage_facts(path: impl AsRef<Path>) -> Result<StorageFacts> {
    let path = path.as_ref();
    let ask =
        || StorageFacts::of(rustix::fs::open(path, OFlags::PATH | OFlags::CLOEXEC, Mode::empty())?);
    ask().map_err(|error| Error::io(error.into(), "ask what a file lies on", path.display()))
}

impl StorageFacts {
    /// What an open file lies on.
    pub(crate) fn of(file: impl AsFd) -> Result<Self, Errno> {
        let file = file.as_fd();
        let number = rustix::fs::fstatfs(file)?.f_type as u32;
        let (file_system, kind) = match FILE_SYSTEMS.iter().find(|known| known.0 == number) {
            Some((_, name, kind)) => ((*name).to_owned(), *kind),
            None => (format!("{number:#x}"), StorageKind::Unknown),
        };
        let wanted = StatxFlags::BASIC_STATS | StatxFlags::DIOALIGN | StatxFlags::MNT_ID;
        // Before Linux 4.11, and where a sandbox refuses it, there is no `statx`.
        let Ok(status) = rustix::fs::statx(file, "", AtFlags::EMPTY_PATH, wanted) else {
            let device = rustix::fs::fstat(file)?.st_dev;
            let device = (rustix::fs::major(device), rustix::fs::minor(device));
            let rotational = rotational(Path::new("/"), device, None);
            return Ok(Self { file_system, kind, rotational, direct: direct(kind, None) });
        };
        let has = |flag: StatxFlags| status.stx_mask & flag.bits() != 0;
        let mount = has(StatxFlags::MNT_ID).then_some(status.stx_mnt_id);
        let told = has(StatxFlags::DIOALIGN)
            .then_some((status.stx_dio_mem_align, status.stx_dio_offset_align));
        let device = (status.stx_dev_major, status.stx_dev_minor);
        let rotational = match kind {
            StorageKind::Memory => None,
            _ => rotational(Path::new("/"), device, mount),
        };
        Ok(Self { file_system, kind, rotational, direct: direct(kind, told) })
    }
}

fn direct(kind: StorageKind, told: Option<(u32, u32)>) -> DirectAlignment {
    match (told, kind) {
        (Some((0, _) | (_, 0)), _) => DirectAlignment::Refused,
        (Some((memory, offset)), _) => DirectAlignment::Told { memory, offset },
        (None, StorageKind::Disk | StorageKind::Overlay) => {
            DirectAlignment::Assumed { memory: DIRECT_ALIGNMENT, offset: DIRECT_ALIGNMENT }
        }
        (None, _) => DirectAlignment::Unknown,
    }
}

/// Whether a device rotates. `mount` is the mount's number, for file systems that have no device
/// number of their own (btrfs, overlay): their major number is 0. `root` stands for `/`.
fn rotational(root: &Path, (major, minor): (u32, u32), mount: Option<u64>) -> Option<bool> {
    if major != 0 {
        return rotates(&root.join(format!("sys/dev/block/{major}:{minor}")), DEEPEST);
    }
    let mounts = mounts(root);
    let found = mounts.iter().find(|candidate| match mount {
        Some(mount) => candidate.id == mount,
        None => candidate.device == (major, minor),
    })?;
    let source = found.source.strip_prefix("/dev").ok()?;
    // The name below /dev may be a link, as in /dev/mapper/root -> ../dm-0.
    let device = fs::canonicalize(root.join("dev").join(source)).ok()?;
    rotates(&root.join("sys/class/block").join(device.file_name()?), DEEPEST)
}

/// Whether the block device described by the folder `device` of `/sys` rotates.
fn rotates(device: &Path, deepest: u32) -> Option<bool> {
    // A partition lies in its disk's folder and has no queue of its own.
    let disk = if device.join("queue").is_dir() { device.to_owned() } else { device.join("..") };
    let below = parts(&disk.join("slaves"));
    if below.is_empty() || deepest == 0 {
        let told = fs::read_to_string(disk.join("queue/rotational")).ok()?;
        return match told.trim() {
            "0" => Some(false),
            // The driver of virtio disks says so whatever the host keeps them on.
            "1" if is_virtual(&disk) => None,
            "1" => Some(true),
            _ => None,
        };
    }
    // One head to move makes all of it slow.
    let mut all = Some(false);
    for part in below {
        match rotates(&part, deepest - 1) {
            Some(true) => return Some(true),
            None => all = None,
            Some(false) => {}
        }
    }
    all
}

/// The devices that one is made of (dm, md): links in its folder `slaves`.
fn parts(slaves: &Path) -> Vec<PathBuf> {
    let entries = fs::read_dir(slaves).into_iter().flatten().flatten();
    entries.map(|entry| entry.path()).collect()
}

fn is_virtual(disk: &Path) -> bool {
    fs::read_link(disk.join("device/subsystem")).is_ok_and(|bus| bus.ends_with("virtio"))
}

/// By the number in `f_type`, from the kernel's `linux/magic.h` and, for those that are not in
/// it, the table of coreutils' `stat`.
#[rustfmt::skip]
const FILE_SYSTEMS: &[(u32, &str, StorageKind)] = &[
    (0x0000_ef53, "ext4", StorageKind::Disk),
    (0x5846_5342, "xfs", StorageKind::Disk),
    (0x9123_683e, "btrfs", StorageKind::Disk),
    (0xf2f5_2010, "f2fs", StorageKind::Disk),
    (0x2fc1_2fc1, "zfs", StorageKind::Disk),
    (0xca45_1a4e, "bcachefs", StorageKind::Disk),
    (0x3153_464a, "jfs", StorageKind::Disk),
    (0x5265_4973, "reiserfs", StorageKind::Disk),
    (0x0000_3434, "nilfs", StorageKind::Disk),
    (0x2011_bab0, "exfat", StorageKind::Disk),
    (0x0000_4d44, "vfat", StorageKind::Disk),
    (0x5346_544e, "ntfs", StorageKind::Disk),
    (0x7366_746e, "ntfs3", StorageKind::Disk),
    (0x0000_482b, "hfsplus", StorageKind::Disk),
    (0x0000_9660, "iso9660", StorageKind::Disk),
    (0x1501_3346, "udf", StorageKind::Disk),
    (0x7371_7368, "squashfs", StorageKind::Disk),
    (0xe0f5_e1e2, "erofs", StorageKind::Disk),
    (0x28cd_3d45, "cramfs", StorageKind::Disk),
    (0x2405_1905, "ubifs", StorageKind::Disk),
    (0x0000_72b6, "jffs2", StorageKind::Disk),
    (0x0102_1994, "tmpfs", StorageKind::Memory),
    (0x8584_58f6, "ramfs", StorageKind::Memory),
    (0x9584_58f6, "hugetlbfs", StorageKind::Memory),
    (0x794c_7630, "overlay", StorageKind::Overlay),
    (0x6175_6673, "aufs", StorageKind::Overlay),
    (0x6573_5546, "fuse", StorageKind::Fuse),
    (0x0000_6969, "nfs", StorageKind::Network),
    (0xff53_4d42, "cifs", StorageKind::Network),
    (0xfe53_4d42, "smb2", StorageKind::Network),
    (0x0000_517b, "smb", StorageKind::Network),
    (0x00c3_6400, "ceph", StorageKind::Network),
    (0x0bd0_0bd0, "lustre", StorageKind::Network),
    (0x4750_4653, "gpfs", StorageKind::Network),
    (0x1983_0326, "beegfs", StorageKind::Network),
    (0x2003_0528, "orangefs", StorageKind::Network),
    (0xaad7_aaea, "panfs", StorageKind::Network),
    (0x0102_1997, "9p", StorageKind::Network),
    (0x5346_414f, "afs", StorageKind::Network),
    (0x6b41_4653, "afs", StorageKind::Network),
    (0x7375_7245, "coda", StorageKind::Network),
    (0x7461_636f, "ocfs2", StorageKind::Network),
    (0x0116_1970, "gfs2", StorageKind::Network),
    (0xbacb_acbc, "vmhgfs", StorageKind::Network),
    (0x786f_4256, "vboxsf", StorageKind::Network),
];

#[cfg(test)]
mod tests;
