//! Tensors to their places: storages in the archive's records, views checked against them.

use std::collections::{HashMap, HashSet};

use super::Records;
use super::globals::Type;
use super::value::{Heap, Span, StorageValue, TensorValue, Value};
use crate::limits::{self, Limits};
use crate::{
    Bytes, Dtype, Encoding, Error, ErrorKind, Index, SourceId, Storage, StorageId, TensorInfo,
    model::id,
};

/// Adds the tensors to the index, and the storages that they use: each whole and once.
pub(super) fn add(
    index: &mut Index,
    bytes: &mut dyn Bytes,
    records: &Records,
    heap: &Heap<'_>,
    tensors: Vec<(Box<str>, Value)>,
    limits: &Limits,
) -> Result<(), Error> {
    refuse_repeated_names(&tensors)?;
    let mut places =
        Places { heap, by_span: HashMap::new(), by_key: HashMap::new(), all: Vec::new() };
    for (name, value) in tensors {
        let Some(tensor) = heap.tensor(value) else {
            continue;
        };
        let mut place = || {
            let storage = places.find(index, bytes, records, &tensor.storage)?;
            let placed = places.view(index, storage, tensor, limits)?;
            if records.swapped && placed.length > 0 {
                places.swap(index, storage, tensor.element.swap)?;
            }
            Ok(placed)
        };
        let placed = place().map_err(|error: Error| error.with("tensor", &name))?;
        index.tensors.push(TensorInfo { name, ..placed });
    }
    Ok(())
}

fn refuse_repeated_names(tensors: &[(Box<str>, Value)]) -> Result<(), Error> {
    let mut seen = HashSet::with_capacity(tensors.len());
    match tensors.iter().find(|(name, _)| !seen.insert(&**name)) {
        Some((name, _)) => Err(Error::new(
            ErrorKind::DuplicateTensor,
            "two tensors of the checkpoint have the same name",
        )
        .with("tensor", name)),
        None => Ok(()),
    }
}

/// A storage that is in the index.
struct Place {
    id: StorageId,
    declared: StorageValue,
    /// How the first tensor in it is swapped, once there is one.
    swap: Option<Option<u8>>,
}

struct Places<'a> {
    heap: &'a Heap<'a>,
    /// Writers show a key once and refer to it from then on; this makes that cheap.
    by_span: HashMap<Span, usize>,
    by_key: HashMap<&'a str, usize>,
    all: Vec<Place>,
}

impl Places<'_> {
    /// The position of a storage, which is put into the index if it is new.
    fn find(
        &mut self,
        index: &mut Index,
        bytes: &mut dyn Bytes,
        records: &Records,
        declared: &StorageValue,
    ) -> Result<usize, Error> {
        let key = self.heap.text(declared.key);
        let known = self.by_span.get(&declared.key).or_else(|| self.by_key.get(key)).copied();
        if let Some((position, place)) = known.and_then(|at| Some((at, self.all.get(at)?))) {
            let first = &place.declared;
            if first.element != declared.element || first.count != declared.count {
                return Err(Error::new(
                    ErrorKind::InvalidHeader,
                    "a storage is declared twice in different ways",
                )
                .with("storage", key));
            }
            self.by_span.insert(declared.key, position);
            return Ok(position);
        }
        let range = records.storage(bytes, key)?;
        let needed = declared.count.checked_mul(declared.element.size).ok_or_else(too_large)?;
        let there = range.end.saturating_sub(range.start);
        if needed > there {
            return Err(Error::new(
                ErrorKind::SizeMismatch,
                "a storage's record is shorter than the pickle says",
            )
            .with("storage", key)
            .with("expected", needed)
            .with("actual", there));
        }
        let position = self.all.len();
        let id = id(index.storages.len())?;
        index.storages.push(Storage {
            source: SourceId(0),
            offset: range.start,
            length: needed,
            encoding: Encoding::Raw,
        });
        self.all.push(Place { id, declared: *declared, swap: None });
        self.by_span.insert(declared.key, position);
        self.by_key.insert(key, position);
        Ok(position)
    }

    /// The tensor over its storage, without its name.
    fn view(
        &self,
        index: &Index,
        storage: usize,
        tensor: &TensorValue,
        limits: &Limits,
    ) -> Result<TensorInfo, Error> {
        let missing = || invalid("a tensor has no storage");
        let id = self.all.get(storage).ok_or_else(missing)?.id;
        let available = index.storages.get(id.0 as usize).ok_or_else(missing)?.length;
        let shape = self.numbers(tensor.shape, "shape", limits)?;
        let strides = self.numbers(tensor.strides, "strides", limits)?;
        let Value::Int(offset) = tensor.offset else {
            return Err(invalid("a tensor's offset is not a number"));
        };
        let offset = u64::try_from(offset)
            .map_err(|_| invalid("a tensor begins before its storage").with("actual", offset))?;
        let view = View { element: tensor.element, offset, shape, strides };
        view.place(id, available).map_err(|error| {
            error
                .with("dtype", tensor.element.dtype)
                .with("shape", format_args!("{:?}", view.shape))
                .with("strides", format_args!("{:?}", view.strides))
        })
    }

    /// Numbers of a tuple, none below zero.
    fn numbers(&self, value: Value, what: &str, limits: &Limits) -> Result<Vec<u64>, Error> {
        let numbers = self.heap.sequence(value);
        let numbers = numbers.ok_or_else(|| invalid(&format!("a tensor's {what} is no tuple")))?;
        if numbers.len() as u64 > limits.rank {
            return Err(limits::exceeded(
                ErrorKind::LimitExceeded,
                "a tensor has more dimensions than the limit",
                "rank",
                limits.rank,
                numbers.len(),
            )
            .hint(limits::raise("rank")));
        }
        let number = |number: &Value| match number {
            Value::Int(number) => u64::try_from(*number)
                .map_err(|_| invalid(&format!("a tensor's {what} has a number below zero"))),
            _ => Err(invalid(&format!("a tensor's {what} has something that is no number"))),
        };
        numbers.iter().map(number).collect()
    }

    /// Notes that a storage is of the other byte order, for a type that is reversed like this.
    fn swap(&mut self, index: &mut Index, storage: usize, width: Option<u8>) -> Result<(), Error> {
        let Some(place) = self.all.get_mut(storage) else {
            return Ok(());
        };
        match place.swap {
            Some(first) if first != width => Err(Error::new(
                ErrorKind::Unsupported,
                "a storage of the other byte order holds types of different sizes",
            )
            .with("storage", self.heap.text(place.declared.key))
            .hint("save the checkpoint on a little-endian machine")),
            Some(_) => Ok(()),
            None => {
                place.swap = Some(width);
                if let (Some(width), Some(storage)) =
                    (width, index.storages.get_mut(place.id.0 as usize))
                {
                    storage.encoding = Encoding::Swapped(width);
                    // Bytes that make up no whole element belong to none.
                    storage.length -= storage.length % u64::from(width);
                }
                Ok(())
            }
        }
    }
}

