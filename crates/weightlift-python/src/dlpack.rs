//! DLPack: a tensor's memory for numpy, torch, CuPy, JAX and others, without a copy.
//!
//! <https://dmlc.github.io/dlpack/latest/c_api.html>, versions 0 (`dltensor`) and 1.0
//! (`dltensor_versioned`).
#![allow(unsafe_code)] // DLPack is an interface of C

use std::ffi::{CStr, c_void};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::ptr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use pyo3::exceptions::PyBufferError;
use pyo3::ffi;
use pyo3::prelude::*;
use weightlift::DeviceId;

const UNVERSIONED: &CStr = c"dltensor";
const VERSIONED: &CStr = c"dltensor_versioned";

#[repr(C)]
struct DlDevice {
    kind: i32,
    number: i32,
}

#[repr(C)]
#[derive(Clone, Copy)]
struct DlType {
    code: u8,
    bits: u8,
    lanes: u16,
}

#[repr(C)]
struct DlTensor {
    data: *mut c_void,
    device: DlDevice,
    dimensions: i32,
    dtype: DlType,
    shape: *mut i64,
    strides: *mut i64,
    byte_offset: u64,
}

#[repr(C)]
struct Managed {
    tensor: DlTensor,
    context: *mut c_void,
    deleter: Option<unsafe extern "C" fn(*mut Managed)>,
}

#[repr(C)]
struct ManagedVersioned {
    major: u32,
    minor: u32,
    context: *mut c_void,
    deleter: Option<unsafe extern "C" fn(*mut ManagedVersioned)>,
    flags: u64,
    tensor: DlTensor,
}

/// A managed tensor of either version, with what it points to. The consumer holds a pointer to the
/// first field. The tensor goes before `_told` is told.
#[repr(C)]
struct Owned<M> {
    managed: M,
    _keep: weightlift::Tensor,
    _told: Option<Told>,
    shape: Vec<i64>,
    strides: Vec<i64>,
}

/// Says that a consumer, or whoever else had the tensor, has let go of it.
pub(crate) struct Told(pub(crate) Arc<AtomicBool>);

impl Drop for Told {
    fn drop(&mut self) {
        self.0.store(false, Ordering::Release);
    }
}

/// Frees what [`export`] made. It takes no lock of Python's, and the library's own drop knows of
/// forked processes and of drivers that are gone.
unsafe extern "C" fn delete<M>(managed: *mut M) {
    // SAFETY: made by `Box::into_raw` as `Owned<M>`, whose first field `managed` is; the consumer
    // calls this once.
    let owned = unsafe { Box::from_raw(managed.cast::<Owned<M>>()) };
    // There is nobody to tell of a panic, and it must not unwind into whoever calls this.
    let _ = catch_unwind(AssertUnwindSafe(|| drop(owned)));
}

/// The destructor of a capsule: what nobody consumed is freed. A consumed one has another name.
unsafe extern "C" fn end<M: Deletes>(capsule: *mut ffi::PyObject) {
    // SAFETY: Python calls this with the capsule that is being destroyed.
    unsafe {
        if ffi::PyCapsule_IsValid(capsule, M::NAME.as_ptr()) != 1 {
            return;
        }
        let managed = ffi::PyCapsule_GetPointer(capsule, M::NAME.as_ptr());
        if !managed.is_null() {
            delete::<M>(managed.cast());
        }
    }
}

trait Deletes: Sized {
    const NAME: &'static CStr;
    fn new(tensor: DlTensor) -> Self;
    fn tensor(&mut self) -> &mut DlTensor;
}

impl Deletes for Managed {
    const NAME: &'static CStr = UNVERSIONED;

    fn new(tensor: DlTensor) -> Self {
        Self { tensor, context: ptr::null_mut(), deleter: Some(delete::<Self>) }
    }

    fn tensor(&mut self) -> &mut DlTensor {
        &mut self.tensor
    }
}

impl Deletes for ManagedVersioned {
    const NAME: &'static CStr = VERSIONED;

    fn new(tensor: DlTensor) -> Self {
        let (context, deleter) = (ptr::null_mut(), Some(delete::<Self> as _));
        Self { major: 1, minor: 0, context, deleter, flags: 0, tensor }
    }

