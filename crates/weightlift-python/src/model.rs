//! `Model`: what is in the files, before any weight is read.

use std::collections::BTreeSet;
use std::path::PathBuf;
use std::sync::Arc;

use pyo3::prelude::*;
use pyo3::types::{PyDict, PyList, PyTuple};
use weightlift::OpenOptions;
use weightlift::index::{Index, Storage, TensorInfo, Value};

use crate::error::{exception, guarded};

/// A model whose headers are read and checked. Holds no file open.
#[pyclass(frozen, module = "weightlift._native")]
pub(crate) struct Model(pub(crate) Arc<weightlift::Model>);

#[pymethods]
impl Model {
    #[new]
    #[pyo3(signature = (path, format=None, search_dirs=Vec::new(), ignore_index=false, follow_links=false, metadata_lists=false))]
    fn open(
        py: Python<'_>,
        path: PathBuf,
        format: Option<&str>,
        search_dirs: Vec<PathBuf>,
        ignore_index: bool,
        follow_links: bool,
        metadata_lists: bool,
    ) -> PyResult<Self> {
        let mut options = OpenOptions::default();
        options.format = match format.map(str::parse).transpose() {
            Ok(format) => format,
            Err(error) => return Err(exception(py, &weightlift::Error::from(error))),
        };
        options.ignore_index = ignore_index;
        options.follow_links = follow_links;
        options.search_dirs = search_dirs;
        options.metadata_lists = metadata_lists;
        guarded(py, || Ok(Self(Arc::new(weightlift::Model::open(&path, &options)?))))
    }

    /// What was opened.
    #[getter]
    fn path(&self) -> PathBuf {
        self.0.path().to_owned()
    }

    /// The format's name, if it has one.
    #[getter]
    fn format(&self) -> Option<&'static str> {
        self.0.index().format.map(weightlift::index::Format::name)
    }

    /// Bytes of all storages, those that tensors share once.
    #[getter]
    fn nbytes(&self) -> u64 {
        self.0.index().bytes()
    }

    /// Names of tensors, in the index's order.
    fn keys(&self, py: Python<'_>) -> PyResult<Py<PyList>> {
        let names = self.0.index().tensors.iter().map(|tensor| &*tensor.name);
        Ok(PyList::new(py, names.collect::<Vec<_>>())?.unbind())
    }

    /// The files that the model consists of, as it calls them: its own first, where it has one.
    fn files(&self) -> Vec<&str> {
        self.0.index().sources.iter().map(|source| &*source.name).collect()
    }

    /// The names of the data types of tensors, each once: of those that a load with these patterns
    /// would take, or of all.
    #[pyo3(signature = (patterns=None))]
    fn dtypes(&self, py: Python<'_>, patterns: Option<Vec<String>>) -> PyResult<BTreeSet<&str>> {
        let selected = self.selected(py, patterns.unwrap_or_default())?;
        Ok(selected.into_iter().map(|tensor| tensor.dtype.name()).collect())
    }

    /// The names of the tensors that a load with these patterns would take.
    fn select(&self, py: Python<'_>, patterns: Vec<String>) -> PyResult<Vec<&str>> {
        let selected = self.selected(py, patterns)?;
        Ok(selected.into_iter().map(|tensor| &*tensor.name).collect())
    }

    /// Whether tensors share bytes.
    fn has_shared(&self) -> bool {
        let index = self.0.index();
        index.tensors.len() > index.storages.len()
    }

    /// For each tensor: name, dtype, shape, nbytes, file, offset in it, strides, storage, offset
    /// in that, bytes of that.
    fn tensors(&self, py: Python<'_>) -> PyResult<Py<PyList>> {
        let index = self.0.index();
        let tensors = index.tensors.iter().map(|tensor| fields(py, index, tensor));
        Ok(PyList::new(py, tensors.collect::<PyResult<Vec<_>>>()?)?.unbind())
    }

    /// How many bytes each storage has, in the order in which a load of all tensors asks for them.
    fn storage_sizes(&self) -> Vec<u64> {
        let mut storages: Vec<_> = self.0.index().storages.iter().collect();
        storages.sort_by_key(|storage| (storage.source.0, storage.offset));
        storages.into_iter().map(|storage| storage.length).collect()
    }

    /// What the files say beside their tensors.
    #[getter]
    fn metadata(&self, py: Python<'_>) -> PyResult<Py<PyDict>> {
        let metadata = PyDict::new(py);
        for (name, value) in &self.0.index().metadata {
            metadata.set_item(name, to_python(py, value)?)?;
        }
        Ok(metadata.unbind())
    }

    /// A model of one tensor: rows `start` to `stop` of the first dimension of tensor `name`, a
    /// dense one. `None` if its rows do not begin and end between bytes.
    fn rows(&self, py: Python<'_>, name: &str, start: u64, stop: u64) -> PyResult<Option<Self>> {
        let model = &self.0;
        let Some(index) = rows(model.index(), name, start, stop) else { return Ok(None) };
        guarded(py, || {
            let sources = model.sources().to_vec();
            Ok(Some(Self(Arc::new(weightlift::Model::from_parts(index, sources)?))))
        })
    }
}

