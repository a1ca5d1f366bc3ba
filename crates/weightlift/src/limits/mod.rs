//! The limits of a machine, measured by plain reads and plain copies: what a load is compared with.
//! No reader, ring or route of the engine takes part.

mod copies;
#[cfg(target_os = "linux")]
mod reads_linux;

pub use copies::{PinnedCopies, pinned_copies};
#[cfg(target_os = "linux")]
pub use reads_linux::{PlainReads, plain_reads};
