//! XML as it streams by: start tags and end tags; everything else is checked and passed over.

use std::borrow::Cow;
use std::io::{self, BufRead, Read};

use quick_xml::events::{BytesDecl, BytesStart, Event};
use quick_xml::{Reader, XmlVersion};

use crate::detect::{Kind, LOOK, sniff};
use crate::limits::{self, Limits};
use crate::{Bytes, Error, ErrorKind};

/// Smallest and largest read. A small model is one small read.
const SMALLEST_READ: u64 = 4 << 10;
const LARGEST_READ: u64 = 1 << 20;

/// The tokens of a file.
pub(super) struct Tokens<'a> {
    reader: Reader<Input<'a>>,
    /// The bytes of the current token.
    buffer: Vec<u8>,
    limits: &'a Limits,
    depth: u64,
    has_root: bool,
}

/// What comes next.
pub(super) enum Token<'b> {
    /// An element begins; one that is empty ends at once.
    Start(Tag<'b>),
    /// The element that was begun last ends.
    End,
    /// Text, a comment, or something else that says nothing about tensors.
    Passed,
    /// The root element has ended, and the file with it.
    EndOfFile,
}

/// A start tag.
pub(super) struct Tag<'b> {
    tag: BytesStart<'b>,
    offset: u64,
}

impl<'a> Tokens<'a> {
    /// At the start of a file, which has to look like XML in UTF-8.
    pub(super) fn new(bytes: &'a mut dyn Bytes, limits: &'a Limits) -> Result<Self, Error> {
        let mut first = [0; 64];
        let first = &mut first[..bytes.length().min(64) as usize];
        bytes.read_at(0, first)?;
        if first.starts_with(b"\xff\xfe") || first.starts_with(b"\xfe\xff") {
            return Err(unsupported_encoding("UTF-16"));
        }
        match sniff(first) {
            Kind::Xml => {}
            kind => {
                let error = unknown(kind.name());
                return Err(match kind.hint() {
                    Some(hint) => error.hint(hint),
                    None => error,
                });
            }
        }
        let mut reader = Reader::from_reader(Input::new(bytes, limits.text_bytes));
        reader.config_mut().expand_empty_elements = true;
        Ok(Self { reader, buffer: Vec::new(), limits, depth: 0, has_root: false })
    }

    /// The next token. After an error or the end of the file there is none.
    pub(super) fn next(&mut self) -> Result<Token<'_>, Error> {
        let Self { reader, buffer, limits, depth, has_root } = self;
        buffer.clear();
        let offset = reader.buffer_position();
        reader.get_mut().of_token = 0;
        let event = match reader.read_event_into(buffer) {
            Ok(event) => event,
            Err(error) => return Err(reader.get_mut().explain(error, offset)),
        };
        let length = reader.buffer_position().saturating_sub(offset);
        if length > limits.text_bytes {
            return Err(too_long(limits.text_bytes, length).with("offset", offset));
        }
        match event {
            Event::Start(tag) => {
                if *depth == 0 && std::mem::replace(has_root, true) {
                    return Err(invalid("a second element follows the root", offset));
                }
                if *depth >= limits.depth {
                    return Err(too_deep(limits.depth).with("offset", offset));
                }
                *depth += 1;
                Ok(Token::Start(Tag { tag, offset }))
            }
            Event::End(_) => {
                *depth = depth.saturating_sub(1);
                Ok(Token::End)
            }
            Event::Text(text) if *depth == 0 && text.trim_ascii().is_empty() => Ok(Token::Passed),
            Event::Text(_) | Event::CData(_) | Event::GeneralRef(_) if *depth == 0 => {
                Err(invalid("text stands outside the root element", offset))
            }
            Event::Decl(declaration) => {
                check_encoding(&declaration, offset)?;
                Ok(Token::Passed)
            }
            Event::DocType(text) => Err(document_type(&text, offset)),
            Event::Eof if *depth > 0 => Err(cut_short(offset)),
            Event::Eof if !*has_root => Err(unknown("XML without an element")
                .hint("the file is cut short, or not an OpenVINO model")),
            Event::Eof => Ok(Token::EndOfFile),
            _ => Ok(Token::Passed),
        }
    }
}

impl Tag<'_> {
    /// The name of the element.
    pub(super) fn name(&self) -> &str {
        self.tag.name().into_inner()
    }

    /// Where it begins, in bytes from the start of the file.
    pub(super) fn offset(&self) -> u64 {
        self.offset
    }

    /// The values of these attributes. All attributes of the tag are checked, the values of these
    /// are decoded.
    pub(super) fn attributes<const N: usize>(
        &self,
        wanted: [&str; N],
    ) -> Result<[Option<Cow<'_, str>>; N], Error> {
        let mut found = [const { None }; N];
        for attribute in self.tag.attributes() {
            let attribute = attribute.map_err(|error| malformed(&error, self.offset))?;
            let key = attribute.key.into_inner();
            let slot = wanted.iter().zip(&mut found).find(|(name, _)| **name == key);
            if let Some((_, slot)) = slot {
                // White space becomes spaces here, and `&amp;` and the like what they stand for.
                let value = attribute.normalized_value(XmlVersion::Implicit1_0);
                *slot =
                    Some(value.map_err(|error| malformed(&error, self.offset).with("key", key))?);
            }
        }
        Ok(found)
    }

    /// The error for what this tag says.
    pub(super) fn invalid(&self, message: &str) -> Error {
        invalid(message, self.offset)
    }

    /// The error for an attribute that this tag lacks.
    pub(super) fn lacks(&self, key: &str) -> Error {
        self.invalid(&format!("a <{}> lacks an attribute", self.name())).with("key", key)
    }
}

