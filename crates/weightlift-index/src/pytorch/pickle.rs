//! The pickle, interpreted: opcodes to values.
//!
//! The machine has a stack, marks and a memo, as Python's has. It has no way to run anything: a
//! name is looked up in a fixed list, and a call of one on the list makes a value here. Opcodes
//! are those of protocols 2 to 5 as far as checkpoints can hold them; those that reach for other
//! registries or for the class of an instance are refused.
//!
//! Memory is bounded by the length of the pickle, of which each byte makes at most one value, and
//! by [`Limits::list_values`], which counts containers, the stack and the memo each.

use super::globals::{self, Global};
use super::memo::Memo;
use super::rebuild::{self, Fault, Made};
use super::value::{Heap, Node, Span, StorageValue, Value};
use crate::limits::{self, Limits};
use crate::{Error, ErrorKind};

/// What to do about a pickle that asks for more than weights.
const HINT: &str = "save only the weights, `torch.save(model.state_dict(), ...)`, or convert the \
                    file to safetensors where it is trusted";

/// The value that a pickle describes.
pub(super) fn read<'a>(bytes: &'a [u8], limits: &Limits) -> Result<Heap<'a>, Error> {
    if u32::try_from(bytes.len()).is_err() {
        return Err(Error::new(ErrorKind::LimitExceeded, "the pickle is longer than 4 GiB")
            .with("actual", bytes.len()));
    }
    let mut machine = Machine {
        heap: Heap { bytes, nodes: Vec::new(), root: Value::None },
        at: 0,
        start: 0,
        stack: Vec::new(),
        marks: Vec::new(),
        memo: Memo::default(),
        empty: None,
        most: limits.list_values,
    };
    machine.run()?;
    Ok(machine.heap)
}

struct Machine<'a> {
    heap: Heap<'a>,
    /// The next byte.
    at: usize,
    /// The opcode that is being carried out.
    start: usize,
    stack: Vec<Value>,
    /// Where on the stack the marks are.
    marks: Vec<usize>,
    memo: Memo,
    /// The empty tuple, of which one is enough: nothing can be put into it.
    empty: Option<Value>,
    /// Most nodes, and most values on the stack and in the memo.
    most: u64,
}

impl<'a> Machine<'a> {
    fn run(&mut self) -> Result<(), Error> {
        match self.heap.bytes {
            [0x80, 2..=5, ..] => self.at = 2,
            [0x80, protocol, ..] => {
                return Err(self
                    .invalid("the pickle has a protocol that is not read")
                    .with("expected", "2 to 5")
                    .with("actual", protocol));
            }
            _ => return Err(self.invalid("the pickle does not begin as one")),
        }
        while !self.step()? {}
        let left = self.heap.bytes.len() - self.at;
        if left > 0 {
            return Err(Error::new(ErrorKind::TrailingBytes, "the pickle ends before its record")
                .with("record", "data.pkl")
                .with("bytes", left));
        }
        Ok(())
    }

