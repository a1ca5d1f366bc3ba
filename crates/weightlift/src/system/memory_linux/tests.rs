use std::process::Command;

use super::*;

const MIB: u64 = 1 << 20;
const GIB: u64 = 1 << 30;

/// A folder that stands for `/`.
struct Tree(tempfile::TempDir);

impl Tree {
    /// A machine with 64 GiB available.
    fn new() -> Self {
        let tree = Self(tempfile::tempdir().unwrap());
        tree.write(
            "proc/meminfo",
            "MemTotal: 99000000 kB\nMemFree: 1 kB\nMemAvailable:   67108864 kB\n",
        );
        tree
    }

    fn write(&self, path: &str, text: impl ToString) -> &Self {
        let path = self.0.path().join(path);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, text.to_string()).unwrap();
        self
    }

    /// Version 2 alone, and the process in the group `path`.
    fn v2(&self, path: &str) -> &Self {
        self.write("proc/self/cgroup", format!("0::{path}\n")).write(
            "proc/self/mountinfo",
            "31 23 0:28 / /sys/fs/cgroup rw shared:4 - cgroup2 cgroup2 rw,nsdelegate\n",
        )
    }

    /// Version 1 for memory, version 2 for nothing; `root` is what of the groups is mounted.
    fn v1(&self, path: &str, root: &str) -> &Self {
        let groups =
            format!("5:cpu,cpuacct:/elsewhere\n4:memory:{path}\n1:name=systemd:/x\n0::/y\n");
        let mounts = format!(
            "30 23 0:29 {root} /sys/fs/cgroup/cpu rw - cgroup cgroup rw,cpu,cpuacct\n\
             31 23 0:30 {root} /sys/fs/cgroup/memory rw - cgroup cgroup rw,memory\n\
             32 23 0:31 / /sys/fs/cgroup/unified rw - cgroup2 cgroup2 rw\n"
        );
        self.write("proc/self/cgroup", groups).write("proc/self/mountinfo", mounts)
    }

    fn group(&self, folder: &str, files: &[(&str, String)]) -> &Self {
        for (name, text) in files {
            self.write(&format!("sys/fs/cgroup/{folder}/{name}"), text);
        }
        self
    }

    fn available(&self) -> u64 {
        available(self.0.path(), || panic!("the machine's own memory is told"))
    }
}

fn v2_group(max: &str, current: u64, active: u64, inactive: u64) -> Vec<(&'static str, String)> {
    let stat = format!("anon 5\nfile 9\nactive_file {active}\ninactive_file {inactive}\n");
    vec![
        ("memory.max", format!("{max}\n")),
        ("memory.current", format!("{current}\n")),
        ("memory.stat", stat),
    ]
}

fn v1_group(limit: u64, usage: u64, files: u64) -> Vec<(&'static str, String)> {
    // The numbers of the group alone come first and are smaller.
    let stat = format!(
        "active_file 0\ninactive_file 1\nhierarchical_memory_limit 9223372036854771712\n\
         total_active_file {files}\ntotal_inactive_file 0\n"
    );
    vec![
        ("memory.limit_in_bytes", format!("{limit}\n")),
        ("memory.usage_in_bytes", format!("{usage}\n")),
        ("memory.stat", stat),
    ]
}

#[test]
fn without_groups_it_is_what_the_machine_has() {
    assert_eq!(Tree::new().available(), 64 * GIB);
}

#[test]
fn a_machine_that_does_not_tell_is_asked_otherwise() {
    let tree = Tree::new();
    for text in ["MemFree: 7 kB\n", "MemAvailable: many kB\n", "MemAvailable: 7\n", ""] {
        tree.write("proc/meminfo", text);
        assert_eq!(available(tree.0.path(), || 42), 42, "{text}");
    }
    assert_eq!(available(Path::new("/nowhere"), || 42), 42);
    // And a group counts then too.
    tree.v2("/a").group("a", &v2_group("30", 0, 0, 0));
    assert_eq!(available(tree.0.path(), || 42), 30);
}

