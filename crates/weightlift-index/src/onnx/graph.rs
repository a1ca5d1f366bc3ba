//! The walk through a model: its graphs, nodes, attributes and functions, for their tensors.

use std::collections::BTreeMap;
use std::collections::btree_map::Entry;
use std::ops::Range;

use super::external::Locations;
use super::names::{Naming, Scope};
use super::tensor::{Proto, Tensor};
use super::wire::{Field, Message, Reader, malformed};
use crate::limits;
use crate::{Error, ErrorKind, Value};

/// What the walk finds.
pub(super) struct Walk<'a> {
    reader: Reader<'a>,
    /// The main graph first.
    pub(super) scopes: Vec<Scope>,
    /// What the names of the tensors are made from, as many as there are tensors.
    pub(super) naming: Vec<Naming>,
    pub(super) tensors: Vec<Tensor>,
    pub(super) locations: Locations,
    pub(super) decoded: Vec<u8>,
    pub(super) metadata: BTreeMap<String, Value>,
    operator_sets: Vec<Value>,
}

/// The main graph.
const MAIN: usize = 0;

impl<'a> Walk<'a> {
    pub(super) fn new(reader: Reader<'a>) -> Self {
        Self {
            reader,
            scopes: vec![Scope::default()],
            naming: Vec::new(),
            tensors: Vec::new(),
            locations: Locations::default(),
            decoded: Vec::new(),
            metadata: BTreeMap::new(),
            operator_sets: Vec::new(),
        }
    }

    /// Walks through the whole file.
    pub(super) fn model(&mut self) -> Result<(), Error> {
        let mut message = self.reader.file();
        let mut trainings = 0_u64;
        let mut has_graph = false;
        while let Some(field) = self.reader.next(&mut message)? {
            match field.number {
                1 => self.state("onnx.ir_version", Value::Int(field.varint()? as i64)),
                2 => self.state_text("onnx.producer_name", &field)?,
                3 => self.state_text("onnx.producer_version", &field)?,
                4 => self.state_text("onnx.domain", &field)?,
                5 => self.state("onnx.model_version", Value::Int(field.varint()? as i64)),
                6 => self.state_text("onnx.doc_string", &field)?,
                7 => {
                    has_graph = true;
                    self.graph(field.run()?, MAIN, 0)?;
                }
                8 => self.operator_set(&field)?,
                14 => self.property(&field)?,
                20 => {
                    self.training(field.run()?, trainings)?;
                    trainings += 1;
                }
                25 => self.function(field.run()?)?,
                _ => {}
            }
        }
        if !has_graph {
            return Err(malformed("the model has no graph", 0)
                .hint("the file is cut short, or not an ONNX model"));
        }
        if !self.operator_sets.is_empty() {
            let sets = std::mem::take(&mut self.operator_sets);
            self.state("onnx.opset_import", Value::List(sets));
        }
        Ok(())
    }

    /// Keeps a value of the model's own; of several the last counts.
    fn state(&mut self, key: &str, value: Value) {
        self.metadata.insert(key.to_owned(), value);
    }

    fn state_text(&mut self, key: &str, field: &Field) -> Result<(), Error> {
        let text = self.reader.text(field)?;
        if !text.is_empty() {
            self.state(key, Value::Text(text));
        }
        Ok(())
    }

    fn operator_set(&mut self, field: &Field) -> Result<(), Error> {
        let (mut domain, mut version) = (Box::default(), 0);
        let mut message = Message::new(field.run()?);
        while let Some(field) = self.reader.next(&mut message)? {
            match field.number {
                1 => domain = self.reader.text(&field)?,
                2 => version = field.varint()? as i64,
                _ => {}
            }
        }
        let most = self.reader.limits.list_values;
        if self.operator_sets.len() as u64 >= most {
            let message = "the model imports more sets of operators than the limit";
            let actual = self.operator_sets.len() + 1;
            let kind = ErrorKind::LimitExceeded;
            return Err(limits::exceeded(kind, message, "list_values", most, actual)
                .hint(limits::raise("list_values")));
        }
        let domain = if domain.is_empty() { "ai.onnx" } else { &*domain };
        self.operator_sets.push(Value::from(format!("{domain}:{version}")));
        Ok(())
    }

