//! Which files of a folder are the model.

use std::collections::{BTreeMap, BTreeSet};

use crate::error::{Error, ErrorKind, join};

/// The files of a folder that are the model.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Choice {
    /// An index file, which names the others.
    Index(String),
    /// These safetensors files, sorted, without an index file.
    Files(Vec<String>),
}

const TENSORS: &str = ".safetensors";
const INDEX: &str = ".safetensors.index.json";
const USUAL_INDEX: &str = "model.safetensors.index.json";

/// Most names of files that an error lists when it is not a file that bounds their number.
const MOST_LISTED: u64 = 20;

/// Says which files of a folder are the model, given the names of all files in it.
///
/// Names that begin with a dot are passed over: they are hidden files and what macOS leaves beside
/// real ones. An interrupted download (`.incomplete`) is never taken.
///
/// With an index file (`*.safetensors.index.json`) that file is the answer, and what stands beside
/// it does not matter; of several, `model.safetensors.index.json`. Without, or with `ignore_index`,
/// it is the only safetensors file, or a complete set `NAME-00001-of-0000N.safetensors`.
///
/// A folder where something stands beside the set or the one file is refused, since reading both
/// copies of a model, or the wrong one, is worse than asking. With `ignore_index` the caller has
/// been asked: then it is the one complete set if there is one, and all safetensors files if not.
///
/// # Errors
///
/// - [`ErrorKind::NoModel`] if nothing is there; `files` names what looks like another format;
/// - [`ErrorKind::MissingShards`] if the files are a part of one set; `shards` names the others;
/// - [`ErrorKind::AmbiguousModel`] otherwise; `files` names the candidates.
pub fn choose(file_names: &[String], ignore_index: bool) -> Result<Choice, Error> {
    let mut names: Vec<&str> =
        file_names.iter().map(String::as_str).filter(|name| !name.starts_with('.')).collect();
    names.sort_unstable();
    names.dedup();
    if !ignore_index {
        let indexes: Vec<&str> =
            names.iter().copied().filter(|name| name.ends_with(INDEX)).collect();
        match indexes[..] {
            [] => {}
            [index] => return Ok(Choice::Index(index.into())),
            _ if indexes.contains(&USUAL_INDEX) => return Ok(Choice::Index(USUAL_INDEX.into())),
            _ => return Err(ambiguous("the folder holds several index files", &indexes)),
        }
    }
    let files: Vec<&str> = names.iter().copied().filter(|name| name.ends_with(TENSORS)).collect();
    if files.is_empty() {
        return Err(no_model(&names));
    }
    let sets = Sets::of(&files);
    if ignore_index {
        let mut complete = sets.sets.values().filter(|set| set.missing().next().is_none());
        return Ok(match (complete.next(), complete.next()) {
            (Some(set), None) => chosen(&set.files),
            _ => chosen(&files),
        });
    }
    let mut all_sets = sets.sets.values();
    match (all_sets.next(), all_sets.next()) {
        (Some(set), None) if sets.others == 0 && !set.repeats => match set.missing().next() {
            None => Ok(chosen(&set.files)),
            Some(_) => Err(incomplete(set)),
        },
        _ if files.len() == 1 => Ok(chosen(&files)),
        _ => Err(ambiguous(
            "the folder holds several safetensors files that are not one set",
            &files,
        )),
    }
}

/// The safetensors files of a folder, sorted into sets.
struct Sets<'a> {
    sets: BTreeMap<(&'a str, &'a str), Set<'a>>,
    /// How many files belong to no set.
    others: usize,
}

/// The files `NAME-XXXXX-of-TOTAL.safetensors` of one name and total.
struct Set<'a> {
    name: &'a str,
    total: u64,
    total_text: &'a str,
    digits: usize,
    files: Vec<&'a str>,
    numbers: BTreeSet<u64>,
    /// Whether two files have the same number, or one has none that it may have.
    repeats: bool,
}

