//! Memory groups (cgroup v1 and v2) of tests' own.

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};

static NUMBER: AtomicU64 = AtomicU64::new(0);

/// A memory group, removed when dropped. Who may make one: root, where there are groups.
pub struct Group(PathBuf);

impl Group {
    pub fn new(limit: u64) -> Result<Self, String> {
        // Version 1 has a tree for memory, version 2 one for all.
        let trees =
            [("/sys/fs/cgroup/memory", "memory.limit_in_bytes"), ("/sys/fs/cgroup", "memory.max")];
        let mut why = "no memory groups here".to_owned();
        for (tree, file) in trees {
            if !Path::new(tree).join("cgroup.procs").exists() {
                continue;
            }
            // Tests of this process run side by side.
            let number = NUMBER.fetch_add(1, Ordering::Relaxed);
            let name = format!("weightlift-test-{}-{number}", std::process::id());
            let path = Path::new(tree).join(name);
            match fs::create_dir(&path) {
                Ok(()) => {
                    let group = Self(path);
                    match fs::write(group.0.join(file), limit.to_string()) {
                        Ok(()) => return Ok(group),
                        Err(error) => why = format!("cannot limit a memory group: {error}"),
                    }
                }
                Err(error) => why = format!("cannot make a memory group: {error}"),
            }
        }
        Err(why)
    }

    pub fn path(&self) -> &Path {
        &self.0
    }

    /// Moves this process into the group of that path.
    pub fn enter(path: &Path) {
        let own = std::process::id().to_string();
        fs::write(path.join("cgroup.procs"), own).expect("a group that was made for us");
    }
}

impl Drop for Group {
    fn drop(&mut self) {
        // Its last process may not be gone yet; an empty group that stays is small.
        let _ = fs::remove_dir(&self.0);
    }
}