    /// An entry of `metadata_props`, under its own key.
    fn property(&mut self, field: &Field) -> Result<(), Error> {
        let (mut key, mut value) = (Box::default(), Box::default());
        let mut message = Message::new(field.run()?);
        while let Some(field) = self.reader.next(&mut message)? {
            match field.number {
                1 => key = self.reader.text(&field)?,
                2 => value = self.reader.text(&field)?,
                _ => {}
            }
        }
        match self.metadata.entry(key.into()) {
            Entry::Vacant(place) => {
                place.insert(Value::Text(value));
                Ok(())
            }
            Entry::Occupied(place) => Err(Error::new(
                ErrorKind::DuplicateMetadata,
                "a key stands twice in the model's metadata",
            )
            .with("key", place.key())),
        }
    }

    fn training(&mut self, at: Range<u64>, number: u64) -> Result<(), Error> {
        let scope = self.open(MAIN);
        let mut message = Message::new(at);
        while let Some(field) = self.reader.next(&mut message)? {
            let name = match field.number {
                1 => "initialization",
                2 => "algorithm",
                _ => continue,
            };
            let part = self.open(scope);
            self.graph(field.run()?, part, 0)?;
            self.close(part, || name.into());
        }
        self.close(scope, || format!("training_info[{number}]").into());
        Ok(())
    }

    fn function(&mut self, at: Range<u64>) -> Result<(), Error> {
        let scope = self.open(MAIN);
        let (mut name, mut domain): (Box<str>, Box<str>) = Default::default();
        let mut nodes = 0_u64;
        let mut message = Message::new(at);
        while let Some(field) = self.reader.next(&mut message)? {
            match field.number {
                1 => name = self.reader.text(&field)?,
                7 => {
                    self.node(field.run()?, scope, 0, nodes)?;
                    nodes += 1;
                }
                10 => domain = self.reader.text(&field)?,
                // Values of attributes where a call gives none.
                11 => {
                    self.attribute(field.run()?, scope, 0)?;
                }
                _ => {}
            }
        }
        self.close(
            scope,
            || if domain.is_empty() { name } else { format!("{domain}.{name}").into() },
        );
        Ok(())
    }

    /// A graph at this depth of subgraphs.
    fn graph(&mut self, at: Range<u64>, scope: usize, depth: u64) -> Result<(), Error> {
        let most = self.reader.limits.depth;
        if depth > most {
            let message = "graphs are nested deeper than the limit";
            let kind = ErrorKind::LimitExceeded;
            return Err(limits::exceeded(kind, message, "depth", most, depth)
                .with("offset", at.start)
                .hint(limits::raise("depth")));
        }
        let (mut nodes, mut initializers, mut sparse) = (0_u64, 0_u64, 0_u64);
        let mut message = Message::new(at);
        while let Some(field) = self.reader.next(&mut message)? {
            match field.number {
                1 => {
                    self.node(field.run()?, scope, depth, nodes)?;
                    nodes += 1;
                }
                5 => {
                    let mut proto = Proto::default();
                    proto.read(&mut self.reader, field.run()?)?;
                    let at = self.push(proto, scope, scope == MAIN)?;
                    self.label(at, || format!("initializer[{initializers}]"));
                    initializers += 1;
                }
                15 => {
                    let mut tensor = Sparse::default();
                    tensor.read(&mut self.reader, field.run()?)?;
                    for at in self.push_sparse(tensor, scope, scope == MAIN)? {
                        self.label(at, || format!("sparse_initializer[{sparse}]"));
                    }
                    sparse += 1;
                }
                _ => {}
            }
        }
        Ok(())
    }

