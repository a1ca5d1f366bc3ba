//! What a pickle describes, as far as tensors need it.

use super::globals::{Global, Type};

/// A part of the pickle that is text in UTF-8.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(super) struct Span {
    pub(super) start: u32,
    pub(super) length: u32,
}

/// A value. It is small and copied freely; what it holds, if anything, is a [`Node`].
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) enum Value {
    None,
    Bool(bool),
    Int(i64),
    Text(Span),
    Global(Global),
    Node(u32),
    /// Anything else. No tensor is made of it.
    Opaque,
}

/// What values can share.
#[derive(Debug)]
pub(super) enum Node {
    Tuple(Box<[Value]>),
    List(Vec<Value>),
    Dict(Vec<(Value, Value)>),
    /// As a dictionary; attributes may be set on it, which are passed over.
    OrderedDict(Vec<(Value, Value)>),
    Set,
    Storage(StorageValue),
    Tensor(Box<TensorValue>),
}

/// A storage as the pickle declares it.
#[derive(Debug, Clone, Copy)]
pub(super) struct StorageValue {
    /// Names its record.
    pub(super) key: Span,
    pub(super) element: &'static Type,
    /// In elements.
    pub(super) count: u64,
}

/// A tensor as the pickle declares it, not checked yet.
#[derive(Debug, Clone)]
pub(super) struct TensorValue {
    pub(super) storage: StorageValue,
    pub(super) element: &'static Type,
    /// In elements, as are the strides.
    pub(super) offset: Value,
    pub(super) shape: Value,
    pub(super) strides: Value,
}

/// A pickle's bytes and the nodes that were made from them.
pub(super) struct Heap<'a> {
    pub(super) bytes: &'a [u8],
    pub(super) nodes: Vec<Node>,
    /// What the pickle gives.
    pub(super) root: Value,
}

impl<'a> Heap<'a> {
    /// The text of a span.
    pub(super) fn text(&self, span: Span) -> &'a str {
        let start = span.start as usize;
        let bytes = self.bytes.get(start..start + span.length as usize).unwrap_or_default();
        // Spans are made of what has been checked, so this costs a second check and cannot fail.
        std::str::from_utf8(bytes).unwrap_or_default()
    }

    /// Lets go of all but tensors, their shapes and their strides: once names are found, what the
    /// tensors were made from is needed no more.
    pub(super) fn keep_tensors(&mut self) {
        let mut kept = vec![false; self.nodes.len()];
        for node in &self.nodes {
            if let Node::Tensor(tensor) = node {
                for value in [tensor.shape, tensor.strides] {
                    if let Value::Node(number) = value
                        && let Some(kept) = kept.get_mut(number as usize)
                    {
                        *kept = true;
                    }
                }
            }
        }
        for (node, kept) in self.nodes.iter_mut().zip(kept) {
            if !kept && !matches!(node, Node::Tensor(_)) {
                *node = Node::Set;
            }
        }
    }

    pub(super) fn node(&self, value: Value) -> Option<&Node> {
        match value {
            Value::Node(number) => self.nodes.get(number as usize),
            _ => None,
        }
    }

    pub(super) fn node_mut(&mut self, value: Value) -> Option<&mut Node> {
        match value {
            Value::Node(number) => self.nodes.get_mut(number as usize),
            _ => None,
        }
    }

    /// The elements of a tuple or a list.
    pub(super) fn sequence(&self, value: Value) -> Option<&[Value]> {
        match self.node(value)? {
            Node::Tuple(items) => Some(items),
            Node::List(items) => Some(items),
            _ => None,
        }
    }

    pub(super) fn storage(&self, value: Value) -> Option<StorageValue> {
        match self.node(value)? {
            Node::Storage(storage) => Some(*storage),
            _ => None,
        }
    }

    pub(super) fn tensor(&self, value: Value) -> Option<&TensorValue> {
        match self.node(value)? {
            Node::Tensor(tensor) => Some(tensor),
            _ => None,
        }
    }
}
