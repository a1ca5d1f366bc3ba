//! Where data lie that the model has in other files.

use std::collections::HashMap;

use super::wire::{Message, Reader};
use crate::shards::check_name;
use crate::{Error, ErrorKind};

/// What a tensor's `external_data` says, as far as it was read; checked when it is used, because
/// it counts only if the tensor says so.
#[derive(Debug, Default)]
pub(super) struct Entries {
    location: Option<Box<str>>,
    offset: Option<Box<str>>,
    length: Option<Box<str>>,
    checksum: Option<Box<str>>,
    /// The first key that stands twice.
    twice: Option<&'static str>,
}

impl Entries {
    /// Adds an entry, a message with a key and a value. Keys that the format does not define are
    /// passed over. The checksum may stand twice, since no reader of tensors looks at it.
    pub(super) fn add(&mut self, reader: &mut Reader<'_>, entry: Message) -> Result<(), Error> {
        let mut entry = entry;
        let (mut key, mut value) = (Box::default(), None);
        while let Some(field) = reader.next(&mut entry)? {
            match field.number {
                1 => key = reader.text(&field)?,
                2 => value = Some(field),
                _ => {}
            }
        }
        let (key, place) = match &*key {
            "checksum" => ("", &mut self.checksum),
            "location" => ("location", &mut self.location),
            "offset" => ("offset", &mut self.offset),
            "length" => ("length", &mut self.length),
            _ => return Ok(()),
        };
        let value = match value {
            Some(field) => reader.text(&field)?,
            None => Box::default(),
        };
        if place.replace(value).is_some() && !key.is_empty() {
            self.twice.get_or_insert(key);
        }
        Ok(())
    }

    /// What is said of the file's bytes, if something is.
    pub(super) fn take_checksum(&mut self) -> Option<Box<str>> {
        self.checksum.take().filter(|checksum| !checksum.is_empty())
    }

    /// Location, offset and, where one above zero is given, length.
    pub(super) fn check(self) -> Result<(Box<str>, u64, Option<u64>), Error> {
        if let Some(key) = self.twice {
            return Err(Error::new(
                ErrorKind::DuplicateMetadata,
                "a key of a tensor's external data stands twice",
            )
            .with("key", key));
        }
        let offset = self.offset.map_or(Ok(0), |text| number("offset", &text))?;
        let length = self.length.map_or(Ok(0), |text| number("length", &text))?;
        let Some(location) = self.location else {
            return Err(Error::new(
                ErrorKind::InvalidHeader,
                "a tensor lies in another file, and which one is not said",
            )
            .with("key", "location"));
        };
        let mut location = &*location;
        while let Some(rest) = location.strip_prefix("./") {
            location = rest;
        }
        if location.starts_with("*/_ORT_") && location.contains("MEM_ADDR_/") {
            return Err(Error::new(
                ErrorKind::UnsafePath,
                "a tensor's data are named by an address in memory",
            )
            .with("path", location)
            .with("reason", "it is a mark of ONNX Runtime for the memory of one running process")
            .hint("save the model again with its weights in it, or in a file"));
        }
        check_name(location)?;
        Ok((location.into(), offset, (length > 0).then_some(length)))
    }
}

/// A number as the format has it: decimal digits and nothing else.
fn number(key: &'static str, text: &str) -> Result<u64, Error> {
    let digits = text.strip_prefix('-').unwrap_or(text);
    let fail = |kind, message: &str| {
        let shown: String = text.chars().take(64).collect();
        Err(Error::new(kind, message).with("key", key).with("actual", shown))
    };
    if digits.is_empty() || !digits.bytes().all(|byte| byte.is_ascii_digit()) {
        fail(ErrorKind::InvalidHeader, "where a tensor's external data lie is not a decimal number")
    } else if digits.len() < text.len() {
        fail(ErrorKind::OutOfRange, "where a tensor's external data lie is below zero")
    } else {
        match text.parse() {
            Ok(number) => Ok(number),
            Err(_) => fail(ErrorKind::Overflow, "where a tensor's external data lie is too far"),
        }
    }
}

/// The files that a model names, each once, in the order they are named in.
#[derive(Debug, Default)]
pub(super) struct Locations {
    names: Vec<Box<str>>,
    checksums: Vec<Vec<Box<str>>>,
    numbers: HashMap<Box<str>, u32>,
}

impl Locations {
    /// The number of a file.
    pub(super) fn number(&mut self, name: Box<str>) -> Result<u32, Error> {
        if let Some(number) = self.numbers.get(&name) {
            return Ok(*number);
        }
        // Two sources stand beside them: the model, and what was decoded of it.
        let number = u32::try_from(self.names.len()).ok().filter(|number| *number < u32::MAX - 2);
        let number = number.ok_or_else(|| {
            Error::new(ErrorKind::LimitExceeded, "the model names more files than can be numbered")
        })?;
        self.names.push(name.clone());
        self.checksums.push(Vec::new());
        self.numbers.insert(name, number);
        Ok(number)
    }

    /// Notes what is said of file number `number`. Two that differ are enough to tell that the
    /// model contradicts itself.
    pub(super) fn checksum(&mut self, number: u32, checksum: Box<str>) {
        let Some(known) = self.checksums.get_mut(number as usize) else { return };
        if known.len() < 2 && !known.contains(&checksum) {
            known.push(checksum);
        }
    }

    /// The names, and what is said of each file.
    pub(super) fn into_parts(self) -> (Vec<Box<str>>, Vec<Vec<Box<str>>>) {
        (self.names, self.checksums)
    }
}
