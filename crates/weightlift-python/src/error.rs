//! Errors of the library as Python's exceptions, and a wall against panics.

use std::panic::{AssertUnwindSafe, catch_unwind};

use pyo3::marker::Ungil;
use pyo3::prelude::*;
use pyo3::types::{PyDict, PyList};
use weightlift::{Error, ErrorKind};

/// Does `work` without the GIL. An error of the library becomes an exception, and so does a panic:
/// nothing unwinds into Python.
pub(crate) fn guarded<T: Ungil + Send>(
    py: Python<'_>,
    work: impl FnOnce() -> weightlift::Result<T> + Ungil + Send,
) -> PyResult<T> {
    let done = py.detach(|| catch_unwind(AssertUnwindSafe(work)));
    done.unwrap_or_else(|_| Err(panicked())).map_err(|error| exception(py, &error))
}

/// A panic, as an error.
pub(crate) fn panicked() -> Error {
    Error::new(ErrorKind::Internal, "weightlift has a defect here").hint("please report it")
}

/// The exception for an error: `weightlift.errors` knows the classes.
pub(crate) fn exception(py: Python<'_>, error: &Error) -> PyErr {
    let made = || {
        let context = PyDict::new(py);
        for (name, value) in error.context() {
            context.set_item(name, value)?;
        }
        let below = std::error::Error::source(error);
        let number = below.and_then(|below| below.downcast_ref::<std::io::Error>()?.raw_os_error());
        let is_format = matches!(error.kind(), ErrorKind::Format(_));
        let arguments = (
            error.kind().name(),
            error.to_string(),
            error.message(),
            context,
            error.get_hint(),
            number,
            is_format,
        );
        let module = py.import("weightlift.errors")?;
        Ok(PyErr::from_value(module.getattr("_make")?.call1(arguments)?))
    };
    made().unwrap_or_else(|failed| failed)
}

/// A report, or anything else that is JSON, as Python's dicts and lists.
pub(crate) fn from_json(py: Python<'_>, value: &serde_json::Value) -> PyResult<Py<PyAny>> {
    use serde_json::Value;
    Ok(match value {
        Value::Null => py.None(),
        Value::Bool(value) => value.into_pyobject(py)?.to_owned().into_any().unbind(),
        Value::Number(number) => match (number.as_u64(), number.as_i64(), number.as_f64()) {
            (Some(number), ..) => number.into_pyobject(py)?.into_any().unbind(),
            (_, Some(number), _) => number.into_pyobject(py)?.into_any().unbind(),
            (.., number) => number.into_pyobject(py)?.into_any().unbind(),
        },
        Value::String(text) => text.into_pyobject(py)?.into_any().unbind(),
        Value::Array(values) => {
            let list = PyList::empty(py);
            for value in values {
                list.append(from_json(py, value)?)?;
            }
            list.into_any().unbind()
        }
        Value::Object(fields) => {
            let dict = PyDict::new(py);
            for (name, value) in fields {
                dict.set_item(name, from_json(py, value)?)?;
            }
            dict.into_any().unbind()
        }
    })
}
