//! Names of tensors: the way to each through the containers of a checkpoint.
//!
//! Keys and positions are joined by dots: `model.layers.0.weight`. A tensor that is the whole
//! checkpoint is called `tensor`. Containers may be shared, and each way to a tensor is a name of
//! it; so that sharing within sharing stays small, what was walked before and holds no tensor is
//! passed over, the rest counts against a limit, and so do the bytes of all names.

use super::value::{Heap, Node, Value};
use crate::limits::{self, Limits};
use crate::{Error, ErrorKind};

/// The name of a tensor that is the whole checkpoint.
const ALONE: &str = "tensor";

/// The tensors of a checkpoint and their names, in the order of the pickle.
pub(super) fn find(heap: &Heap<'_>, limits: &Limits) -> Result<Vec<(Box<str>, Value)>, Error> {
    let mut walk = Walk {
        heap,
        limits,
        found: Vec::new(),
        states: vec![State::New; heap.nodes.len()],
        frames: Vec::new(),
        path: String::new(),
        text: 0,
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
    found: Vec<(Box<str>, Value)>,
    states: Vec<State>,
    frames: Vec<Frame>,
    path: String,
    /// Bytes of names so far.
    text: u64,
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
        self.count_text(self.path.len())?;
        self.found.push((self.path.as_str().into(), value));
        if let Some(frame) = self.frames.last_mut() {
            frame.full = true;
            self.path.truncate(frame.path);
        }
        Ok(())
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
