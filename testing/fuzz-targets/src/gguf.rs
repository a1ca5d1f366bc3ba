//! GGUF headers, and models of several of them.

use weightlift_index::gguf::{Header, check_set, parse, part_names};
use weightlift_index::shards::assemble;
use weightlift_index::{Bytes, Limits};

use crate::check;
use crate::input::{Input, Watched};

/// The input is a file, with zeros after it by the low bits of the choice, whose fourth bit keeps
/// lists and whose fifth says that it is two files, the first as long as two bytes say.
pub(crate) fn run(input: &[u8]) {
    let Some(Input { limits, choice, file }) = Input::new(input) else { return };
    let lists = choice & 8 != 0;
    match file {
        [low, high, files @ ..] if choice & 16 != 0 => {
            let length = usize::from(u16::from_le_bytes([*low, *high])).min(files.len());
            let (first, second) = files.split_at(length);
            set([first, second], choice, lists, &limits);
        }
        _ => {
            let Some((header, length)) = header(file, choice, lists, &limits) else { return };
            if let Some(split) = &header.split {
                assert!(split.number < split.count, "{split:?}");
                for name in ["a.gguf", "a-00001-of-00002.gguf"] {
                    let names = check::checked(part_names(name, split)).unwrap_or_default();
                    assert!(names.is_empty() || names.iter().any(|other| other == name));
                }
            }
            check::checked(check_set(&[("a", &header)]));
            check::index(header.into_index("a", length));
        }
    }
}

fn header(file: &[u8], choice: u8, lists: bool, limits: &Limits) -> Option<(Header, u64)> {
    let mut bytes = Watched::new(file, choice);
    let length = bytes.length();
    let header = check::bounded(length, || parse(&mut bytes, lists, limits));
    bytes.check();
    let header = check::checked(header)?;
    assert!(header.alignment.is_power_of_two(), "{header:?}");
    for entry in &header.entries {
        assert!(entry.offset.is_multiple_of(header.alignment), "{entry:?}");
    }
    Some((header, length))
}

/// Parts as a loader joins them.
fn set(files: [&[u8]; 2], choice: u8, lists: bool, limits: &Limits) {
    let [first, second] = files.map(|file| header(file, choice, lists, limits));
    let (Some((first, length)), Some((second, other))) = (first, second) else { return };
    let fits = check::checked(check_set(&[("a", &first), ("b", &second)]));
    if fits.is_none() {
        return;
    }
    let tensors = first.entries.len() + second.entries.len();
    let indexes = [first.into_index("a", length), second.into_index("b", other)];
    let joined = assemble(indexes.map(|index| index.expect("both fit")).into(), None);
    assert!(joined.as_ref().is_ok_and(|index| index.tensors.len() == tensors) || joined.is_err());
    check::index(joined);
}
