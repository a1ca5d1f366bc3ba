//! Models of several files: which part a file is, what the others are called, whether they fit.

use std::collections::BTreeMap;

use super::{Header, Split};
use crate::{Error, ErrorKind, Value};

const NUMBER: &str = "split.no";
const COUNT: &str = "split.count";
const TENSORS: &str = "split.tensors.count";

const SUFFIX: &str = ".gguf";

/// Where the metadata place the file among others. A count of 0 is that of a file that is whole.
pub(super) fn of(metadata: &BTreeMap<String, Value>) -> Result<Option<Split>, Error> {
    let get = |key: &'static str| match metadata.get(key) {
        None => Ok(None),
        Some(value) => value.as_uint().map(Some).ok_or_else(|| {
            invalid("a number of the split is none").with("key", key).with("actual", value)
        }),
    };
    let Some(count) = get(COUNT)?.filter(|count| *count > 0) else {
        return Ok(None);
    };
    let needed = |key| {
        get(key)?.ok_or_else(|| invalid("the metadata of a split lack a key").with("key", key))
    };
    let split = Split { number: needed(NUMBER)?, count, tensors: needed(TENSORS)? };
    if split.number >= count {
        return Err(invalid("the number of a part is beyond the count of the parts")
            .with("key", NUMBER)
            .with("expected", format_args!("less than {count}"))
            .with("actual", split.number));
    }
    Ok(Some(split))
}

fn invalid(message: &str) -> Error {
    Error::new(ErrorKind::InvalidHeader, message)
}

/// The names of all parts of a model, in their order, from the name of one of them.
///
/// Parts are called `NAME-00001-of-00003.gguf` and so on, with five digits; a model of one part may
/// be called anything. Which of the parts this one is does not matter, and whether the files are
/// there, and are what their names say, is to be seen: see [`check_set`].
///
/// # Errors
///
/// - [`ErrorKind::MissingShards`] if the name is not of this form, so that the others cannot be
///   found; `count` says how many there are in all, `expected` what the name would have to be;
/// - [`ErrorKind::InvalidIndex`] if the name has another count than the file itself.
pub fn part_names(name: &str, split: &Split) -> Result<Vec<String>, Error> {
    let count = split.count;
    if count <= 1 {
        return Ok(vec![name.to_owned()]);
    }
    let Some(part) = Part::of(name) else {
        let stem = name.strip_suffix(SUFFIX).unwrap_or(name);
        return Err(Error::new(
            ErrorKind::MissingShards,
            "the other parts of the model cannot be found by the name of this one",
        )
        .with("expected", part_name(stem, split.number.saturating_add(1), count))
        .with("actual", name)
        .with("count", count)
        .hint("give the parts the names that they had"));
    };
    // Five digits, so no more names than can be held are made, whatever the file says.
    if part.count != count || part.number == 0 || part.number > count {
        return Err(Error::new(
            ErrorKind::InvalidIndex,
            "a part of a model has the name of another model's",
        )
        .with("expected", part_name(part.stem, split.number.saturating_add(1), count))
        .with("actual", name)
        .hint("give the part the name that it had"));
    }
    Ok((1..=count).map(|number| part_name(part.stem, number, count)).collect())
}

fn part_name(stem: &str, number: u64, count: u64) -> String {
    format!("{stem}-{number:05}-of-{count:05}{SUFFIX}")
}

/// The parts of a name `STEM-00001-of-00003.gguf`.
struct Part<'a> {
    stem: &'a str,
    number: u64,
    count: u64,
}

impl<'a> Part<'a> {
    fn of(name: &'a str) -> Option<Self> {
        let (rest, count) = name.strip_suffix(SUFFIX)?.rsplit_once("-of-")?;
        let (stem, number) = rest.rsplit_once('-')?;
        let digits = |text: &str| {
            let are = text.len() == 5 && text.bytes().all(|byte| byte.is_ascii_digit());
            text.parse().ok().filter(|_| are)
        };
        Some(Self { stem, number: digits(number)?, count: digits(count)? })
    }
}

/// Checks that files, given by name and in the order of [`part_names`], are one whole model.
///
/// That no tensor stands in two of them is for [`assemble`](crate::shards::assemble) to see.
///
/// # Errors
///
/// - [`ErrorKind::MissingShards`] if there are fewer files than parts, or none;
/// - [`ErrorKind::InvalidIndex`], naming `file`, `expected` and `actual`, if a file is no part of a
///   split, is one of another count, or not the part that its place says, or if the tensors are not
///   as many as the parts say; `other_file` is the part that the file disagrees with.
pub fn check_set(parts: &[(&str, &Header)]) -> Result<(), Error> {
    let Some(&(first_name, first)) = parts.first() else {
        return Err(Error::new(ErrorKind::MissingShards, "there is no part of the model"));
    };
    let Some(whole) = first.split else {
        return match parts {
            [_] => Ok(()),
            _ => Err(unfit(first_name, "a file among the parts of a model is not one of them")
                .with("expected", format_args!("part 1 of {}", parts.len()))
                .with("actual", "a model of its own")),
        };
    };
    let there = parts.len() as u64;
    if there < whole.count {
        return Err(Error::new(ErrorKind::MissingShards, "parts of the model are not there")
            .with("count", whole.count - there)
            .with("of", whole.count)
            .hint("fetch all parts of the model"));
    }
    for (number, &(name, header)) in (0..).zip(parts) {
        let expected = Split { number, ..whole };
        if header.split != Some(expected) {
            return Err(misfit(name, expected, header.split).with("other_file", first_name));
        }
    }
    let tensors = parts.iter().map(|(_, header)| header.entries.len() as u64).sum::<u64>();
    if tensors != whole.tensors {
        return Err(unfit(first_name, "the parts of the model hold another number of tensors")
            .with("expected", whole.tensors)
            .with("actual", tensors)
            .hint("the parts are of different versions: fetch all of them again"));
    }
    Ok(())
}

fn unfit(file: &str, message: &str) -> Error {
    Error::new(ErrorKind::InvalidIndex, message).with("file", file)
}

/// The error for a part that is not the expected one.
fn misfit(name: &str, expected: Split, actual: Option<Split>) -> Error {
    let show = |split: Split| {
        // Saturating, since only a header's own numbers were compared with each other.
        format!("part {} of {}", split.number.saturating_add(1), split.count)
    };
    let (message, expected, actual) = match actual {
        Some(actual) if actual.count != expected.count => (
            "the parts belong to models of different counts of parts",
            show(expected),
            show(actual),
        ),
        Some(actual) if actual.number != expected.number => {
            ("a file is not the part of the model that its name says", show(expected), show(actual))
        }
        Some(actual) => (
            "the parts disagree about how many tensors the model has",
            expected.tensors.to_string(),
            actual.tensors.to_string(),
        ),
        None => (
            "a file among the parts of a model is not one of them",
            show(expected),
            "a model of its own".to_owned(),
        ),
    };
    unfit(name, message).with("expected", expected).with("actual", actual)
}