    fn tensor(&mut self) -> &mut DlTensor {
        &mut self.tensor
    }
}

/// Where a tensor is, as DLPack numbers it: 1 is the host, 2 CUDA.
pub(crate) fn device(tensor: &weightlift::Tensor) -> (i32, i32) {
    match tensor.device() {
        DeviceId::Cuda(ordinal) => (2, ordinal as i32),
        _ => (1, 0),
    }
}

/// A capsule with the tensor, of version 1.0 or the form before versions. `told` is dropped when the
/// consumer has let go of the tensor.
pub(crate) fn export<'py>(
    py: Python<'py>,
    tensor: &weightlift::Tensor,
    versioned: bool,
    told: Option<Told>,
) -> PyResult<Bound<'py, PyAny>> {
    match versioned {
        true => capsule::<ManagedVersioned>(py, tensor, told),
        false => capsule::<Managed>(py, tensor, told),
    }
}

fn capsule<'py, M: Deletes>(
    py: Python<'py>,
    tensor: &weightlift::Tensor,
    told: Option<Told>,
) -> PyResult<Bound<'py, PyAny>> {
    let name = tensor.dtype().name();
    let dtype = dtype(name).ok_or_else(|| {
        PyBufferError::new_err(format!("DLPack has no type for {name} with elements of their own"))
    })?;
    let signed = |numbers: &[u64]| numbers.iter().map(|number| *number as i64).collect::<Vec<_>>();
    let shape = signed(tensor.shape());
    let strides = tensor.strides().map_or_else(|| dense(&shape), signed);
    let (kind, number) = device(tensor);
    let described = DlTensor {
        data: tensor.address() as *mut c_void,
        device: DlDevice { kind, number },
        dimensions: shape.len() as i32,
        dtype,
        shape: ptr::null_mut(),
        strides: ptr::null_mut(),
        byte_offset: 0,
    };
    let managed = M::new(described);
    let mut owned = Box::new(Owned { managed, _keep: tensor.clone(), _told: told, shape, strides });
    let (shape, strides) = (owned.shape.as_mut_ptr(), owned.strides.as_mut_ptr());
    let described = owned.managed.tensor();
    (described.shape, described.strides) = (shape, strides);
    let pointer = Box::into_raw(owned);
    // SAFETY: a pointer that is not null, a name that lives for ever, and a destructor for both.
    let capsule = unsafe { ffi::PyCapsule_New(pointer.cast(), M::NAME.as_ptr(), Some(end::<M>)) };
    if capsule.is_null() {
        // SAFETY: nobody else has the pointer.
        unsafe { delete::<M>(pointer.cast()) };
        return Err(PyErr::fetch(py));
    }
    // SAFETY: a new reference.
    Ok(unsafe { Bound::from_owned_ptr(py, capsule) })
}

fn dense(shape: &[i64]) -> Vec<i64> {
    let mut strides = vec![1_i64; shape.len()];
    for at in (1..shape.len()).rev() {
        strides[at - 1] = strides[at].saturating_mul(shape[at]);
    }
    strides
}

/// `None` for types that pack several elements into a byte, and for quantized ones: consumers differ
/// in what they take their shapes for.
fn dtype(name: &str) -> Option<DlType> {
    let (code, bits) = match name {
        "I8" => (0, 8),
        "I16" => (0, 16),
        "I32" => (0, 32),
        "I64" => (0, 64),
        "U8" => (1, 8),
        "U16" => (1, 16),
        "U32" => (1, 32),
        "U64" => (1, 64),
        "F16" => (2, 16),
        "F32" => (2, 32),
        "F64" => (2, 64),
        "BF16" => (4, 16),
        "C64" => (5, 64),
        "C128" => (5, 128),
        "BOOL" => (6, 8),
        "F8_E4M3" => (10, 8),
        "F8_E4M3FNUZ" => (11, 8),
        "F8_E5M2" => (12, 8),
        "F8_E5M2FNUZ" => (13, 8),
        "F8_E8M0" => (14, 8),
        _ => return None,
    };
    Some(DlType { code, bits, lanes: 1 })
}
