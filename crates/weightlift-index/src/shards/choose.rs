//! Which files of a folder are the model.

use std::collections::{BTreeMap, BTreeSet};

use crate::Format;
use crate::error::{Error, ErrorKind, join};

/// The files of a folder that are the model.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Choice {
    /// An index file, which names the others.
    Index(String),
    /// These files, sorted, without an index file.
    Files(Vec<String>),
}

/// Most names of files that an error lists when it is not a file that bounds their number.
const MOST_LISTED: u64 = 20;

/// Says which files of a folder are the model, given the names of all files in it.
///
/// Names that begin with a dot are passed over: they are hidden files and what macOS leaves beside
/// real ones. An interrupted download (`.incomplete`) is never taken.
///
/// Without `format`, safetensors files are the model wherever there are some, whatever else stands
/// beside them; otherwise the files of the one other format that is there. Which files are of a
/// format is told by their names alone.
///
/// With an index file (`*.safetensors.index.json`, `*.bin.index.json`) that file is the answer, and
/// what stands beside it does not matter; of several, the one of the usual name
/// (`model.safetensors.index.json`, `pytorch_model.bin.index.json`). Without, or with
/// `ignore_index`, it is the only file of the format, or a complete set
/// `NAME-00001-of-0000N.safetensors`.
///
/// A folder where something of the same format stands beside the set or the one file is refused,
/// since reading both copies of a model, or the wrong one, is worse than asking. With
/// `ignore_index` the caller has been asked: then it is the one complete set if there is one, and
/// all files of the format if not.
///
/// # Errors
///
/// - [`ErrorKind::NoModel`] if nothing is there; `files` names what looks like another format;
/// - [`ErrorKind::MissingShards`] if the files are a part of one set; `shards` names the others;
/// - [`ErrorKind::AmbiguousModel`] otherwise; `files` names the candidates.
pub fn choose(
    file_names: &[String],
    ignore_index: bool,
    format: Option<Format>,
) -> Result<Choice, Error> {
    let mut names: Vec<&str> =
        file_names.iter().map(String::as_str).filter(|name| !name.starts_with('.')).collect();
    names.sort_unstable();
    names.dedup();
    let of = |format: Format| Family::of(format, &names);
    let family = match format {
        Some(Format::Raw) => {
            return Err(Error::new(ErrorKind::AmbiguousModel, "a folder is no raw file")
                .hint("name the file to load, instead of the folder"));
        }
        Some(format) => of(format),
        None => match of(Format::Safetensors) {
            safetensors if !safetensors.is_empty() => safetensors,
            _ => only_other(&names)?,
        },
    };
    family.choose(ignore_index).unwrap_or_else(|| Err(no_model(&names, format)))
}

/// The files of the one format beside safetensors that is there.
fn only_other<'a>(names: &[&'a str]) -> Result<Family<'a>, Error> {
    let others = [Format::PyTorch, Format::Gguf, Format::Onnx, Format::OpenVino];
    let mut families: Vec<Family<'a>> =
        others.map(|format| Family::of(format, names)).into_iter().collect();
    families.retain(|family| !family.is_empty());
    // `.bin` says little: beside another format it holds that one's data, but for the names that
    // checkpoints of PyTorch have.
    if families.len() > 1 {
        families.retain(|family| !family.is_vague());
    }
    match families.len() {
        0 => Ok(Family::of(Format::Safetensors, &[])),
        1 => Ok(families.remove(0)),
        _ => {
            let files =
                families.iter().flat_map(|family| family.indexes.iter().chain(&family.files));
            let formats = families.iter().map(|family| family.format.name());
            Err(Error::new(ErrorKind::AmbiguousModel, "the folder holds models of several formats")
                .with("files", join(files))
                .with("formats", join(formats))
                .hint("choose one with --format (OpenOptions::format), or name the file"))
        }
    }
}

/// The files of one format in a folder.
struct Family<'a> {
    format: Format,
    indexes: Vec<&'a str>,
    files: Vec<&'a str>,
}

/// What training leaves beside a model in files that are checkpoints too.
const NO_MODELS: [&str; 5] = ["training_args", "optimizer", "scheduler", "scaler", "rng_state"];

/// Names under which checkpoints of PyTorch are saved with the suffix `.bin`.
const BIN_MODELS: [&str; 3] = ["pytorch_model", "adapter_model", "diffusion_pytorch_model"];