/// The file as `quick_xml` wants it, with a bound on what it may gather for one token.
struct Input<'a> {
    bytes: &'a mut dyn Bytes,
    window: Vec<u8>,
    /// How much of the window was consumed.
    used: usize,
    /// Where the window ends in the file.
    read_to: u64,
    /// How much to read next: doubled from read to read.
    step: u64,
    /// How much was consumed for the current token, and the most that may be.
    of_token: u64,
    limit: u64,
    /// The error that stopped the parser, which could not carry it itself.
    failure: Option<Error>,
}

impl<'a> Input<'a> {
    fn new(bytes: &'a mut dyn Bytes, limit: u64) -> Self {
        Self {
            bytes,
            window: Vec::new(),
            used: 0,
            read_to: 0,
            step: SMALLEST_READ,
            of_token: 0,
            limit,
            failure: None,
        }
    }

    fn refill(&mut self) -> Result<(), Error> {
        if self.of_token > self.limit {
            return Err(too_long(self.limit, format_args!("more than {}", self.limit)));
        }
        let length = self.bytes.length().saturating_sub(self.read_to).min(self.step);
        self.used = 0;
        self.window.resize(length as usize, 0);
        self.bytes.read_at(self.read_to, &mut self.window).inspect_err(|_| self.window.clear())?;
        self.read_to += length;
        self.step = (self.step * 2).min(LARGEST_READ);
        Ok(())
    }

    /// The error to report for one of the parser's at a token that begins at `offset`: ours where
    /// we have stopped the parser, or else one made from it.
    fn explain(&mut self, error: quick_xml::Error, offset: u64) -> Error {
        if let Some(failure) = self.failure.take() {
            return failure;
        }
        let at_end = self.used == self.window.len() && self.read_to == self.bytes.length();
        match error {
            quick_xml::Error::Syntax(_) if at_end => cut_short(self.read_to),
            error => malformed(&error, offset),
        }
    }
}

impl BufRead for Input<'_> {
    fn fill_buf(&mut self) -> io::Result<&[u8]> {
        if self.used >= self.window.len() {
            self.refill().map_err(|error| {
                self.failure = Some(error);
                io::Error::other("stopped")
            })?;
        }
        Ok(self.window.get(self.used..).unwrap_or_default())
    }

    fn consume(&mut self, count: usize) {
        self.used = self.used.saturating_add(count);
        self.of_token = self.of_token.saturating_add(count as u64);
    }
}

impl Read for Input<'_> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let count = self.fill_buf()?.read(buffer)?;
        self.consume(count);
        Ok(count)
    }
}

/// The declaration may name another encoding than UTF-8; what is read is checked to be UTF-8.
fn check_encoding(declaration: &BytesDecl<'_>, offset: u64) -> Result<(), Error> {
    let Some(encoding) = declaration.encoding() else {
        return Ok(());
    };
    let encoding = encoding.map_err(|error| malformed(&error, offset))?;
    let same = ["UTF-8", "UTF8", "US-ASCII", "ASCII"];
    if same.iter().any(|name| encoding.eq_ignore_ascii_case(name)) {
        return Ok(());
    }
    Err(unsupported_encoding(&encoding))
}

fn unsupported_encoding(encoding: &str) -> Error {
    Error::new(ErrorKind::Unsupported, "the XML is in another encoding than UTF-8")
        .with("found", start_of(encoding))
        .hint("write the model again with OpenVINO, or convert the file to UTF-8")
}

/// No writer of models declares a document type, and its entities are what makes XML grow without
/// bound or read other files.
fn document_type(text: &str, offset: u64) -> Error {
    let name = text.split(|c: char| !(c.is_alphanumeric() || "._-:".contains(c))).next();
    match name.unwrap_or_default() {
        "net" => Error::new(ErrorKind::Unsupported, "the XML has a document type declaration")
            .with("offset", offset)
            .hint("take the DOCTYPE out of the file, if you trust where it comes from"),
        root => other_root(root),
    }
}

/// The error for XML that is no model: its root element is of this name.
pub(super) fn other_root(name: &str) -> Error {
    match name {
        "compiled_blob" => unknown("a cached blob of OpenVINO")
            .hint("read it as one tensor of bytes, with the format raw"),
        name if name.eq_ignore_ascii_case("html") => unknown(Kind::Html.name()),
        name => unknown(format_args!("XML with the root element <{}>", start_of(name))).hint(LOOK),
    }
}

fn unknown(found: impl std::fmt::Display) -> Error {
    Error::new(ErrorKind::UnknownFormat, "this is not an OpenVINO model").with("found", found)
}

