//! A CUDA driver without a GPU, as the shared library `libfake_cuda.so`.
//!
//! Code under test opens it as it opens the real one, by path, and calls the same functions. It
//! has the driver's asynchrony (a stream is a thread; a copy takes its bytes when it *runs*), its
//! rules, and a memory for who broke them: misuse gets the proper error code and is recorded as a
//! *violation*, in words, which a test reads and expects to be none.
//!
//! | part | models |
//! |---|---|
//! | `exports`, `copies` | the driver's functions |
//! | `world` | the process's one state: devices, primary contexts, current contexts, fork |
//! | `memory` | device memory, kept sparsely or reduced to a digest |
//! | `host` | the caller's memory: registrations, reads that survive unmapping |
//! | `streams`, `work` | streams, events, the order of work |
//! | `faults` | scripted failures and call counts |
//! | `control` | the `fake_cuda_*` functions by which [`FakeCuda`] scripts all this |
//!
//! Settings come from [`FakeCuda::reset`], or, in a process that a test starts, from the variable
//! `FAKE_CUDA` (`devices=2,version=12040,...`, the fields of [`Config`]), read at the first call.
//! With `FAKE_CUDA_VIOLATIONS` naming a file, each violation is appended to it as a line.
//!
//! Status codes are those that a real driver (580, CUDA 13.0) gave to the same calls;
//! `tests/conformance.rs` holds the list and can ask a real driver again. In these points the fake
//! is stricter, so that code which passes here depends on nothing undocumented:
//!
//! - Calls about streams, events, device memory and registrations need a current context, and a
//!   copy's stream and memory are of that context's device. The real driver needs one only where
//!   no stream or address tells it.
//! - Handles that were destroyed are recognised. The real driver may crash.
//! - A registered source that is not mapped any more is survived. The real driver may crash.
//! - In a forked child every call fails, also those that only name things.
//!
//! Copies between devices, kernels, graphs and pools are not modelled. The functions of
//! `libcufile.so.0` would be a library of their own beside this one, over the same device memory.
//!
//! The library has its state to itself: a test program that links the Rust library has the same
//! functions inside, but its linker does not export them, and nothing calls them there.

// It reads /proc, and its users load the driver by a Linux name.
#![cfg(target_os = "linux")]

mod client;
mod config;
mod control;
mod copies;
mod digest;
mod exports;
mod faults;
mod host;
mod memory;
mod streams;
mod work;
mod world;

pub use client::{FakeCuda, Guard, Mode, library_path, library_without};
pub use config::{Config, Counts, Live};
pub use digest::Digest;
