//! What a user can choose, and how it is spelled.

use std::fmt;
use std::str::FromStr;

use crate::error::{Error, ErrorKind, Result};

/// Where tensors go.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub enum DeviceChoice {
    /// The calling thread's current CUDA device where there is one, the host otherwise.
    #[default]
    Auto,
    /// Host memory. No CUDA library is looked for.
    Host,
    /// The calling thread's current CUDA device, or device 0 where the thread has none.
    CurrentCuda,
    /// The CUDA device of this number.
    Cuda(u32),
}

/// The way that bytes take, or `auto`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub enum RouteChoice {
    /// `host` for host memory; `pinned` for CUDA memory, `pageable` where pinning fails.
    #[default]
    Auto,
    /// This route or an error.
    Forced(Route),
}

/// The way that bytes take.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
#[non_exhaustive]
pub enum Route {
    /// Read straight into host memory.
    Host,
    /// Read into ordinary staging memory, copied to the device by the driver's own staging.
    Pageable,
    /// Read into pinned staging memory, copied to the device at bus speed.
    Pinned,
}

impl Route {
    /// The route's name, as options, reports and logs spell it.
    pub fn name(self) -> &'static str {
        match self {
            Self::Host => "host",
            Self::Pageable => "pageable",
            Self::Pinned => "pinned",
        }
    }
}

/// How many threads read: chosen by weightlift, or 0 to 64 as the caller says.
///
/// 0 pins nothing (on CUDA: the pageable route) and leaves the number of readers to
/// weightlift; 1 reads on the calling thread; 2 to 64 are that many reader threads.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub struct ReadingThreads(Option<u8>);

impl ReadingThreads {
    /// The largest number of reader threads.
    pub const MAX: u8 = 64;
    /// Left to weightlift.
    pub const AUTO: Self = Self(None);

    /// `count` threads, 0 to 64. An error of kind `InvalidOption` otherwise.
    pub fn new(count: u8) -> Result<Self> {
        if count > Self::MAX {
            return Err(refused(
                "reading_threads",
                &count.to_string(),
                "auto or a whole number from 0 to 64",
            ));
        }
        Ok(Self(Some(count)))
    }

    /// The number asked for, or `None` where it is left to weightlift.
    pub fn get(self) -> Option<u8> {
        self.0
    }
}

/// Whether files are read past the page cache.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub enum DirectIo {
    /// What the page cache holds is read from there, and the rest past it where that can be done;
    /// the report says where it could not, and why. Files in memory, on a network, behind a FUSE
    /// server, on a disk that rotates or on a file system that is not known are read through it,
    /// and so are files of which nobody tells what the cache holds.
    #[default]
    Auto,
    /// Everything is read past the page cache; where that cannot be done the load is an error of
    /// kind `DirectIoUnavailable`.
    On,
    /// Everything is read through the page cache.
    Off,
}

/// The smallest block and the smallest piece: one page.
pub const SMALLEST_BLOCK: u64 = 4096;
/// The largest block: one read or copy of more gains nothing and starves the ring.
pub const LARGEST_BLOCK: u64 = 1 << 30;

/// The settings of a [`Loader`](crate::Loader).
///
/// Every setting can be set from a string and prints to one that sets it again:
///
/// ```
/// use weightlift::Options;
/// let mut options = Options::default();
/// options.set("block_size", "8MiB")?;
/// options.set("reading_threads", "12")?;
/// assert!(options.set("block_size", "1000").is_err()); // less than 4 KiB
/// assert_eq!(options.get("block_size")?, "8MiB");      // the earlier value stays
/// assert_eq!(options.to_string().parse::<Options>()?, options);
/// # Ok::<(), weightlift::Error>(())
/// ```
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub struct Options {
    /// Where tensors go, unless a request says otherwise.
    pub device: DeviceChoice,
    /// The way that bytes take, unless a request says otherwise.
    pub route: RouteChoice,
    /// How many threads read.
    pub reading_threads: ReadingThreads,
    /// Whether host memory that weightlift allocates for tensors is pinned for all CUDA devices,
    /// spelled `on` or `off`, so that an engine copies from it at bus speed. It is `off` unless
    /// set: pinned memory is taken from everybody, and pinning takes a driver and time.
    ///
    /// With it a load is to the host, into memory of weightlift's own and with reading threads
    /// other than 0, or an error of kind `InvalidOption`; `NoDriver` without a driver, and
    /// `PinFailed` where the driver refuses. The memory stays pinned as long as a tensor of the
    /// load lives; whoever copies from it keeps one until the copies are over.
    pub pin_host: bool,
    /// Whether host loads copy out of mappings of their files instead of reading them, spelled `on`
    /// or `off`. It is `off` unless set: while a page of a mapping is copied, a file that somebody
    /// cuts ends the process (SIGBUS), where a read would be an error.
    ///
    /// With it a load is to the host, and `direct_io` is not `on`, or it is an error of kind
    /// `InvalidOption`. A file that cannot be mapped is read, and the report has a fallback.
    pub map_files: bool,
    /// Whether files are read past the page cache.
    pub direct_io: DirectIo,
    block_size: u64,
    piece_size: Option<u64>,
    staging_budget: u64,
}