impl<'a> Sets<'a> {
    fn of(files: &[&'a str]) -> Self {
        let mut sets: BTreeMap<(&str, &str), Set<'_>> = BTreeMap::new();
        let mut others = 0;
        for file in files {
            let Some(part) = Part::of(file) else {
                others += 1;
                continue;
            };
            let set = sets.entry((part.name, part.total_text)).or_insert_with(|| Set {
                name: part.name,
                total: part.total,
                total_text: part.total_text,
                digits: part.digits,
                files: Vec::new(),
                numbers: BTreeSet::new(),
                repeats: false,
            });
            set.files.push(file);
            let new = set.numbers.insert(part.number);
            set.repeats |= !new || !(1..=part.total).contains(&part.number);
        }
        Self { sets, others }
    }
}

impl Set<'_> {
    /// The numbers of the files that are not there.
    fn missing(&self) -> impl Iterator<Item = u64> {
        (1..=self.total).filter(|number| !self.numbers.contains(number))
    }
}

/// The parts of a name `NAME-XXXXX-of-TOTAL.safetensors`.
struct Part<'a> {
    name: &'a str,
    number: u64,
    total: u64,
    total_text: &'a str,
    digits: usize,
}

impl<'a> Part<'a> {
    fn of(file: &'a str) -> Option<Self> {
        let (rest, total_text) = file.strip_suffix(TENSORS)?.rsplit_once("-of-")?;
        let (name, number) = rest.rsplit_once('-')?;
        let digits = number.len();
        let (number, total) = (parse_digits(number)?, parse_digits(total_text)?);
        Some(Self { name, number, total, total_text, digits })
    }
}

fn parse_digits(text: &str) -> Option<u64> {
    // 20 digits are the most that a u64 has.
    let is_number = text.len() <= 20 && text.bytes().all(|byte| byte.is_ascii_digit());
    text.parse().ok().filter(|_| is_number)
}

fn chosen(files: &[&str]) -> Choice {
    Choice::Files(files.iter().map(ToString::to_string).collect())
}

fn ambiguous(message: &str, files: &[&str]) -> Error {
    Error::new(ErrorKind::AmbiguousModel, message)
        .with("files", join(files))
        .hint("name the file to load, instead of the folder")
}

fn incomplete(set: &Set<'_>) -> Error {
    // The total stands in a file name and can be any number, so neither are all names listed nor
    // all numbers looked at.
    let count = set.total - set.numbers.len() as u64;
    let Set { name, total_text, digits, .. } = set;
    let mut listed: Vec<String> = set
        .missing()
        .take(MOST_LISTED as usize)
        .map(|number| format!("{name}-{number:0digits$}-of-{total_text}{TENSORS}"))
        .collect();
    if count > MOST_LISTED {
        listed.push(format!("and {} more", count - MOST_LISTED));
    }
    Error::new(ErrorKind::MissingShards, "files of the model's set are not there")
        .with("shards", join(listed))
        .with("count", count)
        .with("of", set.total)
        .hint("fetch the missing files, or name a single file to load that one alone")
}

