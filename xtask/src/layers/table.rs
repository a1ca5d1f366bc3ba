//! Who may import whom, where `unsafe` may stand, and which files may ask for the platform.
//!
//! The rules themselves, as data. To change the architecture, change this file and
//! ARCHITECTURE.md together.

/// A room of crate `weightlift`: a file or folder directly under `src`.
pub struct Room {
    /// The module's name; `lib` is `lib.rs`.
    pub name: &'static str,
    /// What it is for.
    pub job: &'static str,
    /// The rooms it may import, itself aside.
    pub imports: &'static [&'static str],
    /// Whether it may use crate `weightlift-index`.
    pub index: bool,
}

const fn room(
    name: &'static str,
    job: &'static str,
    imports: &'static [&'static str],
    index: bool,
) -> Room {
    Room { name, job, imports, index }
}

/// The rooms from the ground up: a room imports only rooms that stand before it.
#[rustfmt::skip]
pub const ROOMS: &[Room] = &[
    room("error", "what went wrong, where, what to do", &[], true),
    room("options", "what a caller can ask for", &["error"], true),
    room("report", "what happened, as data", &["error", "options"], true),
    room("sync", "locks and atomics, the model checker's when testing", &["error"], false),
    room("system", "facts of the machine, and threads", &["error", "sync"], false),
    room("source", "what holds the bytes", &["error", "options", "sync", "system"], true),
    room("plan", "which bytes go where, in what order; pure", &["error", "options"], true),
    room("verify", "what tensors should be, and whether they are", &["error", "sync", "plan"], true),
    room("memory", "regions, the ring of staging blocks, its budget", &["error", "sync", "system"], false),
    room("read", "pieces into host memory; knows no device",
        &["error", "options", "sync", "system", "source", "plan", "memory"], true),
    room("device", "memory and copies of a device; knows no file",
        &["error", "options", "report", "sync", "system", "memory"], false),
    room("tensor", "what callers hold", &["error", "sync", "verify", "memory", "device"], true),
    room("route", "reads, stages and copies: joins readers and devices",
        &["error", "options", "report", "sync", "system", "source", "plan", "verify", "memory", "read", "device", "tensor"], true),
    room("load", "chooses, drives, verifies, cancels",
        &["error", "options", "report", "sync", "system", "source", "plan", "verify", "memory", "read", "device", "tensor", "route"], true),
    room("loader", "the face: what outlives one load",
        &["error", "options", "report", "sync", "system", "source", "plan", "verify", "memory", "read", "device", "tensor", "route", "load"], true),
    room("limits", "what a machine can do at best, measured without the engine",
        &["error", "system", "source", "memory", "device"], false),
    room("machine", "what this machine can do, as loads see it",
        &["error", "options", "system", "read", "device", "route"], false),
    room("lib", "declares the rooms and what is public",
        &["error", "options", "report", "sync", "system", "source", "plan", "verify", "memory", "read", "device", "tensor", "route", "load", "loader", "limits", "machine"], true),
];

/// The one place of crate `weightlift` that speaks to the CUDA driver.
pub const CUDA_SYS_USERS: &[&str] = &["crates/weightlift/src/device/cuda"];

/// A crate of the workspace and the workspace's crates that it may depend on, its tests aside.
pub struct Crate {
    /// The package's name.
    pub name: &'static str,
    /// The packages it may depend on.
    pub imports: &'static [&'static str],
    /// Whether it serves only tests: any package's tests may depend on it, and its own tests on all
    /// that is shipped as a library.
    pub for_tests: bool,
}

