//! A name of its own for each tensor.

use std::collections::{HashMap, HashSet};

use crate::{Error, ErrorKind};

/// A place in the model that has tensors below it: a node, an attribute with a graph, a function.
#[derive(Debug, Default)]
pub(super) struct Scope {
    /// The place it is in; the main graph is its own.
    pub(super) parent: usize,
    /// What it is called there; the main graph has no name.
    pub(super) name: Box<str>,
}

/// What a tensor's name is made from.
#[derive(Debug, Default)]
pub(super) struct Naming {
    /// The name that it asks for; may be empty.
    pub(super) wanted: Box<str>,
    /// What it is called where it stands, where that is not the wanted name.
    pub(super) label: Box<str>,
    /// Where it stands.
    pub(super) scope: usize,
    /// Whether it is an initializer of the main graph, whose name is a value's name and stays.
    pub(super) main: bool,
    /// Whether these are the indices, without a name, of the sparse tensor before.
    pub(super) indices: bool,
}

/// Between the parts of a path, such as `If_3::then_branch::W`.
const SEPARATOR: &str = "::";

/// A path that is longer keeps so much of its end, after `…`: one long name of a graph would
/// otherwise be repeated for each of a million tensors in it.
const LONGEST_PATH: usize = 256;

/// The name of each tensor, in their order.
///
/// Initializers of the main graph keep their names. Then each other tensor in turn gets the name
/// that it wants or, if that is empty or taken, its path, or, if that is taken too, its path, `#`
/// and the first number from 2 that makes it a new name.
///
/// # Errors
///
/// [`ErrorKind::DuplicateTensor`] if two initializers of the main graph have one name.
pub(super) fn assign(naming: Vec<Naming>, scopes: &[Scope]) -> Result<Vec<Box<str>>, Error> {
    let mut names = Names { taken: HashSet::with_capacity(naming.len()), ..Names::default() };
    for tensor in naming.iter().filter(|tensor| tensor.main && !tensor.wanted.is_empty()) {
        if !names.taken.insert(tensor.wanted.clone()) {
            return Err(Error::new(
                ErrorKind::DuplicateTensor,
                "two initializers of the graph have one name",
            )
            .with("tensor", &tensor.wanted));
        }
    }
    let mut assigned: Vec<Box<str>> = Vec::with_capacity(naming.len());
    for tensor in naming {
        let name = match assigned.last() {
            _ if tensor.main && !tensor.wanted.is_empty() => tensor.wanted,
            Some(values) if tensor.indices => names.unique(format!("{values}.indices").into()),
            _ if !tensor.wanted.is_empty() && names.take(&tensor.wanted) => tensor.wanted,
            _ => names.unique(path(&tensor, scopes)),
        };
        assigned.push(name);
    }
    Ok(assigned)
}

#[derive(Default)]
struct Names {
    taken: HashSet<Box<str>>,
    /// The number to try next for a path that was taken, so that a thousand of one path do not
    /// try a thousand numbers each.
    next: HashMap<Box<str>, u64>,
}

impl Names {
    fn take(&mut self, name: &str) -> bool {
        !self.taken.contains(name) && self.taken.insert(name.into())
    }

    fn unique(&mut self, name: Box<str>) -> Box<str> {
        if self.take(&name) {
            return name;
        }
        let mut number = self.next.get(&name).copied().unwrap_or(2);
        loop {
            let numbered = format!("{name}#{number}");
            number += 1;
            if self.take(&numbered) {
                self.next.insert(name, number);
                return numbered.into();
            }
        }
    }
}

fn path(tensor: &Naming, scopes: &[Scope]) -> Box<str> {
    let label = if tensor.label.is_empty() { &tensor.wanted } else { &tensor.label };
    let mut parts = vec![&**label];
    let mut length = label.len();
    let mut at = tensor.scope;
    // The main graph is number 0, and no scope stands before the one that it is in.
    while let Some(scope) = scopes.get(at).filter(|_| at > 0 && length <= LONGEST_PATH) {
        parts.push(&scope.name);
        length += scope.name.len() + SEPARATOR.len();
        at = scope.parent.min(at - 1);
    }
    parts.reverse();
    let path = parts.join(SEPARATOR);
    if path.len() <= LONGEST_PATH {
        return path.into();
    }
    let mut cut = path.len() - LONGEST_PATH;
    while !path.is_char_boundary(cut) {
        cut += 1;
    }
    format!("…{}", &path[cut..]).into()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn scope(parent: usize, name: &str) -> Scope {
        Scope { parent, name: name.into() }
    }

    fn tensor(wanted: &str, label: &str, scope: usize) -> Naming {
        let main = scope == 0 && label.is_empty();
        Naming { wanted: wanted.into(), label: label.into(), scope, main, indices: false }
    }

    fn names(tensors: Vec<Naming>, scopes: &[Scope]) -> Vec<String> {
        assign(tensors, scopes).unwrap().into_iter().map(String::from).collect()
    }

    #[test]
    fn the_main_graph_comes_first_then_wishes_then_paths_then_numbers() {
        let scopes = [scope(0, ""), scope(0, "If_3"), scope(1, "then_branch"), scope(0, "If_3")];
        let indices = Naming { indices: true, ..tensor("", "", 2) };
        let tensors = vec![
            tensor("W", "", 2),
            tensor("V", "", 2),
            tensor("V", "", 2),
            tensor("V", "", 2),
            tensor("", "value", 1),
            tensor("", "value", 3),
            tensor("W", "", 0),
            tensor("If_3::value#2", "", 0),
            tensor("s", "", 2),
            indices,
        ];
        let expected = [
            "If_3::then_branch::W",
            "V",
            "If_3::then_branch::V",
            "If_3::then_branch::V#2",
            "If_3::value",
            "If_3::value#3",
            "W",
            "If_3::value#2",
            "s",
            "s.indices",
        ];
        assert_eq!(names(tensors, &scopes), expected);
    }

    #[test]
    fn a_long_path_keeps_its_end() {
        let scopes = [scope(0, ""), scope(0, &"ä".repeat(1000)), scope(1, "body")];
        let tensors = (0..3).map(|_| tensor("", "value", 2)).collect();
        let names = names(tensors, &scopes);
        assert!(names[0].starts_with("…ä") && names[0].ends_with("ä::body::value"));
        assert!(names[0].len() <= LONGEST_PATH + "…".len());
        assert_eq!(names[2], format!("{}#3", names[0]));
    }

    #[test]
    fn many_of_one_path_cost_no_more_than_many_of_many() {
        let tensors = (0..200_000).map(|_| tensor("", "value", 0)).collect();
        let names = names(tensors, &[scope(0, "")]);
        assert_eq!(names[199_999], "value#200000");
    }
}
