//! How much memory the machine has left.

use std::fs;

/// Bytes that programs can still be given without anything being killed: what the kernel
/// estimates as available, which counts the page cache that it would give up, and free swap.
/// `None` where it does not tell.
pub(crate) fn free_memory() -> Option<u64> {
    parse(&fs::read_to_string("/proc/meminfo").ok()?)
}

fn parse(meminfo: &str) -> Option<u64> {
    let field = |name: &str| {
        let mut lines = meminfo.lines();
        let value = lines.find_map(|line| line.strip_prefix(name)?.strip_prefix(':'))?;
        let kib: u64 = value.trim().strip_suffix("kB")?.trim().parse().ok()?;
        kib.checked_mul(1024)
    };
    let available = field("MemAvailable")?;
    Some(available.saturating_add(field("SwapFree").unwrap_or(0)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_the_kernel_could_give_up_counts_as_free() {
        let text = "MemTotal:       1000 kB\nMemFree:          10 kB\nMemAvailable:    900 kB\n\
                    Cached:          880 kB\nSwapTotal:       50 kB\nSwapFree:         7 kB\n";
        assert_eq!(parse(text), Some(907 * 1024));
        assert_eq!(parse("MemAvailable:    900 kB\n"), Some(900 * 1024));
        for unusable in ["", "MemFree: 10 kB\n", "MemAvailable: x kB\n", "MemAvailable: 9 MB\n"] {
            assert_eq!(parse(unusable), None, "{unusable}");
        }
        assert!(free_memory().expect("this machine tells") > 0);
    }
}
