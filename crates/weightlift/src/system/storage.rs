//! What a file lies on, as data.

use std::fmt;

use serde::{Deserialize, Serialize};

/// What a file lies on, as far as the system tells: what the choice of reads goes by.
///
/// ```
/// let facts = weightlift::storage_facts(std::env::current_exe().unwrap())?;
/// println!("{facts}"); // ext4, disk, does not rotate, direct reads by 512 bytes (memory by 4)
/// # Ok::<(), weightlift::Error>(())
/// ```
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct StorageFacts {
    /// The file system: `ext4` (which ext2 and ext3 call themselves too), `tmpfs`, `overlay`,
    /// `nfs`, `fuse`; of one that is not known, its number, as in `0x1badface`.
    pub file_system: String,
    /// Its kind.
    pub kind: StorageKind,
    /// Whether the disk below has to move a head to read elsewhere; with several disks, whether
    /// any has. `None` where nobody tells, as on a network, and where what is told means nothing:
    /// a virtual disk (virtio) says of itself that it rotates, whatever it lies on.
    pub rotational: Option<bool>,
    /// What reads past the page cache have to be multiples of.
    pub direct: DirectAlignment,
}

/// Kinds of file systems.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum StorageKind {
    /// On block devices of this machine, which may be virtual.
    Disk,
    /// In memory: there is nothing to cache and nothing to gain by direct reads.
    Memory,
    /// On another machine, or on the host of a virtual one.
    Network,
    /// Served by a program; anything can be behind it.
    Fuse,
    /// Laid over other file systems, whose files it passes on, as containers have it.
    Overlay,
    /// Not known.
    Unknown,
}

/// What offset, length and memory address of a direct read (`O_DIRECT`) have to be multiples of,
/// in bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(tag = "state", rename_all = "snake_case")]
#[non_exhaustive]
pub enum DirectAlignment {
    /// The system told (`statx`, Linux 6.1 or newer, and a file system that answers).
    Told {
        /// Of the address.
        memory: u32,
        /// Of the offset and the length.
        offset: u32,
    },
    /// The system did not tell, and this suits all disks known; the first read decides.
    Assumed {
        /// Of the address.
        memory: u32,
        /// Of the offset and the length.
        offset: u32,
    },
    /// The system told that this file has no direct reads.
    Refused,
    /// The system did not tell, and nothing can be assumed.
    Unknown,
}

impl fmt::Display for StorageKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Disk => "disk",
            Self::Memory => "memory",
            Self::Network => "network",
            Self::Fuse => "fuse",
            Self::Overlay => "overlay",
            Self::Unknown => "unknown",
        })
    }
}

impl fmt::Display for DirectAlignment {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Told { memory, offset } => {
                write!(f, "direct reads by {offset} bytes (memory by {memory})")
            }
            Self::Assumed { memory, offset } => {
                write!(f, "direct reads perhaps, by {offset} bytes (memory by {memory})")
            }
            Self::Refused => f.write_str("no direct reads"),
            Self::Unknown => f.write_str("direct reads unknown"),
        }
    }
}

impl fmt::Display for StorageFacts {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let rotates = match self.rotational {
            Some(true) => "rotates",
            Some(false) => "does not rotate",
            None => "rotation unknown",
        };
        write!(f, "{}, {}, {rotates}, {}", self.file_system, self.kind, self.direct)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn facts_are_a_line_and_json() {
        let facts = StorageFacts {
            file_system: "ext4".into(),
            kind: StorageKind::Disk,
            rotational: Some(false),
            direct: DirectAlignment::Told { memory: 4, offset: 512 },
        };
        assert_eq!(
            facts.to_string(),
            "ext4, disk, does not rotate, direct reads by 512 bytes (memory by 4)"
        );
        let json = serde_json::to_value(&facts).unwrap();
        let expected = serde_json::json!({
            "file_system": "ext4", "kind": "disk", "rotational": false,
            "direct": {"state": "told", "memory": 4, "offset": 512},
        });
        assert_eq!(json, expected);
        assert_eq!(serde_json::from_value::<StorageFacts>(json).unwrap(), facts);
    }
}