const fn package(name: &'static str, imports: &'static [&'static str], for_tests: bool) -> Crate {
    Crate { name, imports, for_tests }
}

/// The packages from the ground up.
#[rustfmt::skip]
pub const CRATES: &[Crate] = &[
    package("weightlift-index", &[], false),
    package("weightlift-cuda-sys", &[], false),
    package("weightlift", &["weightlift-index", "weightlift-cuda-sys"], false),
    package("weightlift-cli", &["weightlift"], false),
    package("weightlift-python", &["weightlift", "weightlift-cli"], false),
    package("fake-cuda", &[], true),
    package("fuzz-targets", &["weightlift-index"], true),
    package("testkit", &["weightlift-index", "weightlift-cuda-sys", "weightlift", "fake-cuda"], true),
    package("xtask", &[], false),
];

/// Where `unsafe` may stand; `testing/` is not looked at.
pub const UNSAFE: &[&str] = &[
    "crates/weightlift-cuda-sys/",
    "crates/weightlift/src/memory/",
    "crates/weightlift/src/load/destination.rs",
    "crates/weightlift/src/system/residency_linux.rs",
    "crates/weightlift/src/read/uring_linux.rs",
    "crates/weightlift/src/read/fixed_linux.rs",
    "crates/weightlift/src/read/mapped_linux.rs",
    "crates/weightlift/src/read/overlapped_windows.rs",
    "crates/weightlift/src/device/cuda/",
    "crates/weightlift-python/src/destination.rs",
    "crates/weightlift-python/src/reader.rs",
    "crates/weightlift-python/src/tensor.rs",
    "crates/weightlift-python/src/dlpack.rs",
    "crates/weightlift-python/src/image_linux.rs",
    // Tests from outside play the owner of GPU memory, who vouches for it.
    "crates/weightlift/tests/",
    // Measures what touching memory takes, page by page.
    "crates/weightlift/examples/ceilings.rs",
];

/// What a `cfg` may ask about only in the files named by [`may_ask_for_platform`].
pub const PLATFORM: &[&str] =
    &["target_os", "target_family", "target_env", "target_vendor", "unix", "windows"];

/// Whether a file of that name may hold `cfg`s that choose by platform.
pub fn may_ask_for_platform(file_name: &str) -> bool {
    ["mod.rs", "lib.rs"].contains(&file_name)
        || ["_linux.rs", "_windows.rs", "_unix.rs"].iter().any(|end| file_name.ends_with(end))
}

/// The room of that name.
pub fn find(name: &str) -> Option<&'static Room> {
    ROOMS.iter().find(|room| room.name == name)
}

/// The import tables of rooms and crates, for ARCHITECTURE.md.
pub fn markdown() -> String {
    let code = |names: &[&str]| match names {
        [] => "nothing".to_owned(),
        names => names.iter().map(|n| format!("`{n}`")).collect::<Vec<_>>().join(", "),
    };
    let mut text = String::from("| room | job | may import |\n|---|---|---|\n");
    for room in ROOMS {
        let everything = room.imports.len() > 10;
        let mut imports =
            if everything { "every room above".to_owned() } else { code(room.imports) };
        if room.index {
            imports += "; crate `weightlift-index`";
        }
        if room.name == "device" {
            imports += "; `device/cuda` alone: crate `weightlift-cuda-sys`";
        }
        text += &format!("| `{}` | {} | {imports} |\n", room.name, room.job);
    }
    text += "\n| crate | may depend on |\n|---|---|\n";
    for package in CRATES {
        text += &format!("| `{}` | {} |\n", package.name, code(package.imports));
    }
    let for_tests: Vec<&str> = CRATES.iter().filter(|c| c.for_tests).map(|c| c.name).collect();
    text += &format!(
        "\nTests of any crate may also use {}, whose own tests may use every library.\n",
        code(&for_tests)
    );
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn imports_go_downwards_only() {
        for (at, room) in ROOMS.iter().enumerate() {
            for import in room.imports {
                let place = ROOMS.iter().position(|r| r.name == *import);
                assert!(place.is_some_and(|p| p < at), "{} -> {import}", room.name);
            }
        }
        for (at, package) in CRATES.iter().enumerate() {
            for import in package.imports {
                let place = CRATES.iter().position(|c| c.name == *import);
                assert!(place.is_some_and(|p| p < at), "{} -> {import}", package.name);
            }
        }
    }

    #[test]
    fn every_room_that_imports_all_above_says_so() {
        for (at, room) in ROOMS.iter().enumerate() {
            if room.imports.len() > 10 {
                assert_eq!(room.imports.len(), at, "{}", room.name);
            }
        }
    }
}
