//! Names of tensors: the way to each through the containers of a checkpoint.
//!
//! Keys and positions are joined by dots: `model.layers.0.weight`. A tensor that is the whole
//! checkpoint is called `tensor`. Containers may be shared, and each way to a tensor is a name of
//! it. So that sharing within sharing stays small, what was walked before and holds no tensor is
//! passed over, and names are bounded by the length of the pickle: see [`Room`].

use super::value::{Heap, Node, Value};
use crate::limits::{self, Limits};
use crate::{Error, ErrorKind};

/// The name of a tensor that is the whole checkpoint.
const ALONE: &str = "tensor";

/// What the pickle has room for.
///
/// A name in a container that is walked for the first time is paid for: the pickle refers to the
/// tensor there. Whatever stands in a container that is shown again costs nothing, and n showings
/// of n tensors are n * n names. torch.save writes more than 100 bytes for a tensor, so one name for
/// every [`BYTES_A_NAME`] lets a whole state dict stand under ten keys, as `model` and `ema` and
/// whatever else is the same object; and small files may share as they like, up to
/// [`FREE_NAMES`].
///
/// The same holds for text and for shapes: the key of a container is in the names of all that is in
/// it, and a tensor that is named twice has its shape twice. A name may have 32 times the bytes that
/// its tensor has in the pickle, and a tensor that has four bytes for each dimension, as the least
/// that numbers of shape and strides take, may stand under 16 names.
struct Room {
    /// Tensors in containers that were walked before.
    again: u64,
    /// Bytes of names and of the ways to them.
    text: u64,
    /// Dimensions of all tensors.
    dims: u64,
}

const BYTES_A_NAME: u64 = 8;
const FREE_NAMES: u64 = 1000;
const TEXT_A_BYTE: u64 = 32;
const FREE_TEXT: u64 = 64 << 10;
const DIMS_A_BYTE: u64 = 4;
const FREE_DIMS: u64 = 8 * FREE_NAMES;

impl Room {
    fn of(pickle: &[u8]) -> Self {
        let length = pickle.len() as u64;
        Self {
            again: FREE_NAMES + length / BYTES_A_NAME,
            text: FREE_TEXT + length.saturating_mul(TEXT_A_BYTE),
            dims: FREE_DIMS + length.saturating_mul(DIMS_A_BYTE),
        }
    }
}

/// The tensors of a checkpoint and their names, in the order of the pickle.
pub(super) fn find(heap: &Heap<'_>, limits: &Limits) -> Result<Vec<(Box<str>, Value)>, Error> {
    let mut walk = Walk {
        heap,
        limits,
        room: Room::of(heap.bytes),
        found: Vec::new(),
        states: vec![State::New; heap.nodes.len()],
        frames: Vec::new(),
        path: String::new(),
        text: 0,
        again: 0,
        dims: 0,
        repeated: 0,
    };
    if heap.tensor(heap.root).is_some() {
        return Ok(vec![(ALONE.into(), heap.root)]);
    }
    walk.run()?;
    Ok(walk.found)
}

/// What is known of a node.
#[derive(Clone, Copy, PartialEq)]
enum State {
    New,
    /// On the way to where the walk is.
    Open,
    /// Walked, with a tensor in it.
    Full,
    /// Walked, without a tensor.
    Empty,
}

/// A container that is being walked.
struct Frame {
    node: u32,
    next: usize,
    /// Length of the path to it.
    path: usize,
    /// Whether a key on the way to it is no part of a name.
    nameless: bool,
    /// Whether it was walked before.
    again: bool,
    /// Whether a tensor was found in it.
    full: bool,
}

struct Walk<'a> {
    heap: &'a Heap<'a>,
    limits: &'a Limits,
    room: Room,
    found: Vec<(Box<str>, Value)>,
    states: Vec<State>,
    frames: Vec<Frame>,
    path: String,
    /// Bytes of names so far.
    text: u64,
    /// Tensors in containers walked more than once.
    again: u64,
    /// Dimensions of tensors so far.
    dims: u64,
    /// Items of containers walked more than once.
    repeated: u64,
}

/// What a tensor's name says of its place in a container.
enum Step<'a> {
    Key(&'a str),
    Position(i64),
    Nameless,
}