fn no_model(names: &[&str]) -> Error {
    const OTHER: [&str; 9] =
        [".incomplete", ".gguf", ".onnx", ".bin", ".pt", ".pth", ".ckpt", ".h5", ".npz"];
    let error = Error::new(ErrorKind::NoModel, "the folder holds no safetensors file");
    let similar: Vec<&str> = names
        .iter()
        .copied()
        .filter(|name| OTHER.iter().any(|suffix| name.ends_with(suffix)))
        .collect();
    let listed: Vec<&str> = similar.iter().copied().take(MOST_LISTED as usize).collect();
    match listed.first() {
        None => error,
        Some(first) if first.ends_with(".incomplete") => {
            error.with("files", join(&listed)).hint("a download was interrupted: start it again")
        }
        Some(_) => error
            .with("files", join(&listed))
            .with("count", similar.len())
            .hint("these are of other formats"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pick(names: &[&str], ignore_index: bool) -> Result<Choice, Error> {
        let names: Vec<String> = names.iter().map(ToString::to_string).collect();
        choose(&names, ignore_index)
    }

    fn files(names: &[&str]) -> Choice {
        chosen(names)
    }

    const A: &str = "m-00001-of-00002.safetensors";
    const B: &str = "m-00002-of-00002.safetensors";

    #[test]
    fn one_answer_where_there_is_one() {
        let index = |name: &str| Choice::Index(name.into());
        let table: [(&[&str], Choice); 7] = [
            (&["model.safetensors", "config.json"], files(&["model.safetensors"])),
            (&[B, A, "config.json"], files(&[A, B])),
            (&["m-1-of-1.safetensors"], files(&["m-1-of-1.safetensors"])),
            (
                &["x.safetensors.index.json", A, "consolidated.safetensors"],
                index("x.safetensors.index.json"),
            ),
            (&["x.safetensors.index.json", USUAL_INDEX], index(USUAL_INDEX)),
            (&["model.safetensors", "._model.safetensors"], files(&["model.safetensors"])),
            (&["model.safetensors", "b.safetensors.incomplete"], files(&["model.safetensors"])),
        ];
        for (names, choice) in table {
            assert_eq!(pick(names, false).unwrap(), choice, "{names:?}");
        }
    }

    #[test]
    fn ignoring_the_index_takes_the_set_or_all() {
        let table: [(&[&str], Choice); 4] = [
            (&[USUAL_INDEX, A, B], files(&[A, B])),
            (&[USUAL_INDEX, A, B, "consolidated.safetensors"], files(&[A, B])),
            (&[USUAL_INDEX, A], files(&[A])),
            (&["b.safetensors", "a.safetensors"], files(&["a.safetensors", "b.safetensors"])),
        ];
        for (names, choice) in table {
            assert_eq!(pick(names, true).unwrap(), choice, "{names:?}");
        }
    }

    #[test]
    fn refuses_to_guess() {
        use ErrorKind::{AmbiguousModel, MissingShards, NoModel};
        let table: [(&[&str], ErrorKind, &str, Option<&str>); 9] = [
            (
                &["a.safetensors", "b.safetensors"],
                AmbiguousModel,
                "files",
                Some("a.safetensors, b.safetensors"),
            ),
            (
                &[A, B, "z.safetensors"],
                AmbiguousModel,
                "files",
                Some(&format!("{A}, {B}, z.safetensors")),
            ),
            (
                &["a.safetensors.index.json", "b.safetensors.index.json"],
                AmbiguousModel,
                "files",
                Some("a.safetensors.index.json, b.safetensors.index.json"),
            ),
            (
                &[A, "m-1-of-2.safetensors"],
                AmbiguousModel,
                "files",
                Some(&format!("{A}, m-1-of-2.safetensors")),
            ),
            (&[B], MissingShards, "shards", Some(A)),
            (&["m-1-of-99.safetensors"], MissingShards, "count", Some("98")),
            (&[], NoModel, "files", None),
            (&["config.json", "pytorch_model.bin"], NoModel, "files", Some("pytorch_model.bin")),
            (
                &["model.safetensors.incomplete"],
                NoModel,
                "files",
                Some("model.safetensors.incomplete"),
            ),
        ];
        for (names, kind, key, value) in table {
            let error = pick(names, false).unwrap_err();
            assert_eq!((error.kind(), error.get(key)), (kind, value), "{names:?}");
        }
    }

    // A file name can claim any number of files; neither time nor memory may follow it.
    #[test]
    fn a_huge_total_costs_nothing() {
        let name = format!("m-00001-of-{}.safetensors", u64::MAX);
        let error = pick(&[&name], false).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::MissingShards);
        assert_eq!(error.get("count"), Some(&*(u64::MAX - 1).to_string()));
        assert!(error.get("shards").unwrap().ends_with("more"));
        assert_eq!(pick(&[&name], true).unwrap(), files(&[&name]));
    }
}
