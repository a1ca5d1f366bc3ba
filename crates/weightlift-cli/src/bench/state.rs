//! States of the page cache: brought about, and seen to be so.

use std::fmt;
use std::fs::File;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::str::FromStr;
use std::time::Duration;

use weightlift::{CachedFile, Error, ErrorKind, PlainReads, Resident, plain_reads};

use super::args::refused;
use crate::signal::Stop;

/// What the page cache holds of a model's files when a load begins.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(super) enum State {
    /// Nothing.
    Cold,
    /// Everything.
    Warm,
    /// The first half of each file.
    Half,
    /// The first `every` of each `of` stretches of `bytes` bytes.
    Stretches { every: u64, of: u64, bytes: u64 },
}

/// Bytes of a page, and what stretches are multiples of.
const PAGE: u64 = 4096;

/// How often it is tried: somebody else may just have had a page in hand.
const TRIES: u32 = 5;

const HELD: &str = "files in memory (tmpfs), and pages that a program has mapped or locked, cannot \
                    be dropped: use a file on a disk that nobody has open, or leave this state out";
const NO_ROOM: &str = "the files may be larger than the memory that is free for the page cache";

impl State {
    /// The part of the bytes that is in the cache, about.
    pub(super) fn cached(self) -> f64 {
        match self {
            Self::Cold => 0.0,
            Self::Warm => 1.0,
            Self::Half => 0.5,
            Self::Stretches { every, of, .. } => (every as f64 / of as f64).min(1.0),
        }
    }

    /// Beginning and end of each stretch of a file of this length, and whether it is to be cached.
    fn stretches(self, length: u64) -> Vec<(u64, u64, bool)> {
        let half = (length / 2).next_multiple_of(PAGE).min(length);
        match self {
            Self::Cold => vec![(0, length, false)],
            Self::Warm => vec![(0, length, true)],
            Self::Half => vec![(0, half, true), (half, length, false)],
            Self::Stretches { every, of, bytes } => {
                let starts = (0..length).step_by(usize::try_from(bytes).unwrap_or(usize::MAX));
                let stretch = |(number, start): (u64, u64)| {
                    (start, length.min(start.saturating_add(bytes)), number % of < every)
                };
                (0..).zip(starts).map(stretch).collect()
            }
        }
    }
}

impl FromStr for State {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self, Error> {
        let wrong = || {
            refused("states", text, "cold, warm, half or EVERY:OF:BYTES, whole pages of 4096 bytes")
        };
        match text {
            "cold" => return Ok(Self::Cold),
            "warm" => return Ok(Self::Warm),
            "half" => return Ok(Self::Half),
            _ => {}
        }
        let mut parts = text.split(':');
        let (every, of, bytes) = (parts.next(), parts.next(), parts.next());
        let number = |text: Option<&str>| text.and_then(|text| text.parse::<u64>().ok());
        let bytes = bytes.and_then(weightlift::parse_size);
        match (number(every), number(of), bytes, parts.next()) {
            (Some(every), Some(of), Some(bytes), None)
                if every < of && every > 0 && bytes > 0 && bytes.is_multiple_of(PAGE) =>
            {
                Ok(Self::Stretches { every, of, bytes })
            }
            _ => Err(wrong()),
        }
    }
}

impl fmt::Display for State {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Cold => f.write_str("cold"),
            Self::Warm => f.write_str("warm"),
            Self::Half => f.write_str("half"),
            Self::Stretches { every, of, bytes } => write!(f, "{every}:{of}:{bytes}"),
        }
    }
}

/// What the page cache holds of files.
#[derive(Debug, Clone, Copy, PartialEq, Eq, serde::Serialize)]
pub(super) struct Held {
    /// Bytes of the files.
    pub(super) bytes: u64,
    /// How many of them are in the cache, in whole pages.
    pub(super) cached: u64,
    /// How that was asked.
    pub(super) method: &'static str,
    /// Whether exactly the pages that were wanted are there.
    pub(super) as_wanted: bool,
}

/// Brings `files` into `state` and asks the kernel whether they are.
///
/// An error if they are not, after several tries, or if the kernel does not tell: what is measured
/// then would be called something that it is not.
pub(super) fn bring(files: &[PathBuf], state: State, stop: &Stop) -> Result<Held, Error> {
    let mut attempt = 1;
    loop {
        for path in files {
            prepare(path, state, stop)?;
        }
        let held = held(files, Some(state))?;
        if held.as_wanted {
            return Ok(held);
        }
        if attempt == TRIES {
            return Err(Error::new(
                ErrorKind::Io,
                format!("the page cache cannot be brought into the state {state}"),
            )
            .with("cached", held.cached)
            .with("bytes", held.bytes)
            .with("files", names(files))
            .with("method", held.method)
            .hint(if state == State::Warm { NO_ROOM } else { HELD }));
        }
        attempt += 1;
        std::thread::sleep(Duration::from_millis(200));
    }
}

