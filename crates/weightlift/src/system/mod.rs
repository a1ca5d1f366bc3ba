//! Facts of the machine, and its threads.

#[cfg(target_os = "linux")]
mod cache_linux;
#[cfg(target_os = "linux")]
mod memory_linux;
#[cfg(target_os = "linux")]
mod mounts_linux;
mod residency;
#[cfg(target_os = "linux")]
mod residency_linux;
mod storage;
#[cfg(target_os = "linux")]
mod storage_linux;
mod threads;

#[cfg(target_os = "linux")]
pub use cache_linux::CachedFile;
#[cfg(target_os = "linux")]
pub use memory_linux::available_memory;
#[cfg(target_os = "linux")]
pub(crate) use memory_linux::{free_huge_pages, free_swap, memory_limit};
pub use residency::Resident;
#[cfg(target_os = "linux")]
pub(crate) use residency_linux::{Residency, drop_from_cache};
pub use storage::{DirectAlignment, StorageFacts, StorageKind};
#[cfg(target_os = "linux")]
pub use storage_linux::storage_facts;
pub(crate) use threads::Threads;

/// How many processors this process may use, at least 1: its affinity and, on Linux, its
/// cgroup's quota count.
pub(crate) fn processors() -> usize {
    std::thread::available_parallelism().map_or(1, usize::from)
}

/// Bytes of a page of memory, and the alignment that direct reads are happy with everywhere
/// we know: 4 KiB on x86-64; a multiple of it elsewhere, which the kernel rounds up to itself.
pub(crate) const PAGE: usize = 4096;