/// A tensor's elements in its storage; everything in elements.
struct View {
    element: &'static Type,
    offset: u64,
    shape: Vec<u64>,
    strides: Vec<u64>,
}

impl View {
    /// Checks that the view lies inside the storage, of so many bytes.
    fn place(&self, storage: StorageId, available: u64) -> Result<TensorInfo, Error> {
        let Self { element, shape, strides, .. } = self;
        if shape.len() != strides.len() {
            return Err(invalid("a tensor has not one stride for each dimension"));
        }
        let mut sizes = shape.iter().filter(|dim| **dim > 0);
        let elements = sizes.try_fold(1, |product: u64, dim| product.checked_mul(*dim));
        elements.ok_or_else(too_large)?;
        let (offset, length) = self.range(available)?;
        let mut info = TensorInfo {
            name: Box::default(),
            storage,
            offset,
            length,
            dtype: Dtype::from_name(element.dtype),
            shape: shape.clone(),
            strides: None,
        };
        if !self.is_dense() {
            if info.dtype.layout().is_none_or(|layout| layout.elements != 1) {
                return Err(Error::new(
                    ErrorKind::Unsupported,
                    "a tensor of this type is a view whose elements lie apart",
                )
                .hint("save `tensor.contiguous()`"));
            }
            let strides: Result<Vec<i64>, _> =
                strides.iter().map(|stride| i64::try_from(*stride)).collect();
            info.strides = Some(strides.map_err(|_| too_large())?);
        }
        if element.packed() > 1 {
            // Two elements in a byte, which PyTorch counts as one.
            let Some(last) = info.shape.last_mut() else {
                return Err(Error::new(
                    ErrorKind::Unsupported,
                    "a scalar is of a type that packs two numbers",
                ));
            };
            *last = last.checked_mul(element.packed()).ok_or_else(too_large)?;
        }
        Ok(info)
    }

    /// Where its bytes begin in the storage, and how many they are from the first to the last.
    fn range(&self, available: u64) -> Result<(u64, u64), Error> {
        let size = self.element.size;
        let start = self.offset.checked_mul(size);
        if self.is_empty() {
            // PyTorch lets a slice that took nothing begin anywhere.
            return Ok((start.unwrap_or(u64::MAX).min(available), 0));
        }
        let reach = self.shape.iter().zip(&self.strides).try_fold(0, |last: u64, (dim, stride)| {
            last.checked_add((dim - 1).checked_mul(*stride)?)
        });
        let length = reach.and_then(|last| last.checked_add(1)?.checked_mul(size));
        let (start, length) = start.zip(length).ok_or_else(too_large)?;
        let end = start.checked_add(length).ok_or_else(too_large)?;
        if end > available {
            return Err(Error::new(ErrorKind::OutOfRange, "a tensor reaches beyond its storage")
                .with("offset", start)
                .with("expected", end)
                .with("actual", available));
        }
        Ok((start, length))
    }

    fn is_empty(&self) -> bool {
        self.shape.contains(&0)
    }

    /// Whether elements lie one after the other, the last dimension innermost.
    fn is_dense(&self) -> bool {
        let mut expected: u64 = 1;
        self.is_empty()
            || self.shape.iter().zip(&self.strides).rev().all(|(dim, stride)| {
                let here = expected;
                // Cannot overflow: the product of all was computed before.
                expected = expected.saturating_mul(*dim);
                // Over a dimension of one nothing is ever stepped.
                *dim == 1 || *stride == here
            })
    }
}

fn too_large() -> Error {
    Error::new(ErrorKind::Overflow, "a tensor or a storage is too large to have a size")
}

fn invalid(message: &str) -> Error {
    Error::new(ErrorKind::InvalidHeader, message)
}
