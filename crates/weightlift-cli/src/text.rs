//! How numbers and foreign names are written for people.

use std::fmt::{self, Write};
use std::path::Path;

/// Text out of files and arguments, on one line: what would steer a terminal or change the
/// order of reading is shown escaped.
pub(crate) struct OneLine<'a>(pub(crate) &'a str);

impl fmt::Display for OneLine<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // Nearly every name: no need to go through its characters.
        if self.0.bytes().all(|byte| (b' '..0x7f).contains(&byte)) {
            return f.write_str(self.0);
        }
        for character in self.0.chars() {
            if is_unseen(character) {
                write!(f, "{}", character.escape_default())?;
            } else {
                f.write_char(character)?;
            }
        }
        Ok(())
    }
}

/// Control characters, separators of lines and paragraphs, marks of writing direction.
fn is_unseen(character: char) -> bool {
    character.is_control()
        || matches!(character, '\u{200e}' | '\u{200f}' | '\u{2028}'..='\u{202e}')
        || matches!(character, '\u{2066}'..='\u{2069}' | '\u{feff}')
}

/// A path on one line; bytes that are no UTF-8 show as replacement characters.
pub(crate) fn path(path: &Path) -> String {
    OneLine(&path.to_string_lossy()).to_string()
}

/// Bytes in decimal units: GB = 10^9 bytes.
pub(crate) fn bytes(bytes: u64) -> String {
    const UNITS: [(f64, &str); 4] = [(1e12, "TB"), (1e9, "GB"), (1e6, "MB"), (1e3, "kB")];
    let value = bytes as f64;
    // Half a hundredth below the unit rounds up to it.
    match UNITS.iter().find(|(unit, _)| value >= unit * 0.99995) {
        Some((unit, name)) => format!("{:.2} {name}", value / unit),
        None => format!("{bytes} B"),
    }
}

/// A rate in GB/s, smaller units where that would be all zeros.
pub(crate) fn rate(bytes_per_second: f64) -> String {
    if bytes_per_second < 0.05e9 {
        return format!("{}/s", bytes(bytes_per_second as u64));
    }
    let rate = bytes_per_second / 1e9;
    format!("{rate:.*} GB/s", if rate < 10.0 { 2 } else { 1 })
}

/// Seconds, to the millisecond where there are few.
pub(crate) fn seconds(seconds: f64) -> String {
    format!("{seconds:.*} s", if seconds < 10.0 { 3 } else { 1 })
}

/// `1 tensor`, `2 tensors`.
pub(crate) fn count(number: u64, what: &str) -> String {
    format!("{number} {what}{}", if number == 1 { "" } else { "s" })
}

/// `[2, 3]`.
pub(crate) fn shape(shape: &[u64]) -> String {
    format!("{shape:?}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_cannot_steer_the_terminal() {
        let table = [
            ("model.layers.0", "model.layers.0"),
            ("a\nb\u{1b}[31m", "a\\nb\\u{1b}[31m"),
            ("größe", "größe"),
            ("x\u{202e}y\u{2028}z", "x\\u{202e}y\\u{2028}z"),
            ("\u{9b}", "\\u{9b}"),
        ];
        for (name, shown) in table {
            assert_eq!(OneLine(name).to_string(), shown);
        }
    }

    #[test]
    fn gigabytes_are_decimal() {
        assert_eq!(bytes(16_060_000_000), "16.06 GB");
        assert_eq!(bytes(1 << 30), "1.07 GB");
        assert_eq!(bytes(999), "999 B");
        assert_eq!(bytes(999_999), "1.00 MB");
        assert_eq!(bytes(0), "0 B");
        assert_eq!(rate(53.14e9), "53.1 GB/s");
        assert_eq!(rate(1.5e6), "1.50 MB/s");
        assert_eq!(seconds(0.6142), "0.614 s");
        assert_eq!(count(1, "tensor"), "1 tensor");
    }
}
