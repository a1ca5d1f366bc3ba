//! Which file names a model may use for its own files.

use std::borrow::Cow;

use crate::{Error, ErrorKind};

/// Checks that a file name from inside a model stays inside the model's folder.
///
/// The check looks at the text alone, and its answer is the same on every system: a name that
/// would leave the folder on Windows, or after a URL was decoded, is refused on Linux too. Whether
/// a link on disk may be followed is for whoever opens the file.
///
/// # Errors
///
/// [`ErrorKind::UnsafePath`], with `path` and `reason`, for a name that
///
/// - is empty, or has an empty component, which makes absolute paths part of this;
/// - has a component of only dots or of dots and spaces, such as `..`;
/// - holds a backslash, a colon (drives, streams, URL schemes) or a control character;
/// - has a component that is the name of a Windows device, such as `NUL` or `com1.bin`;
/// - is longer than 4096 bytes;
/// - would be any of these after percent-decoding, or is percent-encoded more than thrice.
pub fn check_name(name: &str) -> Result<(), Error> {
    let refuse = |path: &str, reason| {
        let message = "a file name in the model is not safe to open";
        Err(Error::new(ErrorKind::UnsafePath, message).with("path", path).with("reason", reason))
    };
    if name.len() > LONGEST_NAME {
        let start: String = name.chars().take(64).collect();
        return refuse(&format!("{start}…"), "it is longer than 4096 bytes");
    }
    let mut decoded = Cow::Borrowed(name);
    for _ in 0..MOST_ENCODINGS {
        if let Some(reason) = objection(&decoded) {
            return refuse(name, reason);
        }
        match percent_decode(&decoded) {
            Some(shorter) => decoded = Cow::Owned(shorter),
            None => return Ok(()),
        }
    }
    refuse(name, "it is percent-encoded many times over")
}

/// The longest path of Linux (PATH_MAX).
const LONGEST_NAME: usize = 4096;

/// How often a name may be percent-encoded: one that is encoded again and again would cost time
/// that grows with the square of its length, and no honest name is encoded twice.
const MOST_ENCODINGS: usize = 4;

fn objection(name: &str) -> Option<&'static str> {
    if name.is_empty() {
        return Some("it is empty");
    }
    if name.starts_with('/') {
        return Some("it is absolute");
    }
    if name.contains('\\') {
        return Some("it holds a backslash");
    }
    if name.contains(':') {
        return Some("it holds a colon");
    }
    if name.contains(char::is_control) {
        return Some("it holds a control character");
    }
    name.split('/').find_map(|component| {
        if component.is_empty() {
            Some("it has an empty component")
        } else if component.chars().all(|c| matches!(c, '.' | ' ')) {
            Some("it has a component of dots")
        } else if is_device(component) {
            Some("it names a device of Windows")
        } else {
            None
        }
    })
}

/// Whether Windows would open a device under this name, in whatever folder.
fn is_device(component: &str) -> bool {
    let stem = component.split('.').next().unwrap_or(component).trim_end_matches(' ');
    let is = |device: &str| stem.eq_ignore_ascii_case(device);
    let numbered = |device: &str| {
        stem.len() == 4
            && stem.get(..3).is_some_and(|start| start.eq_ignore_ascii_case(device))
            && stem.ends_with(|c: char| c.is_ascii_digit() && c != '0')
    };
    ["con", "prn", "aux", "nul", "conin$", "conout$"].into_iter().any(is)
        || numbered("com")
        || numbered("lpt")
}

/// The name with `%XY` replaced by what it stands for; `None` if nothing is replaced.
fn percent_decode(name: &str) -> Option<String> {
    let digit = |byte: &u8| char::from(*byte).to_digit(16);
    let bytes = name.as_bytes();
    let mut decoded = Vec::with_capacity(bytes.len());
    let mut rest = bytes;
    while let Some((&byte, after)) = rest.split_first() {
        let value = match (byte, after) {
            (b'%', [high, low, ..]) => {
                digit(high).zip(digit(low)).map(|(high, low)| high * 16 + low)
            }
            _ => None,
        };
        match value.and_then(|value| u8::try_from(value).ok()) {
            Some(value) => {
                decoded.push(value);
                rest = &after[2..];
            }
            None => {
                decoded.push(byte);
                rest = after;
            }
        }
    }
    // What is not UTF-8 after decoding keeps what matters here: separators and dots are ASCII.
    (decoded.len() < bytes.len()).then(|| String::from_utf8_lossy(&decoded).into_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    // IX-05: `weight_map` values that open any file, or over HTTP reach another repository.
    #[test]
    fn refuses_every_way_out_of_the_folder() {
        let table = [
            ("", "it is empty"),
            ("/etc/hostname", "it is absolute"),
            ("//host/share/x", "it is absolute"),
            ("../x", "it has a component of dots"),
            ("a/../../x", "it has a component of dots"),
            ("a/..", "it has a component of dots"),
            ("./x", "it has a component of dots"),
            (".. /x", "it has a component of dots"),
            (".../x", "it has a component of dots"),
            ("C:\\x", "it holds a backslash"),
            ("C:x", "it holds a colon"),
            ("x.safetensors:stream", "it holds a colon"),
            ("https://host/x", "it holds a colon"),
            ("\\\\h\\s", "it holds a backslash"),
            ("s\\..\\x", "it holds a backslash"),
            ("a\0b", "it holds a control character"),
            ("a\nb", "it holds a control character"),
            ("a//b", "it has an empty component"),
            ("a/", "it has an empty component"),
            ("%2e%2e/x", "it has a component of dots"),
            ("a/.%2E/x", "it has a component of dots"),
            ("%2e%2e%2fx", "it has a component of dots"),
            ("%252e%252e/x", "it has a component of dots"),
            ("a%5cb", "it holds a backslash"),
            ("%2fetc/hostname", "it is absolute"),
            ("a%00b", "it holds a control character"),
            ("%ff/%2e%2e/x", "it has a component of dots"),
            ("NUL", "it names a device of Windows"),
            ("a/com1.safetensors", "it names a device of Windows"),
        ];
        for (name, reason) in table {
            let error = check_name(name).expect_err(name);
            assert_eq!(error.kind(), ErrorKind::UnsafePath);
            assert_eq!(
                (error.get("path"), error.get("reason")),
                (Some(name), Some(reason)),
                "{name:?}"
            );
        }
    }

    #[test]
    fn accepts_what_models_really_use() {
        for name in [
            "model.safetensors",
            "model-00001-of-00002.safetensors",
            "text_encoder/model.fp16.safetensors",
            ".hidden/..data/x",
            "a b/100%.safetensors",
            "100%2/x%zz",
            "モデル.safetensors",
            "com10.bin",
            "com0",
            "null",
        ] {
            check_name(name).unwrap_or_else(|error| panic!("{error}"));
        }
    }

    #[test]
    fn names_that_cost_much_to_decode_are_refused_unread() {
        let nested = format!("%{}2e", "25".repeat(1000));
        let error = check_name(&nested).unwrap_err();
        assert_eq!(error.get("reason"), Some("it is percent-encoded many times over"));
        let error = check_name(&"a".repeat(5000)).unwrap_err();
        assert_eq!(error.get("reason"), Some("it is longer than 4096 bytes"));
        assert!(error.to_string().len() < 300);
    }
}
