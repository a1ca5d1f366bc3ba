//! Models of several files: which files they are, what their index file says, and how their
//! headers make one index.
//!
//! All of it works on names, text and parsed headers; looking at the folder is for the caller.

mod assemble;
mod choose;
mod name;
mod parse;

use std::collections::{BTreeMap, HashMap};

pub use assemble::assemble;
pub use choose::{Choice, choose};
pub use name::check_name;
pub use parse::parse_index;

use crate::error::{Error, ErrorKind, join};

/// What an index file (`*.safetensors.index.json`, `*.bin.index.json`) says.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct ShardIndex {
    /// Which file holds a tensor: its position in [`shards`](Self::shards).
    pub weight_map: HashMap<Box<str>, u32>,
    /// The names of the files, each once, sorted, and each accepted by [`check_name`].
    pub shards: Vec<Box<str>>,
    /// The metadata of the index file; numbers and truth values as text, other kinds left out.
    pub metadata: BTreeMap<String, String>,
}

/// Checks that every file that an index file names is there.
///
/// `present` says whether a file of this name, relative to the model's folder, is there.
///
/// # Errors
///
/// [`ErrorKind::MissingShards`], with all names in `shards`, how many they are in `count`, and how
/// many the index file names in `of`. If other files are there, the hint names `--ignore-index`.
pub fn check_present(index: &ShardIndex, present: impl Fn(&str) -> bool) -> Result<(), Error> {
    let names = index.shards.iter().map(|name| &**name);
    check_names(names, present, "files that the model's index file names are not there").map_err(
        |error| {
            let some_are_there = error.get("count") != error.get("of");
            error.hint(if some_are_there {
                "fetch the missing files; if the index file is out of date and the files that are \
                 there are the whole model, `--ignore-index` loads those"
            } else {
                "fetch the files of the model"
            })
        },
    )
}

/// Checks that every file of a set is there, which one of them says it is a part of.
///
/// # Errors
///
/// [`ErrorKind::MissingShards`], as [`check_present`].
pub fn check_set_present(names: &[String], present: impl Fn(&str) -> bool) -> Result<(), Error> {
    check_names(names.iter().map(String::as_str), present, "files of the model's set are not there")
        .map_err(|error| error.hint("fetch the missing files"))
}

fn check_names<'a>(
    names: impl Iterator<Item = &'a str>,
    present: impl Fn(&str) -> bool,
    message: &str,
) -> Result<(), Error> {
    let mut of = 0;
    let missing: Vec<&str> = names.inspect(|_| of += 1).filter(|name| !present(name)).collect();
    if missing.is_empty() {
        return Ok(());
    }
    Err(Error::new(ErrorKind::MissingShards, message)
        .with("shards", join(&missing))
        .with("count", missing.len())
        .with("of", of))
}
