//! Facts of the machine, and its threads.

#[cfg(target_os = "linux")]
mod free_linux;
mod threads;

#[cfg(target_os = "linux")]
pub(crate) use free_linux::free_memory;
pub(crate) use threads::Threads;

/// How many processors this process may use, at least 1: its affinity and, on Linux, its
/// cgroup's quota count.
pub(crate) fn processors() -> usize {
    std::thread::available_parallelism().map_or(1, usize::from)
}

/// Bytes of a page of memory, and the alignment that direct reads are happy with everywhere
/// we know: 4 KiB on x86-64; a multiple of it elsewhere, which the kernel rounds up to itself.
pub(crate) const PAGE: usize = 4096;
