//! How much memory this process may still take.

use std::fs;
use std::path::{Component, Path, PathBuf};

use super::PAGE;
use super::mounts_linux::{Mount, mounts};

/// Limits from here on are none: the first version of control groups says "no limit" as the
/// largest number of whole pages, 2^63 less a page.
const NO_LIMIT: u64 = 1 << 60;

/// How many bytes this process may still take without anything being swapped, slowed down or
/// killed: what the machine has available, or what is left in the tightest of the control groups
/// (cgroup v1 and v2) that the process is in, whichever is less. What files have in the page cache
/// counts as left, since the kernel gives it up for whoever needs memory.
///
/// It is true for the moment: others take memory too. 0 where nothing is left.
pub fn available_memory() -> u64 {
    available(Path::new("/"), || {
        let info = rustix::system::sysinfo();
        (info.freeram as u64).saturating_mul(u64::from(info.mem_unit))
    })
}

/// Bytes of free swap: what needs them is slow, and is not killed.
pub(crate) fn free_swap() -> u64 {
    let info = rustix::system::sysinfo();
    (info.freeswap as u64).saturating_mul(u64::from(info.mem_unit))
}

/// Bytes of free memory that lie in pieces of 2 MiB or more, now; `None` where the system does not
/// tell.
pub(crate) fn free_huge_pages() -> Option<u64> {
    in_large_pieces(&fs::read_to_string("/proc/buddyinfo").ok()?)
}

/// Sums up lines such as `Node 0, zone Normal 8409 2654 835 ...`: free pieces of 1, 2, 4 pages and so
/// on, up to 4 MiB.
fn in_large_pieces(buddyinfo: &str) -> Option<u64> {
    const ORDER: usize = (2_usize << 20).ilog2() as usize - PAGE.ilog2() as usize;
    let mut sum = None;
    for line in buddyinfo.lines() {
        let pieces = line.split_once("zone")?.1.split_whitespace().skip(1);
        for (order, count) in pieces.enumerate().skip(ORDER) {
            let bytes = count.parse::<u64>().ok()?.checked_mul((PAGE as u64) << order)?;
            sum = Some(sum.unwrap_or(0_u64).checked_add(bytes)?);
        }
    }
    sum
}

/// `root` stands for `/`; `free` is asked where `/proc` has no answer.
fn available(root: &Path, free: impl FnOnce() -> u64) -> u64 {
    let machine = machine(root).unwrap_or_else(free);
    groups(root).iter().filter_map(Group::left).fold(machine, u64::min)
}

/// The tightest limit of memory of the control groups that this process is in, in bytes, and the
/// folder of that group; `None` where none has a limit.
pub(crate) fn memory_limit() -> Option<(u64, PathBuf)> {
    tightest(Path::new("/"))
}

fn tightest(root: &Path) -> Option<(u64, PathBuf)> {
    let limit = |group: Group| Some((group.limit(&group.stat())?, group.folder));
    groups(root).into_iter().filter_map(limit).min()
}

/// The number in a line of `memory.stat`.
fn line(stat: &str, name: &str) -> Option<u64> {
    stat.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(' ')?.parse().ok())
}

/// What the kernel thinks can be had without swapping (Linux 3.14 or newer).
fn machine(root: &Path) -> Option<u64> {
    let text = fs::read_to_string(root.join("proc/meminfo")).ok()?;
    let line = text.lines().find_map(|line| line.strip_prefix("MemAvailable:"))?;
    let kib: u64 = line.trim().strip_suffix("kB")?.trim().parse().ok()?;
    kib.checked_mul(1024)
}

/// A control group: its folder, and the names that its version has for things.
struct Group {
    folder: PathBuf,
    names: &'static Names,
}

struct Names {
    /// Files with limits.
    limits: &'static [&'static str],
    /// The file with what is used, by it and the groups below.
    used: &'static str,
    /// Lines of `memory.stat` with pages of files, for it and the groups below; where they are
    /// missing, those after them for the group alone.
    files: &'static [[&'static str; 2]],
    /// A line of `memory.stat` with a limit.
    stat_limit: Option<&'static str>,
}