impl<'a> Family<'a> {
    fn of(format: Format, names: &[&'a str]) -> Self {
        let is_index = |name: &str| match format {
            Format::Safetensors => name.ends_with(".safetensors.index.json"),
            Format::PyTorch => name.ends_with(".bin.index.json"),
            _ => false,
        };
        let has = |stem: &str, suffix: &str| {
            names.binary_search_by(|name| (**name).cmp(&*format!("{stem}{suffix}"))).is_ok()
        };
        let is_file = |name: &str| {
            let Some((stem, suffix)) = suffix_of(format, name) else { return false };
            match suffix {
                // The weights of an OpenVINO model.
                ".bin" if has(stem, ".xml") => false,
                ".xml" => has(stem, ".bin") || stem == "openvino_model",
                _ => format != Format::PyTorch || !NO_MODELS.iter().any(|no| stem.starts_with(no)),
            }
        };
        let filter = |is: &dyn Fn(&str) -> bool| names.iter().copied().filter(|n| is(n)).collect();
        Self { format, indexes: filter(&is_index), files: filter(&is_file) }
    }

    fn is_empty(&self) -> bool {
        self.indexes.is_empty() && self.files.is_empty()
    }

    /// Whether nothing but the suffix `.bin` says that these are checkpoints.
    fn is_vague(&self) -> bool {
        let vague = |name: &&str| {
            name.ends_with(".bin") && !BIN_MODELS.iter().any(|start| name.starts_with(start))
        };
        self.format == Format::PyTorch && self.indexes.is_empty() && self.files.iter().all(vague)
    }

    fn usual_index(&self) -> &'static str {
        match self.format {
            Format::PyTorch => "pytorch_model.bin.index.json",
            _ => "model.safetensors.index.json",
        }
    }

    /// `None` if there is nothing of this format.
    fn choose(&self, ignore_index: bool) -> Option<Result<Choice, Error>> {
        if !ignore_index {
            match self.indexes[..] {
                [] => {}
                [index] => return Some(Ok(Choice::Index(index.into()))),
                _ if self.indexes.contains(&self.usual_index()) => {
                    return Some(Ok(Choice::Index(self.usual_index().into())));
                }
                _ => {
                    let message = "the folder holds several index files";
                    return Some(Err(ambiguous(message, &self.indexes)));
                }
            }
        }
        if self.files.is_empty() {
            return None;
        }
        Some(self.choose_files(ignore_index))
    }

    fn choose_files(&self, ignore_index: bool) -> Result<Choice, Error> {
        let sets = Sets::of(self.format, &self.files);
        if ignore_index {
            let mut complete = sets.sets.values().filter(|set| set.missing().next().is_none());
            return Ok(match (complete.next(), complete.next()) {
                (Some(set), None) => chosen(&set.files),
                _ => chosen(&self.files),
            });
        }
        let mut all_sets = sets.sets.values();
        match (all_sets.next(), all_sets.next()) {
            (Some(set), None) if sets.others == 0 && !set.repeats => match set.missing().next() {
                None => Ok(chosen(&set.files)),
                Some(_) => Err(incomplete(set)),
            },
            _ if self.files.len() == 1 => Ok(chosen(&self.files)),
            _ => {
                let format = self.format;
                let message =
                    format!("the folder holds several {format} files that are not one set");
                Err(ambiguous(message, &self.files))
            }
        }
    }
}

/// The name without the suffix that files of this format have, and the suffix.
fn suffix_of(format: Format, name: &str) -> Option<(&str, &'static str)> {
    let suffixes: &[&'static str] = match format {
        Format::Safetensors => &[".safetensors"],
        Format::PyTorch => &[".pt", ".pth", ".ckpt", ".bin"],
        Format::Gguf => &[".gguf"],
        Format::Onnx => &[".onnx"],
        Format::OpenVino => &[".xml"],
        Format::Raw => &[],
    };
    suffixes.iter().find_map(|suffix| Some((name.strip_suffix(suffix)?, *suffix)))
}

/// The files of a format in a folder, sorted into sets.
struct Sets<'a> {
    sets: BTreeMap<(&'a str, &'a str, &'static str), Set<'a>>,
    /// How many files belong to no set.
    others: usize,
}

/// The files `NAME-XXXXX-of-TOTAL.safetensors` of one name, total and suffix.
struct Set<'a> {
    name: &'a str,
    total: u64,
    total_text: &'a str,
    suffix: &'static str,
    digits: usize,
    files: Vec<&'a str>,
    numbers: BTreeSet<u64>,
    /// Whether two files have the same number, or one has none that it may have.
    repeats: bool,
}