/// Read as used, the page cache of a model read twice would leave nothing.
#[test]
fn in_version_2_pages_of_files_count_as_left() {
    let tree = Tree::new();
    tree.v2("/box").group("box", &v2_group("536870912", 500 * MIB, 300 * MIB, 100 * MIB));
    assert_eq!(tree.available(), 412 * MIB);
}

#[test]
fn of_nested_groups_the_tightest_counts_wherever_it_stands() {
    let tree = Tree::new();
    tree.v2("/a/b/c")
        .group("a", &v2_group("1073741824", 900 * MIB, 0, 0))
        .group("a/b", &v2_group("max", 800 * MIB, 0, 0))
        .group("a/b/c", &v2_group("2147483648", 100 * MIB, 0, 0));
    assert_eq!(tree.available(), 124 * MIB);
    let (limit, folder) = tightest(tree.0.path()).unwrap();
    assert_eq!((limit, folder.ends_with("a")), (1 << 30, true));
    tree.group("a/b", &v2_group("838860900", 800 * MIB, 0, 0));
    assert_eq!(tree.available(), 100);
    tree.group("a/b/c", &v2_group("0", 100 * MIB, 0, 0));
    assert_eq!(tree.available(), 0);
}

/// A container's own group is the top of what it sees, and has files there.
#[test]
fn the_topmost_group_counts_too() {
    let tree = Tree::new();
    tree.v2("/").group("", &v2_group("1000", 100, 50, 0));
    assert_eq!(tree.available(), 950);
    tree.v2("/../../elsewhere");
    assert_eq!(tree.available(), 950);
}

#[test]
fn a_group_is_slowed_down_above_its_high_mark() {
    let tree = Tree::new();
    tree.v2("/a")
        .group("a", &v2_group("1000", 100, 0, 0))
        .write("sys/fs/cgroup/a/memory.high", "600\n");
    assert_eq!(tree.available(), 500);
    tree.write("sys/fs/cgroup/a/memory.high", "max\n");
    assert_eq!(tree.available(), 900);
}

#[test]
fn in_version_1_the_groups_below_count_with_their_files() {
    let tree = Tree::new();
    tree.v1("/docker/x", "/")
        .group("memory", &v1_group(9_223_372_036_854_771_712, 9 * GIB, 0))
        .group("memory/docker", &v1_group(GIB, 1000 * MIB, 400 * MIB))
        .group("memory/docker/x", &v1_group(9_223_372_036_854_771_712, 9 * GIB, 0));
    assert_eq!(tree.available(), 424 * MIB);
    // The unified tree beside it has no limits, and its group of the same name is not ours.
    tree.group("unified/docker/x", &v2_group("1", 0, 0, 0));
    assert_eq!(tree.available(), 424 * MIB);
    tree.group("unified/y", &v2_group("5", 0, 0, 0));
    assert_eq!(tree.available(), 5);
}

/// In a container the path is the host's, and what is mounted is the group itself.
#[test]
fn a_mounted_part_of_the_tree_is_where_the_path_begins() {
    let tree = Tree::new();
    tree.v1("/docker/x/inner", "/docker/x")
        .group("memory", &v1_group(800, 100, 0))
        .group("memory/inner", &v1_group(500, 100, 0));
    assert_eq!(tree.available(), 400);
    tree.v1("/somewhere/else", "/docker/x");
    assert_eq!(tree.available(), 700);
}

#[test]
fn a_limit_above_what_a_container_sees_counts() {
    let tree = Tree::new();
    tree.v1("/docker/x", "/docker/x")
        .group("memory", &v1_group(9_223_372_036_854_771_712, 100, 0))
        .write("sys/fs/cgroup/memory/memory.stat", "hierarchical_memory_limit 700\n");
    assert_eq!(tree.available(), 600);
}

#[test]
fn without_the_sums_the_groups_own_numbers_serve() {
    let tree = Tree::new();
    tree.v1("/a", "/")
        .group("memory/a", &v1_group(1000, 500, 0))
        .write("sys/fs/cgroup/memory/a/memory.stat", "active_file 100\ninactive_file 50\n");
    assert_eq!(tree.available(), 650);
}