impl Walk<'_> {
    fn run(&mut self) -> Result<(), Error> {
        self.enter(self.heap.root, false)?;
        while let Some(frame) = self.frames.last_mut() {
            let position = frame.next;
            frame.next += 1;
            let (node, again) = (frame.node, frame.again);
            let Some((step, value)) = item(self.heap, node, position) else {
                self.leave();
                continue;
            };
            if again {
                self.count_repeated()?;
            }
            let Value::Node(child) = value else {
                continue;
            };
            match self.heap.node(value) {
                Some(Node::Tensor(_)) => {
                    let nameless = self.push(&step)?;
                    self.emit(value, nameless)?;
                }
                Some(Node::Tuple(_) | Node::List(_) | Node::Dict(_) | Node::OrderedDict(_)) => {
                    if self.states.get(child as usize) == Some(&State::Empty) {
                        continue;
                    }
                    let nameless = self.push(&step)?;
                    self.enter(value, nameless)?;
                }
                _ => {}
            }
        }
        Ok(())
    }

    /// Begins to walk a value, if it is a container.
    fn enter(&mut self, value: Value, nameless: bool) -> Result<(), Error> {
        let Value::Node(node) = value else {
            return Ok(());
        };
        let Some(state) = self.states.get_mut(node as usize) else {
            return Ok(());
        };
        if *state == State::Open {
            return Err(Error::new(
                ErrorKind::InvalidHeader,
                "a container of the checkpoint holds itself",
            )
            .with("key", &self.path));
        }
        let again = std::mem::replace(state, State::Open) == State::Full;
        if self.frames.len() as u64 >= self.limits.depth {
            return Err(limits::exceeded(
                ErrorKind::LimitExceeded,
                "containers of the checkpoint are nested deeper than the limit",
                "depth",
                self.limits.depth,
                format_args!("more than {}", self.frames.len()),
            )
            .with("key", &self.path)
            .hint(limits::raise("depth")));
        }
        let path = self.path.len();
        self.frames.push(Frame { node, next: 0, path, nameless, again, full: false });
        Ok(())
    }

    fn leave(&mut self) {
        let Some(frame) = self.frames.pop() else {
            return;
        };
        if let Some(state) = self.states.get_mut(frame.node as usize) {
            *state = if frame.full { State::Full } else { State::Empty };
        }
        if let Some(outer) = self.frames.last_mut() {
            outer.full |= frame.full;
            self.path.truncate(outer.path);
        }
    }

    /// Adds a step to the path of the innermost container; true if the result is no name.
    fn push(&mut self, step: &Step<'_>) -> Result<bool, Error> {
        let Some(frame) = self.frames.last() else {
            return Ok(false);
        };
        self.path.truncate(frame.path);
        if self.frames.len() > 1 {
            self.path.push('.');
        }
        let nameless = frame.nameless || matches!(step, Step::Nameless);
        let number;
        let step: &str = match step {
            Step::Key(key) => key,
            Step::Position(position) => {
                number = position.to_string();
                &number
            }
            Step::Nameless => "?",
        };
        self.count_text(step.len())?;
        self.path.push_str(step);
        Ok(nameless)
    }

    fn emit(&mut self, value: Value, nameless: bool) -> Result<(), Error> {
        if nameless {
            return Err(Error::new(
                ErrorKind::Unsupported,
                "a tensor has a key that is neither text nor a whole number",
            )
            .with("tensor", &self.path));
        }
        let (count, limit) = (self.found.len() as u64, self.limits.tensors);
        if count >= limit {
            return Err(limits::exceeded(
                ErrorKind::LimitExceeded,
                "the checkpoint holds more tensors than the limit",
                "tensors",
                limit,
                format_args!("more than {count}"),
            )
            .hint(limits::raise("tensors")));
        }
        self.count_tensor(value)?;
        self.count_text(self.path.len())?;
        self.found.push((self.path.as_str().into(), value));
        if let Some(frame) = self.frames.last_mut() {
            frame.full = true;
            self.path.truncate(frame.path);
        }
        Ok(())
    }

    /// Counts a tensor against what the pickle has room for.
    fn count_tensor(&mut self, value: Value) -> Result<(), Error> {
        self.again += u64::from(self.frames.last().is_some_and(|frame| frame.again));
        let shape = self.heap.tensor(value).and_then(|tensor| self.heap.sequence(tensor.shape));
        self.dims += shape.map_or(0, |shape| shape.len() as u64);
        let message = if self.again > self.room.again {
            "the checkpoint shows the same containers with tensors too often for the length of its pickle"
        } else if self.dims > self.room.dims {
            "the checkpoint shows the same tensors too often for the length of its pickle"
        } else {
            return Ok(());
        };
        Err(self.no_room(message).with("count", self.found.len()))
    }

    /// The error of a checkpoint that makes much of little.
    fn no_room(&self, message: &str) -> Error {
        Error::new(ErrorKind::LimitExceeded, message)
            .with("tensor", self.path.chars().take(200).collect::<String>())
            .with("bytes", self.heap.bytes.len())
            .hint("save it again with each tensor once, under the name that it needs")
    }

    fn count_repeated(&mut self) -> Result<(), Error> {
        self.repeated += 1;
        if self.repeated <= self.limits.tensors {
            return Ok(());
        }
        Err(limits::exceeded(
            ErrorKind::LimitExceeded,
            "the checkpoint shows the same containers more often than the limit",
            "tensors",
            self.limits.tensors,
            format_args!("more than {}", self.limits.tensors),
        ))
    }

    fn count_text(&mut self, bytes: usize) -> Result<(), Error> {
        self.text = self.text.saturating_add(bytes as u64);
        if self.text > self.room.text {
            return Err(self.no_room(
                "the names of the tensors are too long for the length of the checkpoint's pickle",
            ));
        }
        if self.text <= self.limits.header_bytes {
            return Ok(());
        }
        Err(limits::exceeded(
            ErrorKind::LimitExceeded,
            "the names of the tensors are longer than the limit",
            "header_bytes",
            self.limits.header_bytes,
            format_args!("more than {}", self.limits.header_bytes),
        ))
    }
}

/// An item of a container.
fn item<'a>(heap: &'a Heap<'_>, node: u32, position: usize) -> Option<(Step<'a>, Value)> {
    match heap.nodes.get(node as usize)? {
        Node::Tuple(items) => Some((Step::Position(position as i64), *items.get(position)?)),
        Node::List(items) => Some((Step::Position(position as i64), *items.get(position)?)),
        Node::Dict(items) | Node::OrderedDict(items) => {
            let (key, value) = items.get(position)?;
            let step = match key {
                Value::Text(key) => Step::Key(heap.text(*key)),
                Value::Int(number) => Step::Position(*number),
                _ => Step::Nameless,
            };
            Some((step, *value))
        }
        Node::Set | Node::Storage(_) | Node::Tensor(_) => None,
    }
}
