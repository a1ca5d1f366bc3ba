//! From tags to constants: which elements mean something, and where.

use std::borrow::Cow;
use std::sync::Arc;

use super::xml::{Tag, Token, Tokens, other_root, start_of};
use super::{Constant, Network, types};
use crate::limits::{self, Limits};
use crate::{Bytes, Dtype, Error, ErrorKind, Value};

/// Most bytes of an outer layer's name that its constants' names may carry: the name stands once in
/// the file, and may be needed once for each of a million constants.
const OUTER_BYTES: usize = 255;

/// Memory of an entry of the metadata beside its text, roughly.
const ENTRY_BYTES: u64 = 100;

/// Reads the whole file.
pub(super) fn read(xml: &mut dyn Bytes, limits: &Limits) -> Result<Network, Error> {
    let mut tokens = Tokens::new(xml, limits)?;
    let mut walk = Walk {
        limits,
        network: Network::default(),
        open: Vec::new(),
        opaque: None,
        key: String::new(),
        kept: 0,
    };
    loop {
        match tokens.next()? {
            Token::Start(tag) => {
                let element = walk.start(&tag)?;
                walk.open.push(element);
            }
            Token::End => walk.end()?,
            Token::Passed => {}
            Token::EndOfFile => return Ok(walk.network),
        }
    }
}

/// An element that has begun and not ended.
enum Element {
    /// The root, which has no name, or the body of a layer of this name.
    Graph(Option<Arc<str>>),
    /// `<layers>` of a graph.
    Layers,
    /// A layer.
    Layer(Layer),
    /// `<rt_info>` of the root or something in it, and how long the key was without it.
    Metadata(usize),
    /// Anything else. What stands in it means nothing here.
    Other,
}

struct Layer {
    name: Box<str>,
    /// Where it begins.
    offset: u64,
    state: State,
}

#[derive(PartialEq, Eq)]
enum State {
    /// It is no constant.
    Passed,
    /// It is one, and its `<data>` has not come yet.
    Expected,
    /// It is one that was read.
    Done,
}

struct Walk<'a> {
    limits: &'a Limits,
    network: Network,
    open: Vec<Element>,
    /// The last data type that is not known, to be shared by the constants that have it.
    opaque: Option<Dtype>,
    /// The key of the metadata that are being read.
    key: String,
    /// Memory of the metadata that were kept.
    kept: u64,
}

