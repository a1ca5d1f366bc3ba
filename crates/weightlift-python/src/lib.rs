//! The native half of the Python package: the library's objects, as Python sees them.
//!
//! What people call stands in `python/weightlift`; nothing here knows numpy, torch or jax.

mod destination;
mod dlpack;
mod error;
mod handed;
mod image_linux;
mod job;
mod loader;
mod model;
mod reader;
mod tensor;

use std::ffi::OsString;

use pyo3::prelude::*;

// Not tested without the GIL: an interpreter that can do without turns it on.
#[pymodule(gil_used = true)]
fn _native(module: &Bound<'_, PyModule>) -> PyResult<()> {
    module.add("__version__", env!("CARGO_PKG_VERSION"))?;
    module.add_class::<loader::Loader>()?;
    module.add_class::<job::Job>()?;
    module.add_class::<model::Model>()?;
    module.add_class::<tensor::Tensor>()?;
    module.add_class::<reader::Stream>()?;
    module.add_class::<handed::Handed>()?;
    module.add_class::<image_linux::Image>()?;
    #[cfg(debug_assertions)]
    module.add_function(wrap_pyfunction!(_panic, module)?)?;
    module.add_function(wrap_pyfunction!(run_command, module)?)
}

/// Panics, for the test that shows what becomes of it. Builds for release have no such function.
#[cfg(debug_assertions)]
#[pyfunction]
fn _panic(py: Python<'_>, place: &str) -> PyResult<Option<job::Job>> {
    match place {
        "guarded" => error::guarded(py, || panic!("planted")),
        "job" => job::Job::that_panics().map(Some),
        _ => panic!("planted"),
    }
}

/// Runs the command line, the program's name first, and returns the exit status. `program` is the
/// command by which the same program is started once more.
#[pyfunction]
fn run_command(py: Python<'_>, arguments: Vec<OsString>, program: Vec<OsString>) -> PyResult<u8> {
    let stop = weightlift_cli::Stop::on_signals();
    error::guarded(py, || Ok(weightlift_cli::run_by(&program, arguments, &stop)))
}