static V1: Names = Names {
    limits: &["memory.limit_in_bytes"],
    used: "memory.usage_in_bytes",
    files: &[["total_active_file", "total_inactive_file"], ["active_file", "inactive_file"]],
    // Holds also for groups above that a container does not see.
    stat_limit: Some("hierarchical_memory_limit"),
};

static V2: Names = Names {
    // Above `memory.high` a process is slowed down until it has given back.
    limits: &["memory.max", "memory.high"],
    used: "memory.current",
    files: &[["active_file", "inactive_file"]],
    stat_limit: None,
};

impl Group {
    /// What its processes may take in all; `None` if it has no limit. `stat` is the text of its
    /// `memory.stat`.
    fn limit(&self, stat: &str) -> Option<u64> {
        let limits = self.names.limits.iter().filter_map(|name| self.number(name));
        let of_stat = self.names.stat_limit.and_then(|name| line(stat, name));
        limits.chain(of_stat).filter(|limit| *limit < NO_LIMIT).min()
    }

    fn stat(&self) -> String {
        fs::read_to_string(self.folder.join("memory.stat")).unwrap_or_default()
    }

    /// What may still be taken in this group; `None` if it has no limit.
    fn left(&self) -> Option<u64> {
        let stat = self.stat();
        let limit = self.limit(&stat)?;
        // Where it does not say what is used, its limit is all that is known.
        let used = self.number(self.names.used).unwrap_or(0);
        let files: u64 = self
            .names
            .files
            .iter()
            .find_map(|[active, inactive]| line(&stat, active)?.checked_add(line(&stat, inactive)?))
            .unwrap_or(0);
        Some(limit.saturating_sub(used.saturating_sub(files)))
    }

    /// The number in a file of the group; `None` for `max` and whatever else is none.
    fn number(&self, file: &str) -> Option<u64> {
        fs::read_to_string(self.folder.join(file)).ok()?.trim().parse().ok()
    }
}

/// The groups that this process is in, with all groups above them that can be seen, of both
/// versions: a machine may have the one for memory and the other for the rest.
fn groups(root: &Path) -> Vec<Group> {
    // Paths may be anything but UTF-8; such a group is not found, those above it are.
    let text = fs::read(root.join("proc/self/cgroup")).unwrap_or_default();
    let text = String::from_utf8_lossy(&text);
    let mounts = mounts(root);
    let mut groups = Vec::new();
    for line in text.lines() {
        // `4:memory,other:/path` of version 1, `0::/path` of version 2.
        let mut fields = line.splitn(3, ':');
        let (Some(number), Some(controllers), Some(path)) =
            (fields.next(), fields.next(), fields.next())
        else {
            continue;
        };
        let names = if controllers.split(',').any(|name| name == "memory") {
            &V1
        } else if number == "0" && controllers.is_empty() {
            &V2
        } else {
            continue;
        };
        let is_it = |mount: &&Mount| match mount.file_system.as_str() {
            "cgroup" => {
                std::ptr::eq(names, &V1) && mount.options.split(',').any(|name| name == "memory")
            }
            "cgroup2" => std::ptr::eq(names, &V2),
            _ => false,
        };
        let Some(mount) = mounts.iter().find(is_it) else { continue };
        let top = below(root, &mount.point);
        // What is mounted may be a group somewhere in the tree, as in containers: then the paths
        // are those of the host. And a process may have been moved out of what it sees (`/..`).
        let path = Path::new(path);
        let inside = path.strip_prefix(&mount.root).unwrap_or(Path::new(""));
        let hidden = inside.components().any(|part| part == Component::ParentDir);
        let own = if hidden { top.clone() } else { below(&top, inside) };
        for folder in own.ancestors() {
            groups.push(Group { folder: folder.to_owned(), names });
            if folder == top {
                break;
            }
        }
    }
    groups
}

/// The absolute or relative `path` as seen in `root`.
fn below(root: &Path, path: &Path) -> PathBuf {
    let relative = path.strip_prefix("/").unwrap_or(path);
    if relative.as_os_str().is_empty() { root.to_owned() } else { root.join(relative) }
}

#[cfg(test)]
mod tests;