impl Default for Options {
    fn default() -> Self {
        Self {
            device: DeviceChoice::Auto,
            route: RouteChoice::Auto,
            reading_threads: ReadingThreads::AUTO,
            pin_host: false,
            map_files: false,
            direct_io: DirectIo::Auto,
            // 16 MiB blocks and 48 MiB in all: the first load of a process is a percent faster
            // than with 64 MiB, which take longer to touch and to pin, and copies of 8 MiB are a
            // percent slower than those of 16 (docs/benchmarks.md).
            block_size: 16 << 20,
            piece_size: None,
            staging_budget: 48 << 20,
        }
    }
}

impl Options {
    /// The names of all settings, in the order in which they print.
    pub const NAMES: [&'static str; 9] = [
        "device",
        "route",
        "reading_threads",
        "direct_io",
        "map_files",
        "pin_host",
        "block_size",
        "piece_size",
        "staging_budget",
    ];

    /// Sets the setting `name`. A refused value is an error of kind `InvalidOption` and leaves
    /// the earlier value.
    pub fn set(&mut self, name: &str, value: &str) -> Result<()> {
        match name {
            "device" => self.device = value.parse()?,
            "route" => self.route = value.parse()?,
            "reading_threads" => self.reading_threads = value.parse()?,
            "direct_io" => self.direct_io = value.parse()?,
            "map_files" => self.map_files = switch(name, value)?,
            "pin_host" => self.pin_host = switch(name, value)?,
            "block_size" => self.set_block_size(size(name, value)?)?,
            "piece_size" if value == "auto" => self.set_piece_size(None)?,
            "piece_size" => self.set_piece_size(Some(size(name, value)?))?,
            "staging_budget" => self.set_staging_budget(size(name, value)?)?,
            _ => return Err(unknown(name)),
        }
        Ok(())
    }

    /// Bytes of a block, the unit of copying. 16 MiB unless set.
    pub fn block_size(&self) -> u64 {
        self.block_size
    }

    /// Sets the bytes of a block: 4 KiB to 1 GiB, of which whole pages of
    /// 4 KiB are used. Anything else is an error
    /// of kind `InvalidOption` and leaves the earlier value.
    pub fn set_block_size(&mut self, bytes: u64) -> Result<()> {
        self.block_size = block_bytes("block_size", bytes)?;
        Ok(())
    }

    /// Bytes of a piece, the unit of reading; never more than a block. `None`, spelled `auto`,
    /// leaves it to weightlift: 1 MiB into staging memory, 4 MiB straight into host memory.
    pub fn piece_size(&self) -> Option<u64> {
        self.piece_size
    }

    /// Sets the bytes of a piece: `None`, or 4 KiB to 1 GiB, of which whole pages of
    /// 4 KiB are used. Anything else
    /// is an error of kind `InvalidOption` and leaves the earlier value.
    pub fn set_piece_size(&mut self, bytes: Option<u64>) -> Result<()> {
        self.piece_size = bytes.map(|bytes| block_bytes("piece_size", bytes)).transpose()?;
        Ok(())
    }

    /// Most bytes of staging memory, over all devices and loads of a loader. 48 MiB unless set.
    pub fn staging_budget(&self) -> u64 {
        self.staging_budget
    }

    /// Sets the most bytes of staging memory. Less than two blocks of 4 KiB is an error of kind
    /// `InvalidOption` and leaves the earlier value.
    pub fn set_staging_budget(&mut self, bytes: u64) -> Result<()> {
        if bytes < 2 * SMALLEST_BLOCK {
            return Err(refused(
                "staging_budget",
                &bytes.to_string(),
                "at least two blocks of 4 KiB",
            ));
        }
        self.staging_budget = bytes;
        Ok(())
    }

    /// The setting `name` as text that [`set`](Self::set) takes.
    pub fn get(&self, name: &str) -> Result<String> {
        Ok(match name {
            "device" => self.device.to_string(),
            "route" => self.route.to_string(),
            "reading_threads" => self.reading_threads.to_string(),
            "direct_io" => self.direct_io.to_string(),
            "map_files" => on_or_off(self.map_files),
            "pin_host" => on_or_off(self.pin_host),
            "block_size" => format_size(self.block_size),
            "piece_size" => self.piece_size.map_or_else(|| "auto".to_owned(), format_size),
            "staging_budget" => format_size(self.staging_budget),
            _ => return Err(unknown(name)),
        })
    }
}