#[test]
fn missing_files_and_garbage_limit_nothing_they_do_not_tell() {
    let tree = Tree::new();
    tree.v2("/a/b");
    assert_eq!(tree.available(), 64 * GIB);
    tree.group("a/b", &[("memory.max", "1000".into())]);
    assert_eq!(tree.available(), 1000);
    tree.group(
        "a/b",
        &[("memory.current", "x".into()), ("memory.stat", "\u{0}active_file".into())],
    );
    assert_eq!(tree.available(), 1000);
    // More files than what is used: numbers of two moments.
    tree.group("a/b", &v2_group("1000", 10, 20, u64::MAX));
    assert_eq!(tree.available(), 990);
    tree.group("a/b", &v2_group("1000", 10, 20, 20));
    assert_eq!(tree.available(), 1000);
    for garbage in ["-1", "1000 bytes", "", "99999999999999999999999"] {
        tree.group("a/b", &v2_group(garbage, 10, 0, 0));
        assert_eq!(tree.available(), 64 * GIB, "{garbage}");
    }
    tree.write("proc/self/cgroup", "0:\n::\n:memory\n4:memory\n0::")
        .write("proc/self/mountinfo", "31");
    assert_eq!(tree.available(), 64 * GIB);
}

/// In a group of this machine, which the test makes, with a child that asks.
#[test]
fn a_real_group_of_512_mib_leaves_no_more() {
    const TEST: &str = "a_real_group_of_512_mib_leaves_no_more";
    const ASK: &str = "WEIGHTLIFT_TEST_ASK_AVAILABLE";
    if std::env::var_os(ASK).is_some() {
        println!("available={}", available_memory());
        return;
    }
    let Some((folder, names)) = groups(Path::new("/")).into_iter().find_map(|group| {
        let limited = group.folder.join(format!("weightlift-{}", std::process::id()));
        fs::create_dir(&limited).ok()?;
        let limit = limited.join(group.names.limits[0]);
        let written = fs::write(limit, (512 * MIB).to_string());
        written.map_err(|_| fs::remove_dir(&limited)).ok()?;
        Some((limited, group.names))
    }) else {
        return testkit::skipped(TEST, "no control group for memory can be made here");
    };
    let name = format!("system::memory_linux::tests::{TEST}");
    let join_and_run = "echo $$ >\"$1/cgroup.procs\" && exec \"$0\" --exact \"$2\" --nocapture";
    let output = Command::new("sh")
        .args(["-c", join_and_run])
        .arg(std::env::current_exe().unwrap())
        .arg(&folder)
        .arg(name)
        .env(ASK, "1")
        .output();
    let used = Group { folder: folder.clone(), names }.left();
    fs::remove_dir(&folder).unwrap();
    let output = output.unwrap();
    let text = String::from_utf8_lossy(&output.stdout);
    let told = text.split("available=").nth(1).and_then(|rest| rest.lines().next());
    let told: u64 = told.unwrap_or_else(|| panic!("{output:?}")).parse().unwrap();
    // The child itself takes a little of it.
    assert!((448 * MIB..=512 * MIB).contains(&told), "{told}");
    assert!(used.is_some_and(|left| left <= 512 * MIB), "{used:?}");
}

#[test]
fn free_memory_in_large_pieces_is_counted() {
    let text = "\
Node 0, zone      DMA      0      0      0      0      0      0      0      0      1      1      3
Node 0, zone   Normal   5991   2817    714    150    124     37     11      6      2      2      6
";
    // Two and one of 2 MiB, six and three of 4 MiB.
    assert_eq!(in_large_pieces(text), Some((3 * 2 + 9 * 4) * MIB));
    assert_eq!(
        in_large_pieces("Node 0, zone Normal 1 2 3"),
        None,
        "no pieces of that size are told"
    );
    assert_eq!(in_large_pieces("nothing of the kind"), None);
    assert_eq!(in_large_pieces(""), None);
    assert!(free_huge_pages().is_none_or(|bytes| bytes <= 1 << 50));
}
