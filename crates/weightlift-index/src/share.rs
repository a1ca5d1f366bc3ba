//! Ranges of files to storages: tensors that share bytes share a storage.

use crate::{
    Dtype, Encoding, Error, ErrorKind, Index, SourceId, Storage, StorageId, TensorInfo, model::id,
};

/// A tensor and where its bytes lie in a source.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Placed {
    pub(crate) name: Box<str>,
    pub(crate) source: SourceId,
    pub(crate) offset: u64,
    pub(crate) length: u64,
    pub(crate) dtype: Dtype,
    pub(crate) shape: Vec<u64>,
}

/// Adds tensors to `index`, in their order, and storages for them, in the order of their files.
///
/// Ranges that overlap become one storage, from the first byte of them to the last, so that no
/// byte is read twice and what is shared stays shared. Ranges that only touch stay apart, and
/// every tensor without bytes has an empty storage of its own. Time is that of sorting.
///
/// # Errors
///
/// - [`ErrorKind::OutOfRange`] for a range outside its source, naming `tensor`, `file`, `offset`,
///   `expected` and `actual`;
/// - [`ErrorKind::LimitExceeded`] if there are more storages than can be numbered.
pub(crate) fn add(index: &mut Index, placed: Vec<Placed>) -> Result<(), Error> {
    for tensor in &placed {
        check(index, tensor)?;
    }
    let mut order: Vec<usize> = (0..placed.len()).collect();
    // Linear where the tensors are in the order of their bytes already, as most are.
    order.sort_by_key(|number| {
        let tensor = &placed[*number];
        (tensor.source, tensor.offset, tensor.length)
    });
    let mut storage_of = vec![StorageId(0); placed.len()];
    // The storage that the next range may share.
    let mut open: Option<usize> = None;
    for number in order {
        let Placed { source, offset, length, .. } = placed[number];
        let last = open.and_then(|position| Some((position, index.storages.get_mut(position)?)));
        match last {
            Some((position, storage))
                if length > 0
                    && storage.source == source
                    && offset < storage.offset + storage.length =>
            {
                storage.length = storage.length.max(offset + length - storage.offset);
                storage_of[number] = id(position)?;
            }
            _ => {
                let position = index.storages.len();
                storage_of[number] = id(position)?;
                index.storages.push(Storage { source, offset, length, encoding: Encoding::Raw });
                if length > 0 {
                    open = Some(position);
                }
            }
        }
    }
    for (tensor, storage) in placed.into_iter().zip(storage_of) {
        let start = index.storages[storage.0 as usize].offset;
        index.tensors.push(TensorInfo {
            name: tensor.name,
            storage,
            offset: tensor.offset - start,
            length: tensor.length,
            dtype: tensor.dtype,
            shape: tensor.shape,
            strides: None,
        });
    }
    Ok(())
}

fn check(index: &Index, tensor: &Placed) -> Result<(), Error> {
    let source = index.sources.get(tensor.source.0 as usize);
    let (name, available) = source.map_or(("", 0), |source| (&*source.name, source.length));
    if tensor.offset <= available && tensor.length <= available - tensor.offset {
        return Ok(());
    }
    Err(Error::new(ErrorKind::OutOfRange, "a tensor lies outside its file")
        .with("tensor", &tensor.name)
        .with("file", name)
        .with("offset", tensor.offset)
        .with("expected", u128::from(tensor.offset) + u128::from(tensor.length))
        .with("actual", available)
        .hint("the file is cut short, or belongs to another model: fetch it again"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::SourceInfo;

    fn shared(ranges: &[(u32, u64, u64)]) -> Result<Index, Error> {
        let mut index = Index {
            sources: vec![SourceInfo::file("a", 100), SourceInfo::file("b", 100)],
            ..Index::default()
        };
        let place = |(number, &(source, offset, length)): (usize, &(u32, u64, u64))| Placed {
            name: number.to_string().into(),
            source: SourceId(source),
            offset,
            length,
            dtype: Dtype::from_name("U8"),
            shape: vec![length],
        };
        add(&mut index, ranges.iter().enumerate().map(place).collect())?;
        index.validate()?;
        Ok(index)
    }

    #[test]
    fn what_overlaps_shares_and_what_touches_does_not() {
        type Case<'a> = (&'a [(u32, u64, u64)], &'a [(u64, u64)], &'a [(u32, u64)]);
        // Ranges; storages by offset and length; tensors by storage and offset in it.
        let table: [Case<'_>; 6] = [
            (&[(0, 0, 10), (0, 10, 10)], &[(0, 10), (10, 10)], &[(0, 0), (1, 0)]),
            (&[(0, 4, 8), (0, 4, 8)], &[(4, 8)], &[(0, 0), (0, 0)]),
            (&[(0, 8, 8), (0, 4, 8), (0, 15, 5)], &[(4, 16)], &[(0, 4), (0, 0), (0, 11)]),
            (&[(0, 0, 50), (0, 10, 5), (0, 40, 20)], &[(0, 60)], &[(0, 0), (0, 10), (0, 40)]),
            (&[(1, 0, 4), (0, 0, 4)], &[(0, 4), (0, 4)], &[(1, 0), (0, 0)]),
            (
                &[(0, 5, 0), (0, 0, 10), (0, 100, 0), (0, 6, 2)],
                &[(0, 10), (5, 0), (100, 0)],
                &[(1, 0), (0, 0), (2, 0), (0, 6)],
            ),
        ];
        for (ranges, storages, tensors) in table {
            let index = shared(ranges).unwrap();
            let found: Vec<_> = index.storages.iter().map(|s| (s.offset, s.length)).collect();
            assert_eq!(found, storages, "{ranges:?}");
            let found: Vec<_> = index.tensors.iter().map(|t| (t.storage.0, t.offset)).collect();
            assert_eq!(found, tensors, "{ranges:?}");
        }
    }

    #[test]
    fn a_range_outside_its_file_is_refused() {
        for range in [(0, 99, 2), (0, 101, 0), (1, u64::MAX, 1), (1, 0, u64::MAX), (2, 0, 1)] {
            let error = shared(&[range]).unwrap_err();
            assert_eq!(error.kind(), ErrorKind::OutOfRange, "{range:?}");
            assert_eq!(error.get("tensor"), Some("0"));
        }
    }
}