impl fmt::Display for Options {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (index, name) in Self::NAMES.iter().enumerate() {
            let value = self.get(name).map_err(|_| fmt::Error)?;
            write!(f, "{}{name}={value}", if index == 0 { "" } else { "," })?;
        }
        Ok(())
    }
}

impl FromStr for Options {
    type Err = Error;

    /// Reads `name=value,name=value`; what is not named keeps its default.
    fn from_str(text: &str) -> Result<Self> {
        let mut options = Self::default();
        for part in text.split(',').filter(|part| !part.is_empty()) {
            let (name, value) = part
                .split_once('=')
                .ok_or_else(|| refused("options", part, "name=value, separated by commas"))?;
            options.set(name, value)?;
        }
        Ok(options)
    }
}

impl FromStr for DirectIo {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self> {
        match text {
            "auto" => Ok(Self::Auto),
            "on" => Ok(Self::On),
            "off" => Ok(Self::Off),
            _ => Err(refused("direct_io", text, "auto, on or off")),
        }
    }
}

impl fmt::Display for DirectIo {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Auto => "auto",
            Self::On => "on",
            Self::Off => "off",
        })
    }
}

impl FromStr for DeviceChoice {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self> {
        match text {
            "auto" => Ok(Self::Auto),
            "host" => Ok(Self::Host),
            "cuda" => Ok(Self::CurrentCuda),
            _ => match text.strip_prefix("cuda:").and_then(whole_number) {
                Some(ordinal) => Ok(Self::Cuda(ordinal)),
                None => Err(refused("device", text, "auto, host, cuda or cuda:N")),
            },
        }
    }
}

impl fmt::Display for DeviceChoice {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Auto => f.write_str("auto"),
            Self::Host => f.write_str("host"),
            Self::CurrentCuda => f.write_str("cuda"),
            Self::Cuda(ordinal) => write!(f, "cuda:{ordinal}"),
        }
    }
}

impl FromStr for RouteChoice {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self> {
        Ok(match text {
            "auto" => Self::Auto,
            "host" => Self::Forced(Route::Host),
            "pageable" => Self::Forced(Route::Pageable),
            "pinned" => Self::Forced(Route::Pinned),
            _ => return Err(refused("route", text, "auto, host, pageable or pinned")),
        })
    }
}

impl fmt::Display for RouteChoice {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Auto => "auto",
            Self::Forced(route) => route.name(),
        })
    }
}

impl fmt::Display for Route {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

impl FromStr for ReadingThreads {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self> {
        if text == "auto" {
            return Ok(Self::AUTO);
        }
        match whole_number(text).and_then(|count| u8::try_from(count).ok()) {
            Some(count) if count <= Self::MAX => Ok(Self(Some(count))),
            _ => Err(refused("reading_threads", text, "auto or a whole number from 0 to 64")),
        }
    }
}

impl fmt::Display for ReadingThreads {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0 {
            None => f.write_str("auto"),
            Some(count) => write!(f, "{count}"),
        }
    }
}

/// Digits only: `parse` would take `+5` too, which would not print back the same.
fn whole_number(text: &str) -> Option<u32> {
    let digits = !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit());
    if digits { text.parse().ok() } else { None }
}

const SIZE: &str = "a size such as 4096, 64KiB, 16MiB, 1GiB or 100MB";

/// The units of sizes: GB = 10^9 bytes, GiB = 2^30 bytes.
const UNITS: [(&str, u64); 8] = [
    ("TiB", 1 << 40),
    ("GiB", 1 << 30),
    ("MiB", 1 << 20),
    ("KiB", 1 << 10),
    ("GB", 1_000_000_000),
    ("MB", 1_000_000),
    ("KB", 1_000),
    ("B", 1),
];

/// Bytes of a size such as `16MiB`, `1GB` or `4096`; units stand in any case of letters.
/// `None` for anything else and for what does not fit 64 bits.
pub fn parse_size(text: &str) -> Option<u64> {
    let digits = text.bytes().take_while(u8::is_ascii_digit).count();
    let (number, unit) = text.split_at(digits);
    let number: u64 = number.parse().ok()?;
    let unit = unit.strip_prefix(' ').unwrap_or(unit);
    if unit.is_empty() {
        return Some(number);
    }
    let (_, factor) = UNITS.iter().find(|(name, _)| name.eq_ignore_ascii_case(unit))?;
    number.checked_mul(*factor)
}

