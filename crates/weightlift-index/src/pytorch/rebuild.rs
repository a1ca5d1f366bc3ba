//! Calls of allowed names, interpreted.

use super::globals::{Global, Rebuild, Type};
use super::value::{Heap, Node, TensorValue, Value};
use crate::ErrorKind;

/// What is wrong with a call; the place is added where it is known.
pub(super) struct Fault {
    pub(super) kind: ErrorKind,
    pub(super) message: String,
    pub(super) hint: Option<&'static str>,
}

impl Fault {
    pub(super) fn new(kind: ErrorKind, message: impl Into<String>) -> Self {
        Self { kind, message: message.into(), hint: None }
    }
}

/// What a call gives.
pub(super) enum Made {
    Value(Value),
    Node(Node),
}

/// Calls `global` with `arguments`.
pub(super) fn call(heap: &Heap<'_>, global: Global, arguments: &[Value]) -> Result<Made, Fault> {
    match global {
        Global::Rebuild(Rebuild::FromType) => {
            // The attributes that follow are no part of the weights.
            let (Some(Value::Global(Global::Rebuild(function))), Some(class), Some(inner)) =
                (arguments.first(), arguments.get(1), arguments.get(2))
            else {
                return Err(malformed());
            };
            let is_tensor = matches!(class, Value::Global(Global::Tensor | Global::Parameter));
            match heap.sequence(*inner) {
                Some(inner) if is_tensor => rebuild(heap, *function, inner),
                _ => Err(malformed()),
            }
        }
        Global::Rebuild(function) => rebuild(heap, function, arguments),
        Global::Parameter => rebuild(heap, Rebuild::Parameter, arguments),
        Global::OrderedDict if arguments.is_empty() => {
            Ok(Made::Node(Node::OrderedDict(Vec::new())))
        }
        Global::OrderedDict => Err(Fault::new(
            ErrorKind::UnsafePickle,
            "the pickle makes an OrderedDict of arguments, which checkpoints do not",
        )),
        Global::Size => match arguments {
            [shape] if heap.sequence(*shape).is_some() => Ok(Made::Value(*shape)),
            [] => Ok(Made::Node(Node::Tuple(Box::default()))),
            _ => Err(malformed()),
        },
        Global::Plain => Ok(Made::Value(Value::Opaque)),
        Global::Storage(_) | Global::Dtype(_) | Global::Tensor => {
            Err(Fault::new(ErrorKind::UnsafePickle, "the pickle calls what checkpoints only name"))
        }
    }
}

fn rebuild(heap: &Heap<'_>, function: Rebuild, arguments: &[Value]) -> Result<Made, Fault> {
    match function {
        Rebuild::Tensor => {
            let (Some(storage), 4..=7) = (storage(heap, arguments), arguments.len()) else {
                return Err(malformed());
            };
            tensor(heap, arguments, storage.element, arguments.get(6))
        }
        Rebuild::TensorOfType => match arguments.get(6) {
            Some(Value::Global(Global::Dtype(element))) if arguments.len() <= 8 => {
                tensor(heap, arguments, element, arguments.get(7))
            }
            _ => Err(malformed()),
        },
        Rebuild::Parameter => {
            let data = arguments.first().copied().filter(|data| heap.tensor(*data).is_some());
            // The whole tensor again, not a view of it: the same value does.
            data.map(Made::Value).ok_or_else(malformed)
        }
        Rebuild::FromType => Err(malformed()),
        Rebuild::Refused(what) => {
            Err(Fault::new(ErrorKind::Unsupported, format!("a tensor is {what}")))
        }
    }
}

fn storage(heap: &Heap<'_>, arguments: &[Value]) -> Option<super::value::StorageValue> {
    heap.storage(*arguments.first()?)
}

fn tensor(
    heap: &Heap<'_>,
    arguments: &[Value],
    element: &'static Type,
    metadata: Option<&Value>,
) -> Result<Made, Fault> {
    let (Some(storage), [_, offset, shape, strides, ..]) = (storage(heap, arguments), arguments)
    else {
        return Err(malformed());
    };
    if element.quantized {
        return Err(Fault::new(ErrorKind::Unsupported, "a tensor is quantized"));
    }
    check_view(heap, metadata)?;
    Ok(Made::Node(Node::Tensor(Box::new(TensorValue {
        storage,
        element,
        offset: *offset,
        shape: *shape,
        strides: *strides,
    }))))
}

/// Refuses tensors whose numbers are not those of their storage: the bits `conj` and `neg`.
fn check_view(heap: &Heap<'_>, metadata: Option<&Value>) -> Result<(), Fault> {
    let flags = match metadata.copied() {
        None | Some(Value::None) => return Ok(()),
        Some(metadata) => match heap.node(metadata) {
            // There are two; not more are looked at, however often a pickle shows them.
            Some(Node::Dict(flags)) if flags.len() <= 8 => flags,
            _ => return Err(malformed()),
        },
    };
    if flags.iter().all(|(_, set)| matches!(set, Value::Bool(false))) {
        return Ok(());
    }
    Err(Fault {
        hint: Some("save `tensor.resolve_conj().resolve_neg()`"),
        ..Fault::new(ErrorKind::Unsupported, "a tensor is a conjugated or negated view")
    })
}

fn malformed() -> Fault {
    Fault::new(ErrorKind::InvalidHeader, "the pickle makes a tensor in a way that PyTorch does not")
}