    /// Carries out one opcode; true if it was the last.
    fn step(&mut self) -> Result<bool, Error> {
        self.start = self.at;
        let [opcode] = self.array()?;
        let value = match opcode {
            b'.' => {
                self.heap.root = self.pop()?;
                if !self.stack.is_empty() || !self.marks.is_empty() {
                    return Err(self.invalid("the pickle ends with values left over"));
                }
                return Ok(true);
            }
            // A frame only says that the next so many bytes belong together.
            0x95 => {
                let length = u64::from_le_bytes(self.array()?);
                if length > (self.heap.bytes.len() - self.at) as u64 {
                    return Err(self.ends());
                }
                return Ok(false);
            }
            b'(' => {
                self.bound(self.marks.len())?;
                self.marks.push(self.stack.len());
                return Ok(false);
            }
            b'0' => {
                self.pop()?;
                return Ok(false);
            }
            b'1' => {
                let mark = self.pop_mark()?;
                self.stack.truncate(mark);
                return Ok(false);
            }
            b'2' => self.top()?,
            b'N' => Value::None,
            0x88 => Value::Bool(true),
            0x89 => Value::Bool(false),
            b'J' => Value::Int(i32::from_le_bytes(self.array()?).into()),
            b'K' => Value::Int(self.array::<1>()?[0].into()),
            b'M' => Value::Int(u16::from_le_bytes(self.array()?).into()),
            0x8a => {
                let [length] = self.array()?;
                let bytes = self.take(length.into())?;
                int(bytes)
            }
            0x8b => {
                let length = u32::from_le_bytes(self.array()?);
                let bytes = self.take(length.into())?;
                int(bytes)
            }
            b'G' => {
                self.take(8)?;
                Value::Opaque
            }
            // Text, and the strings of Python 2, which are mostly text.
            b'X' | b'T' => {
                let length = u32::from_le_bytes(self.array()?);
                self.text(length.into())?
            }
            0x8c | b'U' => {
                let [length] = self.array()?;
                self.text(length.into())?
            }
            0x8d => {
                let length = u64::from_le_bytes(self.array()?);
                self.text(length)?
            }
            b'B' => {
                let length = u32::from_le_bytes(self.array()?);
                self.opaque(length.into())?
            }
            b'C' => {
                let [length] = self.array()?;
                self.opaque(length.into())?
            }
            0x8e | 0x96 => {
                let length = u64::from_le_bytes(self.array()?);
                self.opaque(length)?
            }
            b')' => match self.empty {
                Some(empty) => empty,
                None => {
                    let empty = self.add(Node::Tuple(Box::default()))?;
                    *self.empty.insert(empty)
                }
            },
            0x85 => self.tuple(1)?,
            0x86 => self.tuple(2)?,
            0x87 => self.tuple(3)?,
            b't' => {
                let mark = self.pop_mark()?;
                let items = self.stack.drain(mark..).collect();
                self.add(Node::Tuple(items))?
            }
            b']' => self.add(Node::List(Vec::new()))?,
            b'l' => {
                let mark = self.pop_mark()?;
                let items = self.stack.drain(mark..).collect();
                self.add(Node::List(items))?
            }
            b'}' => self.add(Node::Dict(Vec::new()))?,
            b'd' => {
                let mark = self.pop_mark()?;
                let items = self.pairs(mark)?;
                self.add(Node::Dict(items))?
            }
            0x8f => self.add(Node::Set)?,
            0x91 => {
                let mark = self.pop_mark()?;
                self.stack.truncate(mark);
                Value::Opaque
            }
            0x90 => {
                let mark = self.pop_mark()?;
                self.stack.truncate(mark);
                let set = self.top()?;
                if !matches!(self.heap.node(set), Some(Node::Set)) {
                    return Err(self.invalid("the pickle adds to a set that is none"));
                }
                return Ok(false);
            }
            b'a' => {
                let value = self.pop()?;
                self.list()?.push(value);
                return Ok(false);
            }
            b'e' => {
                let mark = self.pop_mark()?;
                let items: Vec<Value> = self.stack.drain(mark..).collect();
                self.list()?.extend(items);
                return Ok(false);
            }
            b's' => {
                let value = self.pop()?;
                let key = self.pop()?;
                self.dict()?.push((key, value));
                return Ok(false);
            }
            b'u' => {
                let mark = self.pop_mark()?;
                let items = self.pairs(mark)?;
                self.dict()?.extend(items);
                return Ok(false);
            }
            b'q' => {
                let [number] = self.array()?;
                return self.put(number.into());
            }
            b'r' => {
                let number = u32::from_le_bytes(self.array()?);
                return self.put(number);
            }
            0x94 => {
                let number = self.memo.length();
                return self.put(number);
            }
            b'h' => {
                let [number] = self.array()?;
                self.get(number.into())?
            }
            b'j' => {
                let number = u32::from_le_bytes(self.array()?);
                self.get(number)?
            }
            b'c' => {
                let module = self.line()?;
                let name = self.line()?;
                self.global(module, name)?
            }
            0x93 => {
                let (name, module) = (self.pop()?, self.pop()?);
                let (Value::Text(name), Value::Text(module)) = (name, module) else {
                    return Err(self.invalid("the pickle has a name that is not text"));
                };
                let (name, module) = (self.heap.text(name), self.heap.text(module));
                self.global(module, name)?
            }
            b'R' => self.call()?,
            b'b' => {
                self.pop()?;
                let object = self.top()?;
                // Attributes of a state dict, such as the versions of its modules; and the fields
                // of a NumPy data type.
                if matches!(self.heap.node(object), Some(Node::OrderedDict(_)))
                    || object == Value::Opaque
                {
                    return Ok(false);
                }
                return Err(self.unsafe_("the pickle sets the state of an object"));
            }
            b'Q' => self.storage()?,
            0x81 | 0x92 | b'i' | b'o' => {
                return Err(self.unsafe_("the pickle makes an instance of a class"));
            }
            0x82..=0x84 => {
                return Err(self.unsafe_("the pickle refers to Python's registry of extensions"));
            }
            _ => {
                let opcode = format!("{opcode:#04x}");
                return Err(self
                    .invalid("the pickle has an opcode that checkpoints do not")
                    .with("actual", opcode));
            }
        };
        self.bound(self.stack.len())?;
        self.stack.push(value);
        Ok(false)
    }

