//! What the system tells beside what loads ask it.

use std::fs;
use std::path::Path;

use rustix::process::{Resource, getrlimit};
use serde::Serialize;

/// The system, its limits, and what of GPUDirect Storage it has.
#[derive(Debug, Serialize)]
pub(super) struct System {
    pub(super) kernel: String,
    /// `always`, `madvise` or `never`, where the system tells.
    pub(super) huge_pages: Option<String>,
    /// Bytes that a process may lock in memory; `None` is no limit.
    pub(super) locked_memory: Option<u64>,
    /// The version of NVIDIA's kernel module, where it is loaded.
    pub(super) nvidia_module: Option<String>,
    /// Whether the module for GPUDirect Storage is loaded.
    pub(super) nvidia_fs: bool,
}

impl System {
    pub(super) fn ask() -> Self {
        let system = rustix::system::uname();
        let text = |part: &std::ffi::CStr| part.to_string_lossy().into_owned();
        Self {
            kernel: format!("{} {}", text(system.sysname()), text(system.release())),
            huge_pages: read("/sys/kernel/mm/transparent_hugepage/enabled")
                .and_then(|modes| Some(chosen(&modes)?.to_owned())),
            locked_memory: getrlimit(Resource::Memlock).current,
            nvidia_module: read("/sys/module/nvidia/version"),
            nvidia_fs: Path::new("/proc/driver/nvidia-fs").exists(),
        }
    }
}

/// `madvise` of `always [madvise] never`.
fn chosen(modes: &str) -> Option<&str> {
    Some(modes.split_once('[')?.1.split_once(']')?.0)
}

/// A device's link to the PCI bus: what it is now, and what it can be.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub(super) struct Link {
    /// Transfers a second of a lane, in 10^9: 32 is PCIe 5.
    pub(super) speed: f64,
    /// Lanes.
    pub(super) width: u32,
    pub(super) most_speed: f64,
    pub(super) most_width: u32,
}

impl Link {
    /// Of the device with that address; `None` where the system does not tell.
    pub(super) fn of(pci: &str) -> Option<Self> {
        // A name of the driver's becomes part of a path.
        if pci.contains('/') {
            return None;
        }
        Self::in_folder(&Path::new("/sys/bus/pci/devices").join(pci))
    }

    fn in_folder(folder: &Path) -> Option<Self> {
        let text = |name: &str| fs::read_to_string(folder.join(name)).ok();
        // `32.0 GT/s PCIe`
        let speed = |name: &str| text(name)?.split_whitespace().next()?.parse::<f64>().ok();
        let width = |name: &str| text(name)?.trim().parse::<u32>().ok();
        let link = Self {
            speed: speed("current_link_speed")?,
            width: width("current_link_width")?,
            most_speed: speed("max_link_speed")?,
            most_width: width("max_link_width")?,
        };
        // Virtual devices say 0, or 63 lanes.
        let is_one = |speed: f64, width: u32| speed > 0.0 && (1..=32).contains(&width);
        (is_one(link.speed, link.width) && is_one(link.most_speed, link.most_width)).then_some(link)
    }

    /// What it carries at most one way now. From PCIe 3 to 5 (8 to 32 GT/s) 128 bits of 130 are
    /// data, before that 8 of 10; PCIe 6 loses about as little (PCI Express Base Specification).
    pub(super) fn bytes_per_second(&self) -> Option<f64> {
        let data = if self.speed < 8.0 { 8.0 / 10.0 } else { 128.0 / 130.0 };
        Some(self.speed * 1e9 * f64::from(self.width) * data / 8.0)
    }
}

fn read(path: &str) -> Option<String> {
    Some(fs::read_to_string(path).ok()?.trim().to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_mode_in_brackets_is_chosen() {
        assert_eq!(chosen("always [madvise] never"), Some("madvise"));
        assert_eq!(chosen("always madvise"), None);
    }

    #[test]
    fn a_link_is_what_the_system_says() {
        let folder = tempfile::tempdir().unwrap();
        let write = |name: &str, text: &str| fs::write(folder.path().join(name), text).unwrap();
        assert_eq!(Link::in_folder(folder.path()), None);
        write("current_link_speed", "32.0 GT/s PCIe\n");
        write("current_link_width", "16\n");
        write("max_link_speed", "32.0 GT/s PCIe\n");
        assert_eq!(Link::in_folder(folder.path()), None);
        write("max_link_width", "16\n");
        let link = Link::in_folder(folder.path()).unwrap();
        assert_eq!((link.speed, link.width), (32.0, 16));
        let rate = link.bytes_per_second().unwrap();
        assert!((rate / 63.0e9 - 1.0).abs() < 0.001, "{rate}");
        write("current_link_width", "0\n");
        assert_eq!(Link::in_folder(folder.path()), None);
        write("current_link_width", "8\n");
        write("current_link_speed", "Unknown\n");
        assert_eq!(Link::in_folder(folder.path()), None);
        assert_eq!(Link::of("../../etc"), None);
    }
}
