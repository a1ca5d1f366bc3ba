use std::os::unix::fs::symlink;

use super::*;
use crate::error::ErrorKind;

/// A folder that stands for `/`.
struct Tree(tempfile::TempDir);

impl Tree {
    fn new() -> Self {
        Self(tempfile::tempdir().unwrap())
    }

    fn write(&self, path: &str, text: &str) -> &Self {
        let path = self.0.path().join(path);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, text).unwrap();
        self
    }

    /// `target` is seen from the folder of the link, as in `/sys`.
    fn link(&self, path: &str, target: &str) -> &Self {
        let path = self.0.path().join(path);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        symlink(target, path).unwrap();
        self
    }

    fn rotational(&self, device: (u32, u32), mount: Option<u64>) -> Option<bool> {
        rotational(self.0.path(), device, mount)
    }
}

/// A disk `sda` that rotates with a partition, and a disk `nvme0n1` that does not.
fn two_disks() -> Tree {
    let tree = Tree::new();
    tree.write("sys/devices/ata1/block/sda/queue/rotational", "1\n")
        .write("sys/devices/ata1/block/sda/sda1/partition", "1\n")
        .link("sys/devices/ata1/block/sda/device/subsystem", "../../../../bus/scsi")
        .write("sys/devices/nvme/nvme0n1/queue/rotational", "0\n")
        .link("sys/dev/block/8:0", "../../devices/ata1/block/sda")
        .link("sys/dev/block/8:1", "../../devices/ata1/block/sda/sda1")
        .link("sys/dev/block/259:0", "../../devices/nvme/nvme0n1")
        .link("sys/class/block/sda", "../../devices/ata1/block/sda")
        .link("sys/class/block/sda1", "../../devices/ata1/block/sda/sda1");
    tree
}

#[test]
fn a_disk_and_its_partition_tell_whether_they_rotate() {
    let tree = two_disks();
    assert_eq!(tree.rotational((8, 0), None), Some(true));
    assert_eq!(tree.rotational((8, 1), None), Some(true));
    assert_eq!(tree.rotational((259, 0), None), Some(false));
    assert_eq!(tree.rotational((7, 7), None), None);
    tree.write("sys/devices/nvme/nvme0n1/queue/rotational", "perhaps");
    assert_eq!(tree.rotational((259, 0), None), None);
}

#[test]
fn of_several_disks_one_that_rotates_is_enough() {
    let tree = two_disks();
    tree.write("sys/devices/virtual/block/dm-0/queue/rotational", "0\n")
        .link("sys/devices/virtual/block/dm-0/slaves/nvme0n1", "../../../../nvme/nvme0n1")
        .link("sys/dev/block/253:0", "../../devices/virtual/block/dm-0");
    assert_eq!(tree.rotational((253, 0), None), Some(false));
    tree.link("sys/devices/virtual/block/dm-0/slaves/sda1", "../../../../ata1/block/sda/sda1");
    assert_eq!(tree.rotational((253, 0), None), Some(true));
}

#[test]
fn stacked_disks_of_which_one_does_not_tell_are_unknown_and_circles_end() {
    let tree = two_disks();
    tree.write("sys/devices/virtual/block/md0/queue/rotational", "0\n")
        .link("sys/devices/virtual/block/md0/slaves/nvme0n1", "../../../../nvme/nvme0n1")
        .link("sys/devices/virtual/block/md0/slaves/gone", "../../../../gone")
        .link("sys/dev/block/9:0", "../../devices/virtual/block/md0");
    assert_eq!(tree.rotational((9, 0), None), None);

    tree.write("sys/devices/virtual/block/md1/queue/rotational", "1\n")
        .link("sys/devices/virtual/block/md1/slaves/md1", "../../md1")
        .link("sys/dev/block/9:1", "../../devices/virtual/block/md1");
    assert_eq!(tree.rotational((9, 1), None), Some(true));
}

/// Virtual machines with flash below them would be read by one thread, as a rotating disk is.
#[test]
fn a_virtual_disk_that_says_it_rotates_does_not_know() {
    let tree = Tree::new();
    tree.write("sys/devices/virtio1/block/vda/queue/rotational", "1\n")
        .write("sys/devices/virtio1/block/vda/vda1/partition", "1\n")
        .link("sys/devices/virtio1/block/vda/device/subsystem", "../../../../../bus/virtio")
        .link("sys/dev/block/254:0", "../../devices/virtio1/block/vda")
        .link("sys/dev/block/254:1", "../../devices/virtio1/block/vda/vda1");
    assert_eq!(tree.rotational((254, 0), None), None);
    assert_eq!(tree.rotational((254, 1), None), None);
}