fn invalid(message: &str, offset: u64) -> Error {
    Error::new(ErrorKind::InvalidHeader, message).with("offset", offset)
}

/// The error for what is no XML, in the parser's words.
fn malformed(error: &dyn std::error::Error, offset: u64) -> Error {
    invalid("the file is not well-formed XML", offset).with("reason", start_of(&error.to_string()))
}

fn cut_short(length: u64) -> Error {
    Error::new(ErrorKind::Truncated, "the file ends inside an element")
        .with("actual", length)
        .hint("the file is cut short: fetch it again")
}

fn too_deep(limit: u64) -> Error {
    limits::exceeded(
        ErrorKind::LimitExceeded,
        "elements are nested deeper than the limit",
        "depth",
        limit,
        format_args!("more than {limit}"),
    )
    .hint(limits::raise("depth"))
}

fn too_long(limit: u64, actual: impl std::fmt::Display) -> Error {
    limits::exceeded(
        ErrorKind::LimitExceeded,
        "a tag, a text or a comment is longer than the limit",
        "text_bytes",
        limit,
        actual,
    )
    .hint(limits::raise("text_bytes"))
}

/// As much of a text as an error should quote.
pub(super) fn start_of(text: &str) -> String {
    text.chars().take(120).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn names(bytes: &mut dyn Bytes, limits: &Limits) -> Result<String, Error> {
        let mut tokens = Tokens::new(bytes, limits)?;
        let mut text = String::new();
        loop {
            match tokens.next()? {
                Token::Start(tag) => {
                    let [a] = tag.attributes(["a"])?;
                    text.push_str(&format!("{}{}(", tag.name(), a.unwrap_or_default()));
                }
                Token::End => text.push(')'),
                Token::Passed => {}
                Token::EndOfFile => return Ok(text),
            }
        }
    }

    #[test]
    fn gives_tags_and_nothing_else() {
        let text = "\u{feff}<?xml version='1.0'?>\n<!-- <x> --><net a = '1&amp;&#x32;\n3'><b/>t &x; \
                    <![CDATA[<c>]]><?pi <d> ?><b\tz=\"<>\"></b ></net>\n<!-- end -->\n";
        assert_eq!(names(&mut text.as_bytes(), &Limits::default()).unwrap(), "net1&2 3(b()b())");
    }

    #[test]
    fn the_windows_border_may_fall_anywhere() {
        let mut text = String::from("<net a='0'>");
        for i in 0..4_000 {
            text.push_str(&format!("<b a='{i}'/>\n"));
        }
        text.push_str("</net>");
        let expected = (0..4_000).map(|i| format!("b{i}()")).collect::<String>();
        let found = names(&mut text.as_bytes(), &Limits::default()).unwrap();
        assert_eq!(found, format!("net0({expected})"));
    }

    #[test]
    fn the_readers_own_error_comes_back() {
        struct Broken;
        impl Bytes for Broken {
            fn length(&self) -> u64 {
                1 << 40
            }
            fn read_at(&mut self, offset: u64, buffer: &mut [u8]) -> Result<(), Error> {
                if offset > 100_000 {
                    return Err(Error::new(ErrorKind::Io, "broken").with("offset", offset));
                }
                buffer.fill(b'<');
                let text = b"<net>        <a>";
                buffer
                    .chunks_mut(8)
                    .for_each(|part| part.copy_from_slice(&text[8..][..part.len()]));
                if offset == 0 {
                    buffer[..8].copy_from_slice(&text[..8]);
                }
                Ok(())
            }
        }
        let error = names(&mut Broken, &Limits::default().with_depth(u64::MAX)).unwrap_err();
        assert_eq!((error.kind(), error.message()), (ErrorKind::Io, "broken"));
    }

    // A file of any length that never ends its token takes no more memory than the limit.
    #[test]
    fn a_token_without_end_is_stopped_at_the_limit() {
        struct Endless(&'static [u8], u64);
        impl Bytes for Endless {
            fn length(&self) -> u64 {
                5 << 30
            }
            fn read_at(&mut self, offset: u64, buffer: &mut [u8]) -> Result<(), Error> {
                self.1 += buffer.len() as u64;
                buffer.fill(b'x');
                if offset == 0 {
                    buffer[..self.0.len()].copy_from_slice(self.0);
                }
                Ok(())
            }
        }
        let starts: [&[u8]; 9] = [
            b"<net ",
            b"<net a='",
            b"<net>",
            b"<net><!--",
            b"<net><![CDATA[",
            b"<net>&",
            b"<net><?",
            b"<!DOCTYPE ",
            b"<net></",
        ];
        for start in starts {
            let mut bytes = Endless(start, 0);
            let limits = Limits::default().with_text_bytes(3 << 20);
            let error = names(&mut bytes, &limits).unwrap_err();
            assert_eq!(error.kind(), ErrorKind::LimitExceeded, "{error}");
            assert_eq!(error.get("option"), Some("text_bytes"));
            assert!(bytes.1 < 6 << 20, "{} bytes were read", bytes.1);
        }
    }
}