    fn node(
        &mut self,
        at: Range<u64>,
        parent: usize,
        depth: u64,
        number: u64,
    ) -> Result<(), Error> {
        let scope = self.open(parent);
        let [mut output, mut name, mut operator, mut domain]: [Box<str>; 4] = Default::default();
        // Of attributes `value`, which make the output of a Constant.
        let mut values = Vec::new();
        let mut message = Message::new(at);
        while let Some(field) = self.reader.next(&mut message)? {
            match field.number {
                2 if output.is_empty() => output = self.reader.text(&field)?,
                3 => name = self.reader.text(&field)?,
                4 => operator = self.reader.text(&field)?,
                5 => values.extend(self.attribute(field.run()?, scope, depth)?),
                7 => domain = self.reader.text(&field)?,
                _ => {}
            }
        }
        if &*operator == "Constant" && matches!(&*domain, "" | "ai.onnx") {
            for at in values {
                let naming: Option<&mut Naming> = self.naming.get_mut(at);
                if let Some(naming) = naming.filter(|it| it.wanted.is_empty() && !it.indices) {
                    naming.wanted.clone_from(&output);
                }
            }
        }
        self.close(scope, || match (&*name, &*output) {
            ("", "") => format!("{operator}[{number}]").into(),
            ("", _) => output,
            _ => name,
        });
        Ok(())
    }

    /// The tensors and graphs of an attribute. Comes back with the tensors that it has as its value,
    /// by position, if it is called `value` or `sparse_value`.
    fn attribute(&mut self, at: Range<u64>, scope: usize, depth: u64) -> Result<Vec<usize>, Error> {
        let mut name: Box<str> = Box::default();
        let (mut tensor, mut sparse) = (None, None);
        // What was found, with its number where the attribute has several.
        let (mut found, mut graphs) = (Vec::new(), Vec::new());
        let (mut tensors, mut sparse_tensors, mut subgraphs) = (0_u64, 0_u64, 0_u64);
        let mut message = Message::new(at);
        while let Some(field) = self.reader.next(&mut message)? {
            match field.number {
                1 => name = self.reader.text(&field)?,
                5 => {
                    let proto = tensor.get_or_insert_with(Proto::default);
                    proto.read(&mut self.reader, field.run()?)?;
                }
                6 | 11 => {
                    let number = (field.number == 11).then_some(subgraphs);
                    subgraphs += u64::from(number.is_some());
                    let (inner, before) = (self.open(scope), self.naming.len());
                    self.graph(field.run()?, inner, depth + 1)?;
                    self.close(inner, Box::default);
                    if self.naming.len() > before {
                        graphs.push((inner, number));
                    }
                }
                10 => {
                    let mut proto = Proto::default();
                    proto.read(&mut self.reader, field.run()?)?;
                    found.push((self.push(proto, scope, false)?, Some(tensors)));
                    tensors += 1;
                }
                22 => {
                    let value = sparse.get_or_insert_with(Sparse::default);
                    value.read(&mut self.reader, field.run()?)?;
                }
                23 => {
                    let mut value = Sparse::default();
                    value.read(&mut self.reader, field.run()?)?;
                    let number = Some(sparse_tensors);
                    sparse_tensors += 1;
                    found.extend(self.push_sparse(value, scope, false)?.map(|at| (at, number)));
                }
                _ => {}
            }
        }
        let mut values = Vec::new();
        if let Some(proto) = tensor {
            values.push(self.push(proto, scope, false)?);
        }
        if let Some(sparse) = sparse {
            values.extend(self.push_sparse(sparse, scope, false)?);
        }
        found.extend(values.iter().map(|at| (*at, None)));
        let label = |number: Option<u64>| match number {
            Some(number) => format!("{name}[{number}]"),
            None => name.to_string(),
        };
        for (at, number) in found {
            self.label_always(at, label(number));
        }
        for (inner, number) in graphs {
            if let Some(scope) = self.scopes.get_mut(inner) {
                scope.name = label(number).into();
            }
        }
        Ok(if matches!(&*name, "value" | "sparse_value") { values } else { Vec::new() })
    }