impl<'a> Sets<'a> {
    fn of(format: Format, files: &[&'a str]) -> Self {
        let mut sets: BTreeMap<_, Set<'_>> = BTreeMap::new();
        let mut others = 0;
        for file in files {
            let Some(part) = Part::of(format, file) else {
                others += 1;
                continue;
            };
            let key = (part.name, part.total_text, part.suffix);
            let set = sets.entry(key).or_insert_with(|| Set {
                name: part.name,
                total: part.total,
                total_text: part.total_text,
                suffix: part.suffix,
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
    suffix: &'static str,
    digits: usize,
}

impl<'a> Part<'a> {
    fn of(format: Format, file: &'a str) -> Option<Self> {
        let (stem, suffix) = suffix_of(format, file)?;
        let (rest, total_text) = stem.rsplit_once("-of-")?;
        let (name, number) = rest.rsplit_once('-')?;
        let digits = number.len();
        let (number, total) = (parse_digits(number)?, parse_digits(total_text)?);
        Some(Self { name, number, total, total_text, suffix, digits })
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

fn ambiguous(message: impl Into<String>, files: &[&str]) -> Error {
    Error::new(ErrorKind::AmbiguousModel, message)
        .with("files", join(files))
        .hint("name the file to load, instead of the folder")
}

fn incomplete(set: &Set<'_>) -> Error {
    // The total stands in a file name and can be any number, so neither are all names listed nor
    // all numbers looked at.
    let count = set.total - set.numbers.len() as u64;
    let Set { name, total_text, digits, suffix, .. } = set;
    let mut listed: Vec<String> = set
        .missing()
        .take(MOST_LISTED as usize)
        .map(|number| format!("{name}-{number:0digits$}-of-{total_text}{suffix}"))
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

fn no_model(names: &[&str], format: Option<Format>) -> Error {
    const OTHER: [&str; 12] = [
        ".incomplete",
        ".safetensors",
        ".gguf",
        ".onnx",
        ".xml",
        ".bin",
        ".pt",
        ".pth",
        ".ckpt",
        ".h5",
        ".npz",
        ".msgpack",
    ];
    let error = match format {
        Some(format) => {
            Error::new(ErrorKind::NoModel, format!("the folder holds no {format} model"))
        }
        None => Error::new(ErrorKind::NoModel, "the folder holds no model"),
    };
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
            .hint("these may be of other formats: name the file to load it"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pick(names: &[&str], ignore_index: bool) -> Result<Choice, Error> {
        let names: Vec<String> = names.iter().map(ToString::to_string).collect();
        choose(&names, ignore_index, None)
    }

    fn files(names: &[&str]) -> Choice {
        chosen(names)
    }

    const USUAL_INDEX: &str = "model.safetensors.index.json";
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
            (&["config.json", "model.h5"], NoModel, "files", Some("model.h5")),
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

    #[test]
    fn other_formats_are_taken_where_safetensors_are_not() {
        let table: [(&[&str], Option<Format>, &[&str]); 15] = [
            (&["config.json", "pytorch_model.bin"], None, &["pytorch_model.bin"]),
            (&["model.safetensors", "pytorch_model.bin"], None, &["model.safetensors"]),
            (
                &["model.safetensors", "pytorch_model.bin"],
                Some(Format::PyTorch),
                &["pytorch_model.bin"],
            ),
            (
                &["m-00002-of-00002.bin", "m-00001-of-00002.bin"],
                None,
                &["m-00001-of-00002.bin", "m-00002-of-00002.bin"],
            ),
            (
                &["model.pt", "optimizer.pt", "training_args.bin", "rng_state_0.pth"],
                None,
                &["model.pt"],
            ),
            (&["a.gguf", "README.md"], None, &["a.gguf"]),
            (&["a-1-of-2.gguf", "a-2-of-2.gguf"], None, &["a-1-of-2.gguf", "a-2-of-2.gguf"]),
            (&["model.onnx", "model.onnx.data", "weights.bin"], None, &["model.onnx"]),
            (&["openvino_model.xml", "openvino_model.bin"], None, &["openvino_model.xml"]),
            (&["m.xml", "m.bin", "tokenizer.xml", "tokenizer.bin"], Some(Format::OpenVino), &[]),
            (&["m.xml", "m.bin", "readme.xml"], None, &["m.xml"]),
            (&["model.onnx", "pytorch_model.bin"], None, &[]),
            (&["model.onnx", "pytorch_model.bin"], Some(Format::Onnx), &["model.onnx"]),
            (&["model.onnx", "a.gguf"], None, &[]),
            (&["a.gguf", "b.gguf"], None, &[]),
        ];
        for (names, format, wanted) in table {
            let names: Vec<String> = names.iter().map(ToString::to_string).collect();
            match choose(&names, false, format) {
                Ok(choice) => assert_eq!(choice, files(wanted), "{names:?}"),
                Err(error) => {
                    assert_eq!(error.kind(), ErrorKind::AmbiguousModel, "{names:?}");
                    assert!(wanted.is_empty(), "{error}");
                }
            }
        }
        let index = "pytorch_model.bin.index.json".to_owned();
        let names = [index.clone(), "pytorch_model-1-of-2.bin".to_owned()];
        assert_eq!(choose(&names, false, None).unwrap(), Choice::Index(index));
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
