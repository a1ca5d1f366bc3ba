//! The CUDA driver, found at run time.
//!
//! Nothing here is linked: a machine without the driver builds, runs and tests this crate, and
//! learns from [`Driver::load`] that there is none. The layer is thin on purpose. It knows names,
//! signatures, constants and structure layouts; what a call means, and when it is safe, is the
//! business of who calls it.
//!
//! Status codes are numbers, not an enum ([`CuStatus`]): drivers newer than this crate answer
//! codes that it does not know, and those must be values that can be printed.
//!
//! ```
//! match weightlift_cuda_sys::Driver::load(None) {
//!     Ok(driver) => println!("driver found as {}", driver.path().display()),
//!     Err(error) => println!("no CUDA here: {error}"),
//! }
//! ```

mod driver;
mod ffi;
mod find;
#[cfg(not(windows))]
#[path = "find_unix.rs"]
mod platform;
#[cfg(windows)]
#[path = "find_windows.rs"]
mod platform;

pub use driver::Driver;
pub use ffi::*;
pub use find::{LoadError, find_cufile};