    /// Checks a tensor and keeps it; comes back with its position.
    fn push(&mut self, proto: Proto, scope: usize, main: bool) -> Result<usize, Error> {
        let most = self.reader.limits.tensors;
        let position = self.tensors.len();
        if position as u64 >= most {
            let message = "the model has more tensors than the limit";
            let kind = ErrorKind::LimitExceeded;
            return Err(limits::exceeded(kind, message, "tensors", most, position + 1)
                .hint(limits::raise("tensors")));
        }
        let mut proto = proto;
        let (wanted, start) = (std::mem::take(&mut proto.name), proto.start);
        let tensor = proto.finish(&mut self.reader, &mut self.locations, &mut self.decoded);
        self.tensors.push(tensor.map_err(|error| {
            let error = error.with("tensor", &wanted);
            // Of those without a name there are many: a place says which one it is.
            if wanted.is_empty() && error.get("offset").is_none() {
                error.with("offset", start)
            } else {
                error
            }
        })?);
        self.naming.push(Naming { wanted, scope, main, ..Naming::default() });
        Ok(position)
    }

    /// The same for the values and the indices of a sparse tensor.
    fn push_sparse(
        &mut self,
        sparse: Sparse,
        scope: usize,
        main: bool,
    ) -> Result<Range<usize>, Error> {
        let start = self.tensors.len();
        let has_values = sparse.values.is_some();
        if let Some(values) = sparse.values {
            self.push(values, scope, main)?;
        }
        if let Some(indices) = sparse.indices {
            let at = self.push(indices, scope, false)?;
            if let Some(naming) = self.naming.get_mut(at) {
                naming.indices = has_values && naming.wanted.is_empty();
            }
        }
        Ok(start..self.tensors.len())
    }

    /// Says what a tensor without a name is called where it stands.
    fn label(&mut self, at: usize, label: impl FnOnce() -> String) {
        if let Some(naming) = self.naming.get_mut(at).filter(|naming| naming.wanted.is_empty()) {
            naming.label = label().into();
        }
    }

    /// Says what a tensor is called where it stands, whatever name it has.
    fn label_always(&mut self, at: usize, label: String) {
        if let Some(naming) = self.naming.get_mut(at) {
            naming.label = label.into();
        }
    }

    /// Begins a place of which the name is not known yet.
    fn open(&mut self, parent: usize) -> usize {
        self.scopes.push(Scope { parent, name: Box::default() });
        self.scopes.len() - 1
    }

    /// Ends a place: one without tensors is forgotten, because most nodes are.
    fn close(&mut self, scope: usize, name: impl FnOnce() -> Box<str>) {
        // Tensors are kept in the order they are found, and the last one tells.
        let used = self.naming.last().is_some_and(|naming| naming.scope >= scope);
        if !used {
            self.scopes.truncate(scope);
        } else if let Some(scope) = self.scopes.get_mut(scope) {
            scope.name = name();
        }
    }
}

/// A tensor of which only the values that are not zero are given, and where they stand.
#[derive(Default)]
struct Sparse {
    values: Option<Proto>,
    indices: Option<Proto>,
}

impl Sparse {
    fn read(&mut self, reader: &mut Reader<'_>, at: Range<u64>) -> Result<(), Error> {
        let mut message = Message::new(at);
        while let Some(field) = reader.next(&mut message)? {
            let part = match field.number {
                1 => &mut self.values,
                2 => &mut self.indices,
                _ => continue,
            };
            part.get_or_insert_with(Proto::default).read(reader, field.run()?)?;
        }
        Ok(())
    }
}
