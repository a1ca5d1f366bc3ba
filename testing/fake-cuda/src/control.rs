//! The functions by which a test scripts the driver; [`crate::FakeCuda`] calls them.

// Functions of a C interface, with pointers from the client.
#![allow(unsafe_code)]

use crate::config::{Config, Counts, Live};
use crate::digest::Digest;
use crate::exports::EXPORTED;
use crate::faults::Mode;
use crate::world;

/// Declares the functions and, in `kind`, a type for each by which the client finds it: one
/// declaration for both ends.
macro_rules! controls {
    ($(fn $name:ident($($arg:ident: $ty:ty),*) $(-> $ret:ty)? $body:block)*) => {
        pub(crate) mod kind {
            #![allow(non_camel_case_types)]
            use super::*;
            $(pub type $name = unsafe extern "C" fn($($ty),*) $(-> $ret)?;)*
        }
        $(
            #[unsafe(no_mangle)]
            unsafe extern "C" fn $name($($arg: $ty),*) $(-> $ret)? {
                world::set_call(stringify!($name));
                $body
            }
        )*
    };
}

controls! {
    fn fake_cuda_reset(config: *const Config) -> bool {
        // SAFETY: the client passes a reference.
        world::reset(unsafe { *config })
    }

    fn fake_cuda_fail(name: *const u8, len: usize, nth: u64, status: u32, mode: u32) -> bool {
        // SAFETY: the client passes a str's parts.
        let Some(function) = (unsafe { known(name, len) }) else {
            return false;
        };
        let mode = match mode {
            0 => Mode::Once,
            1 => Mode::Always,
            _ => Mode::Sticky,
        };
        world::lock().faults.arm(function, nth, status, mode);
        true
    }

    fn fake_cuda_fail_copy(nth: u64, status: u32) {
        world::lock().faults.arm_copy(nth, status);
    }

    fn fake_cuda_calls(name: *const u8, len: usize, calls: *mut u64) -> bool {
        // SAFETY: the client passes a str's parts.
        let Some(function) = (unsafe { known(name, len) }) else {
            return false;
        };
        // SAFETY: the client passes a reference.
        unsafe { *calls = world::lock().faults.calls(function) };
        true
    }

    fn fake_cuda_counts(counts: *mut Counts) {
        // SAFETY: the client passes a reference.
        unsafe { *counts = world::lock().counts };
    }

    fn fake_cuda_live(live: *mut Live) {
        // SAFETY: the client passes a reference.
        unsafe { *live = world::lock().live() };
    }

    // Copies as much of the text as fits, and answers how long it is.
    fn fake_cuda_violations(text: *mut u8, capacity: usize) -> usize {
        let mut world = world::lock();
        world.check_mappings(true);
        let all = world.violations.join("\n");
        // SAFETY: the client passes a buffer of this capacity.
        unsafe { text.copy_from_nonoverlapping(all.as_ptr(), all.len().min(capacity)) };
        all.len()
    }

    fn fake_cuda_hold(held: bool) {
        world::lock().streams.held = held;
        world::CHANGED.notify_all();
    }

    fn fake_cuda_flip(address: u64) -> bool {
        let found = world::lock().find(address, 1);
        found.map(|(allocation, offset)| allocation.flip(offset)).is_some()
    }

    fn fake_cuda_fill(address: u64, len: u64, value: u8) -> bool {
        let found = world::lock().find(address, len);
        found.is_some_and(|(allocation, offset)| {
            let fill = |into: &mut [u8], _| {
                into.fill(value);
                Ok(())
            };
            allocation.write(offset, len, fill).is_ok()
        })
    }

    fn fake_cuda_read(address: u64, into: *mut u8, len: u64) -> bool {
        let found = world::lock().find(address, len);
        found.is_some_and(|(allocation, offset)| {
            allocation.read(offset, len, |bytes, done| {
                // SAFETY: the client passes a buffer of `len` bytes.
                unsafe {
                    into.add(done as usize)
                        .copy_from_nonoverlapping(bytes.as_ptr(), bytes.len());
                }
            })
        })
    }

    fn fake_cuda_digest(address: u64, into: *mut Digest) -> bool {
        let found = world::lock().find(address, 1);
        let digest = found.and_then(|(allocation, _)| allocation.digest());
        if let Some(digest) = digest {
            // SAFETY: the client passes a reference.
            unsafe { *into = digest };
        }
        digest.is_some()
    }
}

/// The exported function of this name.
///
/// # Safety
/// The two are the parts of a byte slice.
unsafe fn known(name: *const u8, len: usize) -> Option<&'static str> {
    // SAFETY: as promised by the caller.
    let name = unsafe { std::slice::from_raw_parts(name, len) };
    EXPORTED.iter().copied().find(|known| known.as_bytes() == name)
}
