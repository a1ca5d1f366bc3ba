//! One file of a model: told apart, and its header read.

use std::fs::File;
use std::path::PathBuf;
use std::sync::Arc;

use weightlift_index::detect::{format_of, refuse_stand_in};
use weightlift_index::{Bytes, Format, Index, gguf, onnx, openvino, pytorch, raw, safetensors};

use super::file_linux::read_exact_at;
use super::folder::Folder;
use super::open::in_file;
use super::{LocalFile, OpenOptions, Source};
use crate::error::{Error, ErrorKind, Result};

/// A file of a model, with the files that it brings.
pub(super) struct Part {
    pub(super) name: Box<str>,
    pub(super) content: Content,
    /// In the order of the index's; those that it holds itself come after them.
    pub(super) sources: Vec<Arc<dyn Source>>,
}

pub(super) enum Content {
    Index(Index),
    /// Perhaps one of several parts, which are checked together.
    Gguf(gguf::Header),
}

impl Part {
    pub(super) fn gguf(&self) -> Option<(&str, &gguf::Header)> {
        match &self.content {
            Content::Gguf(header) => Some((&self.name, header)),
            Content::Index(_) => None,
        }
    }
}

/// Bytes read at first: small headers need no second read, and it is enough to tell what a
/// file is.
const FIRST_READ: u64 = 4096;

/// Opens the file at `path`, which the model calls `name`; what it names lies in `folder`.
pub(super) fn open(
    path: PathBuf,
    name: &str,
    folder: &Folder,
    options: &OpenOptions,
) -> Result<Part> {
    let (source, file) = LocalFile::open_new(path, name)?;
    let length = source.length();
    let first = read_start(&file, length.min(FIRST_READ), name)?;
    let opening = Opening { source, file, name, length, folder, options };
    opening.format(&first).map_err(|error| in_file(error, name)).and_then(|format| match format {
        Format::Safetensors => opening.safetensors(first),
        Format::Gguf => opening.gguf(),
        Format::Onnx => opening.onnx(),
        Format::OpenVino => opening.openvino(),
        Format::PyTorch => opening.pytorch(),
        _ => Ok(opening.part(raw::index(name, length))),
    })
}

/// The first `length` bytes of a file, which are within its length and a limit: that may still be
/// more than there is memory for.
pub(super) fn read_start(file: &File, length: u64, name: &str) -> Result<Vec<u8>> {
    let mut bytes = Vec::new();
    read_more(file, &mut bytes, length, name)?;
    Ok(bytes)
}

/// Reads on until there are `length` bytes.
fn read_more(file: &File, bytes: &mut Vec<u8>, length: u64, name: &str) -> Result<()> {
    let there = bytes.len();
    let more = length as usize - there;
    bytes.try_reserve_exact(more).map_err(|error| {
        Error::new(ErrorKind::OutOfHostMemory, "not enough memory for a header")
            .with("file", name)
            .with("bytes", length)
            .because(error)
    })?;
    bytes.resize(length as usize, 0);
    read_exact_at(file, &mut bytes[there..], there as u64)
        .map_err(|error| Error::io(error, "read a header", name))
}

struct Opening<'a> {
    source: LocalFile,
    file: File,
    name: &'a str,
    length: u64,
    folder: &'a Folder,
    options: &'a OpenOptions,
}

