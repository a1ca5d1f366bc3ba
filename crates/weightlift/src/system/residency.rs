//! How much of a range is in the page cache, as data.

use std::fmt;

use serde::{Deserialize, Serialize};

/// How much of a range of a file is in the page cache. Pages that lie only partly in the range
/// count whole, since a read of the range needs all of them.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "state", rename_all = "snake_case")]
#[non_exhaustive]
pub enum Resident {
    /// Every page: reading it needs no disk. Also said of a range without bytes.
    All,
    /// No page.
    None,
    /// Some pages.
    Part {
        /// How many.
        pages: u64,
    },
    /// Nobody tells, or not truthfully.
    Unknown,
}

impl Resident {
    /// `pages` of `all`.
    pub(super) fn of(pages: u64, all: u64) -> Self {
        match pages {
            pages if pages >= all => Self::All,
            0 => Self::None,
            pages => Self::Part { pages },
        }
    }
}

impl fmt::Display for Resident {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::All => f.write_str("all"),
            Self::None => f.write_str("none"),
            Self::Part { pages } => write!(f, "{pages} pages"),
            Self::Unknown => f.write_str("unknown"),
        }
    }
}