/// Drops a file's pages and reads the wanted ones in.
fn prepare(path: &Path, state: State, stop: &Stop) -> Result<(), Error> {
    let cannot = |error: std::io::Error| cannot(path, error);
    let file = CachedFile::open(path)?;
    if state == State::Warm {
        // By many at once: after a cold sample a model of gigabytes has to come from the disk again.
        let how = PlainReads { threads: 8, size: 4 << 20, ..PlainReads::default() };
        if file.resident(0, file.length()) != Resident::All {
            plain_reads(&[path], &how, &|| stop.check())?;
        }
        return Ok(());
    }
    let stretches = state.stretches(file.length());
    let open = File::open(path).map_err(cannot)?;
    // What was just written can only be dropped when the disk has it.
    open.sync_all().map_err(cannot)?;
    file.drop_pages(0, file.length())?;
    // The kernel is not to read ahead into what is to be missing.
    rustix::fs::fadvise(&open, 0, None, rustix::fs::Advice::Random)
        .map_err(|error| cannot(error.into()))?;
    let mut buffer = vec![0; 1 << 20];
    for (start, end, _) in stretches.into_iter().filter(|(.., wanted)| *wanted) {
        for offset in (start..end).step_by(buffer.len()) {
            stop.check()?;
            let length = buffer.len().min((end - offset) as usize);
            open.read_exact_at(&mut buffer[..length], offset).map_err(cannot)?;
        }
    }
    Ok(())
}

/// What the cache holds of `files`, beside what it should.
pub(super) fn held(files: &[PathBuf], state: Option<State>) -> Result<Held, Error> {
    let mut held = Held { bytes: 0, cached: 0, method: "memory", as_wanted: true };
    for path in files {
        let file = CachedFile::open(path)?;
        let (length, mut pages) = (file.length(), 0);
        for (start, end, wanted) in state.unwrap_or(State::Warm).stretches(length) {
            let resident = file.resident(start, end - start);
            pages += match resident {
                Resident::All => (end - start).div_ceil(PAGE),
                Resident::None => 0,
                Resident::Part { pages } => pages,
                _ => return Err(unknown(path, file.method())),
            };
            let right = if wanted { Resident::All } else { Resident::None };
            // A file without bytes is in every state.
            held.as_wanted &= state.is_none() || resident == right || length == 0;
        }
        held.bytes += length;
        held.cached += (pages * PAGE).min(length);
        held.method = file.method();
    }
    Ok(held)
}

/// Whether what was to be in the cache has stayed there: an error if somebody dropped it meanwhile,
/// or memory ran short. A load drops nothing that it found there.
pub(super) fn check_kept(files: &[PathBuf], state: State) -> Result<(), Error> {
    for path in files {
        let file = CachedFile::open(path)?;
        let wanted = state.stretches(file.length()).into_iter().filter(|(.., wanted)| *wanted);
        for (start, end, _) in wanted {
            if file.resident(start, end - start) != Resident::All {
                let message = "the page cache lost a part of a file while the sample was taken";
                return Err(Error::new(ErrorKind::Changed, message)
                    .with("path", path.display())
                    .with("state", state)
                    .hint("memory may be short, or somebody drops caches"));
            }
        }
    }
    Ok(())
}

fn unknown(path: &Path, method: &str) -> Error {
    Error::new(ErrorKind::Io, "nobody tells what the page cache holds of a file")
        .with("path", path.display())
        .with("method", method)
        .hint(
            "the kernel tells the owner of a file, and whoever may write to it; on file systems with \
             a cache of their own (ZFS) nobody",
        )
}

fn cannot(path: &Path, error: std::io::Error) -> Error {
    Error::new(ErrorKind::Io, "cannot bring a file into the page cache or out of it")
        .with("path", path.display())
        .with("reason", &error)
        .because(error)
}

fn names(files: &[PathBuf]) -> String {
    let mut names: Vec<String> =
        files.iter().take(3).map(|path| path.display().to_string()).collect();
    if files.len() > 3 {
        names.push(format!("{} more", files.len() - 3));
    }
    names.join(", ")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn states_round_trip_and_nonsense_is_refused() {
        for text in ["cold", "warm", "half", "1:2:8388608"] {
            assert_eq!(text.parse::<State>().unwrap().to_string(), text);
        }
        assert_eq!("1:3:8MiB".parse::<State>().unwrap().to_string(), "1:3:8388608");
        for wrong in ["", "hot", "1:2", "2:2:4096", "0:2:4096", "1:2:4000", "1:2:0", "1:2:4096:5"] {
            let error = wrong.parse::<State>().unwrap_err();
            assert_eq!(error.kind(), ErrorKind::InvalidOption, "{wrong}");
        }
    }

    #[test]
    fn stretches_cover_a_file_once() {
        let states = [
            State::Cold,
            State::Warm,
            State::Half,
            State::Stretches { every: 1, of: 2, bytes: PAGE },
        ];
        for state in states {
            for length in [0, 1, 4096, 4097, 100_000] {
                let mut at = 0;
                for (start, end, _) in state.stretches(length) {
                    assert_eq!(start, at, "{state} {length}");
                    at = end;
                }
                assert_eq!(at, length);
            }
        }
        let cached =
            |state: State| state.stretches(40_960).iter().filter(|s| s.2).map(|s| s.1 - s.0).sum();
        let sums: Vec<u64> = states.into_iter().map(cached).collect();
        assert_eq!(sums, [0, 40_960, 20_480, 20_480]);
    }
}
