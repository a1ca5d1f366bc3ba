//! Headers of safetensors files.

use safetensors::SafeTensors;
use weightlift_index::safetensors::{Header, header_span, parse_header};
use weightlift_index::{Error, Limits};

use crate::check;
use crate::input::Input;

/// The input is a file; the low bits of the choice say how much longer it claims to be.
pub(crate) fn run(input: &[u8]) {
    let Some(Input { limits, choice, file }) = Input::new(input) else { return };
    let more = [0, 1, 4, 100, 1 << 16, 1 << 32, u64::MAX >> 1, u64::MAX][usize::from(choice & 7)];
    let length = (file.len() as u64).saturating_add(more);
    let Some(header) =
        check::bounded(file.len() as u64, || check::checked(read(file, length, &limits)).flatten())
    else {
        return;
    };
    let mut at = None;
    for entry in &header.entries {
        assert!(at.is_none_or(|at| at <= entry.begin) && entry.begin <= entry.end, "{entry:?}");
        at = Some(entry.end);
    }
    let known = header.entries.iter().all(|entry| !entry.dtype.is_opaque());
    check::index(header.into_index("a", length));
    // What we accept the reference accepts, except for data types that it does not know.
    if more == 0 && known {
        SafeTensors::read_metadata(file).expect("the reference accepts it too");
    }
}

/// The header; `None` if it is not all in the input.
fn read(file: &[u8], length: u64, limits: &Limits) -> Result<Option<Header>, Error> {
    let span = header_span(&file[..file.len().min(64)], length, limits)?;
    assert!(span.end <= length && span.end - span.start <= limits.header_bytes);
    let Some(json) = file.get(span.start as usize..span.end as usize) else { return Ok(None) };
    parse_header(json, span.end, length, limits).map(Some)
}
