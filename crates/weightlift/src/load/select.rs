//! Which tensors, and so which storages.

use std::collections::HashMap;

use globset::GlobBuilder;
use weightlift_index::{Index, StorageId, TensorInfo};

use crate::error::{Error, ErrorKind, Result};
use crate::plan::Plan;
use crate::source::Model;

/// Numbers of the index's tensors that match one of `patterns`; all without patterns.
///
/// An error of kind `NotFound` for a pattern that matches none, `InvalidOption` for one that is
/// no pattern.
pub(crate) fn select(model: &Model, patterns: &[String]) -> Result<Vec<usize>> {
    let tensors = &model.index().tensors;
    if patterns.is_empty() {
        return Ok((0..tensors.len()).collect());
    }
    let mut selected = vec![false; tensors.len()];
    // Many names, as a program gives them, would take a look at every tensor each.
    let by_name: HashMap<&str, usize> = match patterns.len() {
        0..=4 => HashMap::new(),
        _ => (0..tensors.len()).map(|number| (&*tensors[number].name, number)).collect(),
    };
    for pattern in patterns {
        if !pattern.contains(['*', '?', '[', ']', '{', '}', '\\'])
            && let Some(number) = by_name.get(&**pattern)
        {
            selected[*number] = true;
            continue;
        }
        let mut any = false;
        // A name may hold characters that mean something in a pattern: to the letter first.
        let matcher = GlobBuilder::new(pattern).build().map(|glob| glob.compile_matcher());
        for (tensor, selected) in tensors.iter().zip(&mut selected) {
            let matches = *tensor.name == **pattern
                || matcher.as_ref().is_ok_and(|matcher| matcher.is_match(&*tensor.name));
            any |= matches;
            *selected |= matches;
        }
        if !any {
            return Err(match matcher {
                Ok(_) => not_found(model.index(), pattern),
                Err(error) => Error::new(ErrorKind::InvalidOption, "this is no pattern of names")
                    .with("option", "tensors")
                    .with("value", pattern)
                    .with("reason", error),
            });
        }
    }
    Ok((0..tensors.len()).filter(|number| selected[*number]).collect())
}

fn not_found(index: &Index, pattern: &str) -> Error {
    let kind = ErrorKind::Format(weightlift_index::ErrorKind::NotFound);
    let error = Error::new(kind, "no tensor of the model has such a name").with("tensor", pattern);
    let near = index.near_names(pattern, 3);
    let error = if near.is_empty() { error } else { error.with("near", near.join(", ")) };
    error.hint("`weightlift inspect` lists all names")
}

/// The storages of these tensors; a tied one stands once per tensor.
pub(crate) fn storages_of(model: &Model, tensors: &[usize]) -> Vec<StorageId> {
    tensors.iter().map(|number| model.index().tensors[*number].storage).collect()
}

/// Bytes of the storages of these tensors, shared ones once.
pub(crate) fn bytes_of(model: &Model, tensors: &[usize]) -> u64 {
    let mut storages = storages_of(model, tensors);
    storages.sort_unstable();
    storages.dedup();
    let lengths = storages.iter().map(|id| model.index().storages[id.0 as usize].length);
    // Storages of a foreign index may overlap: more bytes than a file can have is still no panic.
    lengths.fold(0, u64::saturating_add)
}

/// The source that most of these tensors' bytes are in; `None` where they have none. Storages that
/// tensors share count once for each: that it is the largest need not be exact.
pub(crate) fn largest_source(model: &Model, tensors: &[usize]) -> Option<usize> {
    let mut bytes = vec![0_u64; model.sources().len()];
    for id in storages_of(model, tensors) {
        let storage = &model.index().storages[id.0 as usize];
        let sum = &mut bytes[storage.source.0 as usize];
        *sum = sum.saturating_add(storage.length);
    }
    let largest = bytes.iter().enumerate().max_by_key(|(_, bytes)| **bytes)?;
    (*largest.1 > 0).then_some(largest.0)
}

/// For every planned storage, by its number in the plan, the tensors asked for that lie in it.
pub(super) fn tensors_by_storage<'m>(
    index: &'m Index,
    tensors: &[usize],
    plan: &Plan,
) -> Vec<Vec<&'m TensorInfo>> {
    let numbers = plan_numbers(index, plan);
    let mut by_storage = vec![Vec::new(); plan.storages.len()];
    for tensor in tensors.iter().map(|number| &index.tensors[*number]) {
        by_storage[numbers[tensor.storage.0 as usize] as usize].push(tensor);
    }
    by_storage
}

/// The number in the plan of every storage of the index; `u32::MAX` where it is not planned.
pub(super) fn plan_numbers(index: &Index, plan: &Plan) -> Vec<u32> {
    let mut numbers = vec![u32::MAX; index.storages.len()];
    for (number, storage) in (0..).zip(&plan.storages) {
        numbers[storage.id.0 as usize] = number;
    }
    numbers
}