impl Model {
    fn selected(&self, py: Python<'_>, patterns: Vec<String>) -> PyResult<Vec<&TensorInfo>> {
        let model = &self.0;
        let numbers = guarded(py, move || {
            weightlift::select(model, &weightlift::Request::new().tensors(patterns))
        })?;
        Ok(numbers.into_iter().map(|number| &self.0.index().tensors[number]).collect())
    }
}

/// A tensor as [`Model::tensors`] tells it.
pub(crate) fn fields<'py>(
    py: Python<'py>,
    index: &Index,
    tensor: &TensorInfo,
) -> PyResult<Bound<'py, PyTuple>> {
    let storage = &index.storages[tensor.storage.0 as usize];
    let source = &index.sources[storage.source.0 as usize];
    let strides = tensor.strides.as_ref().map(|all| PyTuple::new(py, all)).transpose()?;
    (
        &*tensor.name,
        tensor.dtype.name(),
        PyTuple::new(py, &tensor.shape)?,
        tensor.length,
        &*source.name,
        storage.offset + tensor.offset,
        strides,
        tensor.storage.0,
        tensor.offset,
        storage.length,
    )
        .into_pyobject(py)
}

fn rows(index: &Index, name: &str, start: u64, stop: u64) -> Option<Index> {
    let tensor = index.tensor(name)?;
    let rows = *tensor.shape.first()?;
    if tensor.strides.is_some() || start > stop || stop > rows || rows == 0 {
        return None;
    }
    let row = tensor.shape[1..].iter().try_fold(1_u64, |all, dim| all.checked_mul(*dim))?;
    let (first, length) = (
        tensor.dtype.bytes_for(row.checked_mul(start)?)?,
        tensor.dtype.bytes_for(row.checked_mul(stop - start)?)?,
    );
    let storage = index.storages[tensor.storage.0 as usize];
    if first.checked_add(length)? > tensor.length || storage.encoding != Default::default() {
        return None;
    }
    let mut part = tensor.clone();
    (part.storage, part.offset, part.length) = (weightlift::index::StorageId(0), 0, length);
    part.shape[0] = stop - start;
    let storage = Storage { offset: storage.offset + tensor.offset + first, length, ..storage };
    Some(Index {
        format: index.format,
        sources: index.sources.clone(),
        storages: vec![storage],
        tensors: vec![part],
        ..Index::default()
    })
}

fn to_python(py: Python<'_>, value: &Value) -> PyResult<Py<PyAny>> {
    Ok(match value {
        Value::Bool(value) => value.into_pyobject(py)?.to_owned().into_any().unbind(),
        Value::Int(value) => value.into_pyobject(py)?.into_any().unbind(),
        Value::Uint(value) => value.into_pyobject(py)?.into_any().unbind(),
        Value::Float(value) => value.into_pyobject(py)?.into_any().unbind(),
        Value::Text(value) => value.into_pyobject(py)?.into_any().unbind(),
        Value::List(values) => {
            let list = PyList::empty(py);
            for value in values {
                list.append(to_python(py, value)?)?;
            }
            list.into_any().unbind()
        }
        other => other.to_string().into_pyobject(py)?.into_any().unbind(),
    })
}