impl Opening<'_> {
    fn format(&self, first: &[u8]) -> Result<Format, weightlift_index::Error> {
        match self.options.format {
            None => format_of(first, self.name),
            // Their own errors are those of a safetensors file, and of none.
            Some(format @ (Format::Safetensors | Format::Raw)) => Ok(format),
            Some(format) => refuse_stand_in(first).map(|()| format),
        }
    }

    fn safetensors(self, mut first: Vec<u8>) -> Result<Part> {
        let (limits, name) = (&self.options.limits, self.name);
        let named = |error| in_file(error, name);
        let span = safetensors::header_span(&first, self.length, limits).map_err(named)?;
        // The span lies within the file and within the limit: this allocates no more than both.
        if span.end > first.len() as u64 {
            read_more(&self.file, &mut first, span.end, name)?;
        }
        let json = &first[span.start as usize..span.end as usize];
        let header = safetensors::parse_header(json, span.end, self.length, limits);
        let index = header.and_then(|header| header.into_index(name, self.length));
        index.map_err(named).map(|index| self.part(index))
    }

    fn gguf(self) -> Result<Part> {
        let (limits, lists) = (&self.options.limits, self.options.metadata_lists);
        let header = gguf::parse(&mut self.bytes(), lists, limits)
            .map_err(|error| in_file(error, self.name))?;
        Ok(Part { content: Content::Gguf(header), ..self.part(Index::default()) })
    }

    fn onnx(self) -> Result<Part> {
        let named = |error| in_file(error, self.name);
        let model = onnx::parse(&mut self.bytes(), &self.options.limits).map_err(named)?;
        self.check_there(model.locations())?;
        let mut data = Vec::with_capacity(model.locations().len());
        for location in model.locations() {
            data.push(self.sibling(location)?);
        }
        let lengths: Vec<u64> = data.iter().map(|file| file.length()).collect();
        let index = model.into_index(self.name, self.length, &lengths).map_err(named)?;
        let mut part = self.part(index);
        part.sources.extend(data.into_iter().map(|file| file as Arc<dyn Source>));
        Ok(part)
    }

    fn openvino(self) -> Result<Part> {
        let named = |error| in_file(error, self.name);
        let network = openvino::parse(&mut self.bytes(), &self.options.limits).map_err(named)?;
        let weights = format!("{}.bin", self.name.strip_suffix(".xml").unwrap_or(self.name));
        let weights = match network.needs_weights() {
            true => {
                self.check_there(&[&*weights])?;
                Some(self.sibling(&weights)?)
            }
            false => None,
        };
        let known = weights.as_ref().map(|file| (file.name(), file.length()));
        let index = network.into_index(known).map_err(named)?;
        let sources = weights.into_iter().map(|file| file as _).collect();
        Ok(Part { sources, ..self.part(index) })
    }

    fn pytorch(self) -> Result<Part> {
        let index = pytorch::parse(&mut self.bytes(), self.name, &self.options.limits)
            .map_err(|error| in_file(error, self.name))?;
        Ok(self.part(index))
    }

    /// Checks that the files that this one names are there, before any of them is opened.
    fn check_there<S: AsRef<str>>(&self, names: &[S]) -> Result<()> {
        // Enough to see which they are: a model may name a file for each of its tensors.
        const SHOWN: usize = 20;
        let missing = || names.iter().map(AsRef::as_ref).filter(|name| !self.folder.has(name));
        let Some(first) = missing().next() else {
            return Ok(());
        };
        let count = missing().count();
        let mut files = missing().take(SHOWN).collect::<Vec<_>>().join(", ");
        if count > SHOWN {
            files.push_str(", ...");
        }
        let kind = ErrorKind::Format(weightlift_index::ErrorKind::MissingWeights);
        Err(Error::new(kind, "files with the model's weights are not there")
            .with("file", first)
            .with("named_by", self.name)
            .with("files", files)
            .with("count", count)
            .with("of", names.len())
            .hint(
                "put them beside the model, under these names, or say where they are with \
                 --search-dir (OpenOptions::search_dirs)",
            ))
    }

    /// A file that this one names.
    fn sibling(&self, name: &str) -> Result<Arc<LocalFile>> {
        let path = self.folder.resolve(name).map_err(|error| error.with("named_by", self.name))?;
        Ok(Arc::new(LocalFile::open_new(path, name)?.0))
    }

    fn bytes(&self) -> FileBytes<'_> {
        FileBytes { file: &self.file, length: self.length }
    }

    fn part(self, index: Index) -> Part {
        let sources: Vec<Arc<dyn Source>> = vec![Arc::new(self.source)];
        Part { name: self.name.into(), content: Content::Index(index), sources }
    }
}

/// A file's bytes, for a parser.
struct FileBytes<'a> {
    file: &'a File,
    length: u64,
}

impl Bytes for FileBytes<'_> {
    fn length(&self) -> u64 {
        self.length
    }

    fn read_at(&mut self, offset: u64, buffer: &mut [u8]) -> Result<(), weightlift_index::Error> {
        read_exact_at(self.file, buffer, offset).map_err(|error| {
            let kind = weightlift_index::ErrorKind::Io;
            let message = "cannot read a header";
            let failed = weightlift_index::Error::new(kind, message);
            failed.with("offset", offset).with("reason", &error).because(error)
        })
    }
}