    /// Fails where there are as many as there may be.
    fn bound(&self, count: usize) -> Result<(), Error> {
        if (count as u64) < self.most {
            return Ok(());
        }
        Err(limits::exceeded(
            ErrorKind::LimitExceeded,
            "the pickle holds more values than the limit",
            "list_values",
            self.most,
            format_args!("more than {count}"),
        )
        .hint(limits::raise("list_values")))
    }

    /// A new node.
    fn add(&mut self, node: Node) -> Result<Value, Error> {
        self.bound(self.heap.nodes.len())?;
        // Fits: there are fewer nodes than bytes of the pickle.
        let number = self.heap.nodes.len() as u32;
        self.heap.nodes.push(node);
        Ok(Value::Node(number))
    }

    // Bytes.

    fn take(&mut self, count: u64) -> Result<&'a [u8], Error> {
        let rest = self.heap.bytes.get(self.at..).unwrap_or_default();
        let taken = usize::try_from(count).ok().and_then(|count| rest.get(..count));
        let taken = taken.ok_or_else(|| self.ends())?;
        self.at += taken.len();
        Ok(taken)
    }

    fn array<const N: usize>(&mut self) -> Result<[u8; N], Error> {
        let mut array = [0; N];
        array.copy_from_slice(self.take(N as u64)?);
        Ok(array)
    }

    fn text(&mut self, length: u64) -> Result<Value, Error> {
        let start = self.at as u32;
        let bytes = self.take(length)?;
        // Python's strings can hold what UTF-8 cannot; as a name that is of no use.
        Ok(match std::str::from_utf8(bytes) {
            Ok(_) => Value::Text(Span { start, length: bytes.len() as u32 }),
            Err(_) => Value::Opaque,
        })
    }

    fn opaque(&mut self, length: u64) -> Result<Value, Error> {
        self.take(length)?;
        Ok(Value::Opaque)
    }

    fn line(&mut self) -> Result<&'a str, Error> {
        let rest = self.heap.bytes.get(self.at..).unwrap_or_default();
        let length = rest.iter().position(|byte| *byte == b'\n').ok_or_else(|| self.ends())?;
        let line = self.take(length as u64)?;
        self.at += 1;
        std::str::from_utf8(line)
            .map_err(|_| self.invalid("the pickle has a name that is not text"))
    }

    // The stack.

    /// Values below the last mark are out of reach.
    fn reachable(&self) -> usize {
        self.stack.len() - self.marks.last().copied().unwrap_or_default().min(self.stack.len())
    }

    fn pop(&mut self) -> Result<Value, Error> {
        let value = if self.reachable() > 0 { self.stack.pop() } else { None };
        value.ok_or_else(|| self.underflow())
    }

    fn top(&self) -> Result<Value, Error> {
        let value = if self.reachable() > 0 { self.stack.last() } else { None };
        value.copied().ok_or_else(|| self.underflow())
    }

    fn pop_mark(&mut self) -> Result<usize, Error> {
        self.marks.pop().ok_or_else(|| self.underflow())
    }

    fn tuple(&mut self, count: usize) -> Result<Value, Error> {
        if self.reachable() < count {
            return Err(self.underflow());
        }
        let items = self.stack.drain(self.stack.len() - count..).collect();
        self.add(Node::Tuple(items))
    }

    /// Keys and values above a mark.
    fn pairs(&mut self, mark: usize) -> Result<Vec<(Value, Value)>, Error> {
        if !(self.stack.len() - mark).is_multiple_of(2) {
            return Err(self.invalid("the pickle has a key without a value"));
        }
        let (pairs, _) = self.stack.get(mark..).unwrap_or_default().as_chunks();
        let pairs = pairs.iter().map(|[key, value]| (*key, *value)).collect();
        self.stack.truncate(mark);
        Ok(pairs)
    }

    fn list(&mut self) -> Result<&mut Vec<Value>, Error> {
        let top = self.top()?;
        if !matches!(self.heap.node(top), Some(Node::List(_))) {
            return Err(self.invalid("the pickle appends to what is no list"));
        }
        match self.heap.node_mut(top) {
            Some(Node::List(items)) => Ok(items),
            _ => Err(unreachable_node()),
        }
    }

    fn dict(&mut self) -> Result<&mut Vec<(Value, Value)>, Error> {
        let top = self.top()?;
        if !self.is_dict(top) {
            return Err(self.invalid("the pickle sets an item of what is no dictionary"));
        }
        match self.heap.node_mut(top) {
            Some(Node::Dict(items) | Node::OrderedDict(items)) => Ok(items),
            _ => Err(unreachable_node()),
        }
    }

    fn is_dict(&self, value: Value) -> bool {
        matches!(self.heap.node(value), Some(Node::Dict(_) | Node::OrderedDict(_)))
    }

    // The memo.

    fn put(&mut self, number: u32) -> Result<bool, Error> {
        let value = self.top()?;
        self.bound(self.memo.length() as usize)?;
        self.memo.put(number, value);
        Ok(false)
    }

    fn get(&self, number: u32) -> Result<Value, Error> {
        self.memo.get(number).ok_or_else(|| {
            self.invalid("the pickle refers to a value that it does not have")
                .with("actual", number)
        })
    }

    // Names, calls, storages.

    fn global(&self, module: &str, name: &str) -> Result<Value, Error> {
        globals::find(module, name).map(Value::Global).ok_or_else(|| {
            // The start is enough to see what it is.
            let full: String = format!("{module}.{name}").chars().take(200).collect();
            self.unsafe_("the pickle names what weights do not need").with("found", full)
        })
    }

    fn call(&mut self) -> Result<Value, Error> {
        let arguments = self.pop()?;
        let Value::Global(global) = self.pop()? else {
            return Err(self.unsafe_("the pickle calls what is no function"));
        };
        let Some(Node::Tuple(arguments)) = self.heap.node(arguments) else {
            return Err(self.invalid("the pickle calls a function without a tuple of arguments"));
        };
        match rebuild::call(&self.heap, global, arguments) {
            Ok(Made::Value(value)) => Ok(value),
            Ok(Made::Node(node)) => self.add(node),
            Err(fault) => Err(self.fault(fault)),
        }
    }

    /// The storage that a persistent id names: `("storage", class, key, device, elements)`.
    fn storage(&mut self) -> Result<Value, Error> {
        let id = self.pop()?;
        let storage = self.heap.sequence(id).and_then(|parts| {
            let [Value::Text(word), Value::Global(class), Value::Text(key), _, Value::Int(count)] =
                parts
            else {
                return None;
            };
            let Global::Storage(element) = class else {
                return None;
            };
            let is_storage = word.length == 7 && self.heap.text(*word) == "storage";
            let count = u64::try_from(*count).ok().filter(|_| is_storage)?;
            Some(StorageValue { key: *key, element, count })
        });
        let storage = storage.ok_or_else(|| {
            self.invalid("the pickle refers to something outside it that is no storage")
        })?;
        self.add(Node::Storage(storage))
    }

    // Errors.

    /// Adds where in the record, and the key of the state dict as far as it is known.
    fn here(&self, error: Error) -> Error {
        let error = error.with("record", "data.pkl").with("offset", self.start);
        match self.key() {
            Some(key) => error.with("key", key),
            None => error,
        }
    }

    fn invalid(&self, message: &str) -> Error {
        self.here(Error::new(ErrorKind::InvalidHeader, message))
    }

    fn unsafe_(&self, message: &str) -> Error {
        self.here(Error::new(ErrorKind::UnsafePickle, message)).hint(HINT)
    }

    fn fault(&self, fault: Fault) -> Error {
        let error = self.here(Error::new(fault.kind, fault.message));
        match (fault.hint, fault.kind) {
            (Some(hint), _) => error.hint(hint),
            (None, ErrorKind::UnsafePickle) => error.hint(HINT),
            (None, _) => error,
        }
    }

    fn ends(&self) -> Error {
        Error::new(ErrorKind::Truncated, "the pickle ends in the middle")
            .with("record", "data.pkl")
            .with("offset", self.start)
            .with("actual", self.heap.bytes.len())
    }

    fn underflow(&self) -> Error {
        self.invalid("the pickle takes a value from where there is none")
    }

    /// The keys under which the value that is being made will stand, as far as the stack tells:
    /// the last key of each dictionary that is being filled.
    fn key(&self) -> Option<String> {
        const MOST: usize = 16;
        let mut keys: Vec<&str> = Vec::new();
        let mut start = 0;
        for end in self.marks.iter().copied().chain([self.stack.len()]) {
            // Keys and values stand after a mark that follows the dictionary; those of the first
            // one may follow it without a mark.
            let first = start.max(1);
            start = end;
            let dict = self.stack.get(first - 1).is_some_and(|value| self.is_dict(*value));
            let items = self.stack.get(first..end).filter(|_| dict).unwrap_or_default();
            let is_text = |at: &usize| matches!(items.get(*at), Some(Value::Text(_)));
            let mut at = (0..items.len()).step_by(2).rev().find(is_text);
            let mut inner = Vec::new();
            while let Some(position) = at
                && let Some(Value::Text(key)) = items.get(position)
                && keys.len() + inner.len() < MOST
            {
                inner.push(self.heap.text(*key));
                // A dictionary of one item has no mark of its own: it is empty, and its key follows.
                at = position.checked_sub(2).filter(|outer| {
                    let dict = items.get(outer + 1).and_then(|value| self.heap.node(*value));
                    matches!(dict, Some(Node::Dict(dict) | Node::OrderedDict(dict)) if dict.is_empty())
                });
            }
            keys.extend(inner.into_iter().rev());
        }
        (!keys.is_empty()).then(|| keys.join("."))
    }
}

/// Both callers have just looked at what it is.
fn unreachable_node() -> Error {
    Error::new(ErrorKind::InvalidHeader, "the pickle contradicts itself")
}

fn int(bytes: &[u8]) -> Value {
    let Some(last) = bytes.last() else {
        return Value::Int(0);
    };
    let fill = if last & 0x80 == 0 { 0 } else { 0xff };
    let mut wide = [fill; 8];
    match wide.get_mut(..bytes.len()) {
        Some(low) => {
            low.copy_from_slice(bytes);
            Value::Int(i64::from_le_bytes(wide))
        }
        None => Value::Opaque,
    }
}
