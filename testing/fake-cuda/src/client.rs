//! How a test finds the library and scripts it.

// Functions of a library that is opened at run time.
#![allow(unsafe_code)]

use std::fs;
use std::mem::ManuallyDrop;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, MutexGuard, PoisonError};

use libloading::Library;

use crate::config::{Config, Counts, Live};
use crate::control::kind;
use crate::digest::Digest;
use crate::exports::EXPORTED;
pub use crate::faults::Mode;

const NAME: &str = "libfake_cuda.so";

/// A handle to the fake driver that is loaded in this process.
///
/// The driver's state is the process's, and tests of one program run at once: a test holds
/// [`FakeCuda::lock`] for as long as it uses the driver, and begins with [`FakeCuda::reset`].
#[derive(Debug)]
pub struct FakeCuda {
    // Never closed: the library's threads run to the end of the process.
    library: ManuallyDrop<Library>,
    path: PathBuf,
}

/// Proof that no other test uses the driver.
pub type Guard = MutexGuard<'static, ()>;

impl FakeCuda {
    /// Opens the library that was built beside the running program.
    ///
    /// # Panics
    /// If it is not there.
    pub fn open() -> FakeCuda {
        FakeCuda::open_at(&library_path())
    }

    /// Opens the library at `path`; each path has a state of its own.
    ///
    /// # Panics
    /// If it cannot be opened.
    pub fn open_at(path: &Path) -> FakeCuda {
        // SAFETY: the library's initialisers are the Rust runtime's.
        let library = unsafe { Library::new(path) };
        let library = library.unwrap_or_else(|error| panic!("{}: {error}", path.display()));
        FakeCuda { library: ManuallyDrop::new(library), path: path.to_owned() }
    }

    /// Waits until no other test uses the driver.
    pub fn lock() -> Guard {
        static LOCK: Mutex<()> = Mutex::new(());
        // A test that failed leaves nothing behind that a reset does not clear.
        LOCK.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Where the library lies: what the code under test is told to load.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// The names of all functions of the driver.
    pub fn exported() -> &'static [&'static str] {
        EXPORTED
    }

    /// Makes a fresh driver, on which `cuInit` was not called. Streams are released first.
    ///
    /// # Panics
    /// If work that was queued does not end within five seconds.
    pub fn reset(&self, config: Config) {
        let reset: kind::fake_cuda_reset = self.symbol("fake_cuda_reset");
        // SAFETY: the pointer is a reference.
        assert!(unsafe { reset(&config) }, "streams are still busy");
    }

    /// From now on, the `nth` call of a function (1 is the next) answers `status` and does nothing.
    ///
    /// # Panics
    /// If no function has that name.
    pub fn fail(&self, function: &str, nth: u64, status: u32, mode: Mode) {
        let fail: kind::fake_cuda_fail = self.symbol("fake_cuda_fail");
        // SAFETY: pointer and length are those of a str.
        let known = unsafe { fail(function.as_ptr(), function.len(), nth, status, mode as u32) };
        assert!(known, "the driver has no function {function}");
    }

    /// The `nth` copy that runs from now on (1 is the next) fails: later calls in its context
    /// answer `status`.
    pub fn fail_copy(&self, nth: u64, status: u32) {
        let fail: kind::fake_cuda_fail_copy = self.symbol("fake_cuda_fail_copy");
        // SAFETY: plain numbers.
        unsafe { fail(nth, status) };
    }

    /// How often a function was called since the reset.
    ///
    /// # Panics
    /// If no function has that name.
    pub fn calls(&self, function: &str) -> u64 {
        let calls: kind::fake_cuda_calls = self.symbol("fake_cuda_calls");
        let mut count = 0;
        // SAFETY: pointer and length are those of a str, the other pointer is a reference.
        let known = unsafe { calls(function.as_ptr(), function.len(), &mut count) };
        assert!(known, "the driver has no function {function}");
        count
    }

    /// What happened since the reset.
    pub fn counts(&self) -> Counts {
        let counts: kind::fake_cuda_counts = self.symbol("fake_cuda_counts");
        let mut into = Counts::default();
        // SAFETY: the pointer is a reference.
        unsafe { counts(&mut into) };
        into
    }

    /// What is not given back.
    pub fn live(&self) -> Live {
        let live: kind::fake_cuda_live = self.symbol("fake_cuda_live");
        let mut into = Live::default();
        // SAFETY: the pointer is a reference.
        unsafe { live(&mut into) };
        into
    }

    /// Who broke which rule since the reset. Looks once more for registered memory that is gone.
    pub fn violations(&self) -> Vec<String> {
        let violations: kind::fake_cuda_violations = self.symbol("fake_cuda_violations");
        let mut text = vec![0; 4096];
        loop {
            // SAFETY: pointer and length are those of a slice.
            let len = unsafe { violations(text.as_mut_ptr(), text.len()) };
            if len <= text.len() {
                let text = String::from_utf8_lossy(&text[..len]);
                return text.lines().map(str::to_owned).collect();
            }
            text.resize(len, 0);
        }
    }