#[test]
fn without_a_device_number_the_mounts_source_is_asked() {
    let tree = two_disks();
    tree.write("dev/sda1", "").write("dev/sda", "").link("dev/mapper/models", "../sda").write(
        "proc/self/mountinfo",
        "30 1 0:40 /@ /data rw - btrfs /dev/sda1 rw\n\
         31 1 0:41 / /more rw - btrfs /dev/mapper/models rw\n\
         32 1 0:42 / /image rw - overlay overlay rw,lowerdir=/dev/sda1\n\
         33 1 0:43 / /gone rw - btrfs /dev/gone rw\n",
    );
    // The number that btrfs gives a file is not the one of its mount.
    assert_eq!(tree.rotational((0, 99), Some(30)), Some(true));
    assert_eq!(tree.rotational((0, 99), None), None);
    assert_eq!(tree.rotational((0, 41), None), Some(true));
    assert_eq!(tree.rotational((0, 42), Some(32)), None);
    assert_eq!(tree.rotational((0, 43), Some(33)), None);
    assert_eq!(tree.rotational((0, 99), Some(34)), None);
}

#[test]
fn alignment_is_what_was_told_or_assumed_where_that_can_be_tried() {
    use DirectAlignment::{Assumed, Refused, Told, Unknown};
    let disk = StorageKind::Disk;
    assert_eq!(direct(disk, Some((4, 512))), Told { memory: 4, offset: 512 });
    assert_eq!(direct(disk, Some((0, 0))), Refused);
    assert_eq!(
        direct(StorageKind::Network, Some((4096, 131_072))),
        Told { memory: 4096, offset: 131_072 }
    );
    for kind in [StorageKind::Disk, StorageKind::Overlay] {
        assert_eq!(direct(kind, None), Assumed { memory: 4096, offset: 4096 });
    }
    for kind in [StorageKind::Memory, StorageKind::Network, StorageKind::Fuse, StorageKind::Unknown]
    {
        assert_eq!(direct(kind, None), Unknown);
    }
}

#[test]
fn no_file_system_is_in_the_table_twice() {
    for (at, entry) in FILE_SYSTEMS.iter().enumerate() {
        assert!(FILE_SYSTEMS[..at].iter().all(|other| other.0 != entry.0), "{entry:?}");
    }
}

#[test]
fn what_is_no_file_system_for_models_is_told_by_number() {
    let facts = storage_facts("/proc/self/stat").unwrap();
    assert_eq!((facts.file_system.as_str(), facts.kind), ("0x9fa0", StorageKind::Unknown));
    assert_eq!(facts.direct, DirectAlignment::Unknown);
}

#[test]
fn memory_is_told_from_disks() {
    const TEST: &str = "memory_is_told_from_disks";
    let Ok(facts) = storage_facts("/dev/shm") else {
        return testkit::skipped(TEST, "there is no /dev/shm");
    };
    assert_eq!((facts.kind, facts.rotational), (StorageKind::Memory, None), "{facts}");
    // That it has direct reads since Linux 6.6 is nothing that we use.
    assert!(!matches!(facts.direct, DirectAlignment::Assumed { .. }), "{facts}");
}

/// What was told is tried: a read so aligned works, and one by less than that does not.
#[test]
fn a_direct_read_as_told_works() {
    const TEST: &str = "a_direct_read_as_told_works";
    let file = tempfile::NamedTempFile::new().unwrap();
    fs::write(file.path(), vec![7; 1 << 20]).unwrap();
    let facts = storage_facts(file.path()).unwrap();
    let DirectAlignment::Told { offset, .. } = facts.direct else {
        return testkit::skipped(TEST, &format!("nothing was told: {facts}"));
    };
    let flags = OFlags::RDONLY | OFlags::DIRECT | OFlags::CLOEXEC;
    let direct = rustix::fs::open(file.path(), flags, Mode::empty()).unwrap();
    let mut memory = vec![0_u8; 3 * 65_536];
    let start = memory.as_ptr().align_offset(65_536);
    let step = usize::try_from(offset).unwrap();
    let place = &mut memory[start..start + step];
    assert_eq!(rustix::io::pread(&direct, &mut *place, u64::from(offset)), Ok(step));
    assert!(place.iter().all(|byte| *byte == 7));
    let half = rustix::io::pread(&direct, &mut place[..step / 2], u64::from(offset / 2));
    assert_eq!(half, Err(Errno::INVAL), "{facts}");
}

#[test]
fn what_is_not_there_is_an_error_with_its_path() {
    let error = storage_facts("/nowhere/at all").unwrap_err();
    assert_eq!(error.kind(), ErrorKind::FileNotFound);
    assert_eq!(error.value("path"), Some("/nowhere/at all"));
}