/// A size in the largest binary unit that prints it exactly.
pub fn format_size(bytes: u64) -> String {
    let binary = UNITS[..4].iter().find(|(_, factor)| bytes != 0 && bytes.is_multiple_of(*factor));
    match binary {
        Some((name, factor)) => format!("{}{name}", bytes / factor),
        None => bytes.to_string(),
    }
}

fn switch(name: &str, value: &str) -> Result<bool> {
    match value {
        "on" => Ok(true),
        "off" => Ok(false),
        _ => Err(refused(name, value, "on or off")),
    }
}

fn on_or_off(value: bool) -> String {
    if value { "on" } else { "off" }.to_owned()
}

fn size(name: &str, value: &str) -> Result<u64> {
    parse_size(value).ok_or_else(|| refused(name, value, SIZE))
}

fn block_bytes(name: &str, bytes: u64) -> Result<u64> {
    if (SMALLEST_BLOCK..=LARGEST_BLOCK).contains(&bytes) {
        Ok(bytes)
    } else {
        Err(refused(name, &bytes.to_string(), "4KiB to 1GiB"))
    }
}

fn refused(name: &str, value: &str, wanted: &str) -> Error {
    Error::new(ErrorKind::InvalidOption, format!("a value is refused for {name}"))
        .with("option", name)
        .with("value", value)
        .with("wanted", wanted)
}

fn unknown(name: &str) -> Error {
    Error::new(ErrorKind::InvalidOption, "there is no such option")
        .with("option", name)
        .with("wanted", Options::NAMES.join(", "))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_setting_prints_to_what_sets_it_again() {
        let values: [(&str, &[&str]); 9] = [
            ("device", &["auto", "host", "cuda", "cuda:0", "cuda:17"]),
            ("route", &["auto", "host", "pageable", "pinned"]),
            ("reading_threads", &["auto", "0", "1", "2", "64"]),
            ("direct_io", &["auto", "on", "off"]),
            ("map_files", &["on", "off"]),
            ("pin_host", &["on", "off"]),
            ("block_size", &["4KiB", "4097", "1000000", "12KiB", "16MiB", "1GiB"]),
            ("piece_size", &["auto", "4KiB", "1MiB", "1020KiB"]),
            ("staging_budget", &["8KiB", "8193", "64MiB", "3GiB"]),
        ];
        for (name, values) in values {
            for value in values {
                let mut options = Options::default();
                options.set(name, value).unwrap();
                assert_eq!(options.get(name).unwrap(), *value, "{name}");
                assert_eq!(options.to_string().parse::<Options>().unwrap(), options);
            }
        }
    }

    #[test]
    fn a_refused_value_leaves_the_earlier_one() {
        let refused: [(&str, &[&str]); 9] = [
            (
                "device",
                &["", "gpu", "cuda:", "cuda:-1", "cuda:+1", "cuda:1x", "CUDA", "cuda:4294967296"],
            ),
            ("route", &["", "Pinned", "gds2", "auto "]),
            (
                "reading_threads",
                &["", "65", "256", "-1", "+1", "1.0", "four", "18446744073709551616"],
            ),
            ("direct_io", &["", "yes", "true", "1", "Auto"]),
            ("map_files", &["", "auto", "ON"]),
            ("pin_host", &["", "yes", "true", "1", "On"]),
            ("block_size", &["0", "1000", "4095", "2GiB", "16Mi", "-4096", "1e6"]),
            ("piece_size", &["0", "100", "99999999999999999999"]),
            ("staging_budget", &["0", "8191", "20000000TiB", "x"]),
        ];
        for (name, values) in refused {
            for value in values {
                let mut options = Options::default();
                let before = options.clone();
                let error = options.set(name, value).unwrap_err();
                assert_eq!(error.kind(), ErrorKind::InvalidOption, "{name}={value}");
                assert!(error.value("value").is_some() && error.value("wanted").is_some());
                assert_eq!(options, before);
            }
        }
        assert!(Options::default().set("colour", "red").is_err());
        assert!("block_size".parse::<Options>().is_err());
    }

    #[test]
    fn sizes_have_two_families_of_units() {
        let table = [
            ("4096", Some(4096)),
            ("64KiB", Some(65536)),
            ("64 kib", Some(65536)),
            ("1MB", Some(1_000_000)),
            ("1GiB", Some(1 << 30)),
            ("16777216TiB", None),
            ("MiB", None),
            ("", None),
            ("1.5MiB", None),
        ];
        for (text, bytes) in table {
            assert_eq!(parse_size(text), bytes, "{text}");
        }
        assert_eq!(format_size(0), "0");
        assert_eq!(format_size(1 << 41), "2TiB");
    }
}