    /// Keeps all streams from starting anything, until [`FakeCuda::release`].
    pub fn hold(&self) {
        let hold: kind::fake_cuda_hold = self.symbol("fake_cuda_hold");
        // SAFETY: a plain value.
        unsafe { hold(true) };
    }

    /// Lets streams run again.
    pub fn release(&self) {
        let hold: kind::fake_cuda_hold = self.symbol("fake_cuda_hold");
        // SAFETY: a plain value.
        unsafe { hold(false) };
    }

    /// Damages one byte of device memory; on a discarding device, its digest.
    ///
    /// # Panics
    /// If the address is not allocated.
    pub fn flip_byte(&self, address: u64) {
        let flip: kind::fake_cuda_flip = self.symbol("fake_cuda_flip");
        // SAFETY: a plain number, which is checked.
        assert!(unsafe { flip(address) }, "{address:#x} is not allocated");
    }

    /// Reads device memory as it is now, whatever is still to run.
    ///
    /// # Panics
    /// If the range is not allocated, or the device discards its bytes.
    pub fn read_device(&self, address: u64, len: usize) -> Vec<u8> {
        let read: kind::fake_cuda_read = self.symbol("fake_cuda_read");
        let mut into = vec![0; len];
        // SAFETY: pointer and length are those of a slice; the address is checked.
        let kept = unsafe { read(address, into.as_mut_ptr(), len as u64) };
        assert!(kept, "{address:#x}+{len} is not allocated, or discarded");
        into
    }

    /// Fills device memory at once.
    ///
    /// # Panics
    /// If the range is not allocated.
    pub fn fill_device(&self, address: u64, len: usize, value: u8) {
        let fill: kind::fake_cuda_fill = self.symbol("fake_cuda_fill");
        // SAFETY: plain numbers, which are checked.
        let filled = unsafe { fill(address, len as u64, value) };
        assert!(filled, "{address:#x}+{len} is not allocated");
    }

    /// What was written to the allocation that holds this address, on a discarding device.
    ///
    /// # Panics
    /// If the address is not allocated, or the device keeps its bytes.
    pub fn digest(&self, address: u64) -> Digest {
        let digest: kind::fake_cuda_digest = self.symbol("fake_cuda_digest");
        let mut into = Digest::default();
        // SAFETY: the pointer is a reference; the address is checked.
        let found = unsafe { digest(address, &mut into) };
        assert!(found, "{address:#x} is not allocated, or its bytes are kept");
        into
    }

    fn symbol<T: Copy>(&self, name: &str) -> T {
        // SAFETY: the callers name the type that is declared with the function of that name; both
        // are of one build.
        let symbol = unsafe { self.library.get::<T>(name) };
        *symbol.unwrap_or_else(|error| panic!("{}: {error}", self.path.display()))
    }
}

/// The library that was built beside the running program: cargo puts it there for every package
/// that has this one among its development dependencies.
///
/// # Panics
/// If it is not there.
pub fn library_path() -> PathBuf {
    let program = std::env::current_exe().expect("a program knows its path");
    let folders = program.ancestors().skip(1).take(2);
    // The folder of dependencies first: what cargo puts elsewhere is a copy, which can be old.
    let candidates = folders.flat_map(|folder| [folder.join("deps").join(NAME), folder.join(NAME)]);
    candidates.clone().find(|path| path.is_file()).unwrap_or_else(|| {
        panic!(
            "the fake driver is in none of {:?}; `cargo build -p fake-cuda` builds it",
            candidates.collect::<Vec<_>>()
        )
    })
}

/// A copy of the library, written to `folder`, in which the named functions cannot be found: an
/// older driver. It has a state of its own.
///
/// # Panics
/// If a function is not in the library, or the copy cannot be written.
pub fn library_without(functions: &[&str], folder: &Path) -> PathBuf {
    let mut image = fs::read(library_path()).expect("the library can be read");
    for function in functions {
        // The names of a library's symbols are C strings one after the other. One that is spelt
        // differently is not what its hash says, and so is never found.
        let name = format!("\0{function}\0");
        let places: Vec<_> = image
            .windows(name.len())
            .enumerate()
            .filter(|(_, window)| *window == name.as_bytes())
            .map(|(place, _)| place)
            .collect();
        assert!(!places.is_empty(), "the library has no function {function}");
        for place in places {
            image[place + 1] = b'-';
        }
    }
    let path = folder.join(NAME);
    fs::write(&path, image).expect("the copy can be written");
    path
}
