//! CUDA memory, through the driver.
//!
//! Everything that calls the driver stands here. Each public call makes the device's primary
//! context current and restores the caller's before it returns.

mod context;
mod copy;
mod driver;
mod memory;

pub(crate) use context::CudaDevice;
pub use driver::DeviceFacts;
pub(crate) use driver::Platform;
pub(crate) use weightlift_cuda_sys::find_cufile;