impl Walk<'_> {
    fn start(&mut self, tag: &Tag<'_>) -> Result<Element, Error> {
        let inner = match (self.open.last(), tag.name()) {
            (None, "net") => return self.root(tag),
            (None, name) => return Err(other_root(name)),
            (Some(Element::Graph(_)), "layers") => Element::Layers,
            (Some(Element::Graph(None)), "rt_info") => {
                self.key.push_str("rt_info");
                Element::Metadata(0)
            }
            (Some(Element::Layers), "layer") => return self.layer(tag),
            (Some(Element::Layer(layer)), "data") if layer.state != State::Passed => {
                self.data(tag)?;
                return Ok(Element::Other);
            }
            (Some(Element::Layer(layer)), "body" | "then_body" | "else_body") => {
                Element::Graph(Some(outer_name(&layer.name)))
            }
            (Some(Element::Metadata(_)), _) => return self.metadata(tag),
            _ => Element::Other,
        };
        // What is passed over has to be well-formed too.
        tag.attributes([])?;
        Ok(inner)
    }

    fn end(&mut self) -> Result<(), Error> {
        match self.open.pop() {
            Some(Element::Layer(layer)) if layer.state == State::Expected => {
                Err(Error::new(ErrorKind::InvalidHeader, "a constant has no <data>")
                    .with("tensor", layer.name)
                    .with("offset", layer.offset))
            }
            Some(Element::Metadata(length)) => {
                self.key.truncate(length);
                Ok(())
            }
            _ => Ok(()),
        }
    }

    fn root(&mut self, tag: &Tag<'_>) -> Result<Element, Error> {
        let [name, version] = tag.attributes(["name", "version"])?;
        let version = version.ok_or_else(|| tag.lacks("version"))?;
        if !matches!(&*version, "10" | "11") {
            let error = Error::new(
                ErrorKind::Unsupported,
                "the OpenVINO model is of a version that is not read",
            );
            return Err(error
                .with("expected", "10 or 11")
                .with("actual", start_of(&version))
                .hint("convert it with OpenVINO 2022.1 or later"));
        }
        self.keep("net.version".to_owned(), &version)?;
        if let Some(name) = name {
            self.keep("net.name".to_owned(), &name)?;
        }
        Ok(Element::Graph(None))
    }

    fn layer(&self, tag: &Tag<'_>) -> Result<Element, Error> {
        let keys = ["id", "name", "type", "version"];
        let found = tag.attributes(keys)?;
        if let Some((key, _)) = keys.iter().zip(&found).find(|(_, value)| value.is_none()) {
            return Err(tag.lacks(key));
        }
        let [_, name, kind, _] = found.map(Option::unwrap_or_default);
        let state = if kind == "Const" { State::Expected } else { State::Passed };
        Ok(Element::Layer(Layer { name: name.into(), offset: tag.offset(), state }))
    }

    /// The `<data>` of the constant that is the last element.
    fn data(&mut self, tag: &Tag<'_>) -> Result<(), Error> {
        let outer = self.open.iter().rev().find_map(|element| match element {
            Element::Graph(name) => Some(name.clone()),
            _ => None,
        });
        let Some(Element::Layer(layer)) = self.open.last_mut() else {
            return Ok(());
        };
        if layer.state == State::Done {
            let name = self.network.constants.last().map_or("", |constant| &constant.name);
            return Err(tag.invalid("a constant has two <data>").with("tensor", name));
        }
        let count = self.network.constants.len() as u64;
        if count >= self.limits.tensors {
            return Err(limits::exceeded(
                ErrorKind::LimitExceeded,
                "the model has more constants than the limit",
                "tensors",
                self.limits.tensors,
                format_args!("more than {count}"),
            )
            .hint(limits::raise("tensors")));
        }
        layer.state = State::Done;
        let name = std::mem::take(&mut layer.name);
        match read_data(tag, self.limits, &mut self.opaque) {
            Ok(fields) => {
                let outer = outer.flatten();
                self.network.constants.push(Constant { name, outer, ..fields });
                Ok(())
            }
            Err(error) => Err(error.with("tensor", name)),
        }
    }

    fn metadata(&mut self, tag: &Tag<'_>) -> Result<Element, Error> {
        let [name, value] = tag.attributes(["name", "value"])?;
        let length = self.key.len();
        self.key.push('.');
        self.key.push_str(name.as_deref().unwrap_or_else(|| tag.name()));
        match value {
            Some(value) => self.keep(self.key.clone(), &value)?,
            // No longer than what could be kept under it.
            None => self.check_kept(self.key.len() as u64)?,
        }
        Ok(Element::Metadata(length))
    }

    /// Keeps a value; of two under one key the last, as OpenVINO does.
    fn keep(&mut self, key: String, value: &str) -> Result<(), Error> {
        let size = ENTRY_BYTES + key.len() as u64 + value.len() as u64;
        self.check_kept(size)?;
        self.kept += size;
        self.network.metadata.insert(key, Value::from(value));
        Ok(())
    }

    fn check_kept(&self, more: u64) -> Result<(), Error> {
        let actual = self.kept.saturating_add(more);
        if actual <= self.limits.text_bytes {
            return Ok(());
        }
        Err(limits::exceeded(
            ErrorKind::LimitExceeded,
            "the model's metadata are longer than the limit",
            "text_bytes",
            self.limits.text_bytes,
            actual,
        )
        .hint(limits::raise("text_bytes")))
    }
}

/// As much of a layer's name as its constants' names may carry.
fn outer_name(name: &str) -> Arc<str> {
    let end = (0..=OUTER_BYTES.min(name.len()))
        .rev()
        .find(|end| name.is_char_boundary(*end))
        .unwrap_or(0);
    name.get(..end).unwrap_or_default().into()
}

/// What `<data>` says of a constant whose name is known elsewhere.
fn read_data(
    tag: &Tag<'_>,
    limits: &Limits,
    opaque: &mut Option<Dtype>,
) -> Result<Constant, Error> {
    let keys = ["element_type", "shape", "offset", "size", "value"];
    let [element_type, shape, offset, size, value] = tag.attributes(keys)?;
    if value.is_some() {
        let error =
            Error::new(ErrorKind::Unsupported, "a constant has its bytes in the XML as text");
        return Err(error.hint("write the model again with OpenVINO"));
    }
    let element_type = element_type.ok_or_else(|| tag.lacks("element_type"))?;
    let shape = shape.ok_or_else(|| tag.lacks("shape"))?;
    let number = |key, text: Option<Cow<'_, str>>| {
        let text = text.ok_or_else(|| tag.lacks(key))?;
        types::number(&text).ok_or_else(|| {
            tag.invalid("an attribute is not a whole number of 64 bits")
                .with("key", key)
                .with("actual", start_of(&text))
        })
    };
    let (offset, size) = (number("offset", offset)?, number("size", size)?);
    if offset.checked_add(size).is_none() {
        let error = tag.invalid("where a constant ends does not fit 64 bits");
        return Err(error.with("key", "offset").with("actual", offset).with("bytes", size));
    }
    let dtype = match opaque {
        Some(last) if last.name() == element_type => last.clone(),
        _ => types::dtype(&element_type),
    };
    if dtype.is_opaque() {
        *opaque = Some(dtype.clone());
    }
    let shape = types::shape(&shape, limits)?;
    let length = types::length(&dtype, &shape, size)?;
    Ok(Constant { name: Box::default(), outer: None, dtype, shape, offset, size, length })
}
