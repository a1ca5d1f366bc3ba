//! The driver's function table.

// The table turns addresses of symbols into typed functions.
#![allow(unsafe_code)]

use std::ffi::{c_char, c_int, c_uchar, c_uint, c_void};
use std::path::{Path, PathBuf};
use std::sync::{Mutex, PoisonError};

use libloading::Library;

use crate::ffi::{
    CuContext, CuDevice, CuDevicePtr, CuEvent, CuMemcpyAttributes, CuStatus, CuStream, CuUuid,
};
use crate::find::{self, LoadError};
use crate::platform;

impl Driver {
    /// Opens the driver and resolves its functions; does not call `cuInit`.
    ///
    /// `explicit` names the library; without it the platform's usual names are tried. A library
    /// once opened stays open for the life of the process, since the driver runs threads of its
    /// own, and the same name is answered with the same table. Failures are not remembered.
    pub fn load(explicit: Option<&Path>) -> Result<&'static Driver, LoadError> {
        static LOADED: Mutex<Vec<&'static Driver>> = Mutex::new(Vec::new());

        // The list is whole at any time, so a panic elsewhere does not spoil it.
        let mut loaded = LOADED.lock().unwrap_or_else(PoisonError::into_inner);
        let names: Vec<&Path> = match explicit {
            Some(path) => vec![path],
            None => platform::DRIVER_NAMES.iter().map(Path::new).collect(),
        };
        let mut tried = Vec::new();
        for name in names {
            if let Some(driver) = loaded.iter().find(|driver| driver.path == name) {
                return Ok(driver);
            }
            match find::open(name) {
                Ok(library) => {
                    // Leaked, so that the functions stay where they are; also when one of them is
                    // missing, since a library that has run its initialisers is safest left alone.
                    let library = Box::leak(Box::new(library));
                    let driver = Box::leak(Box::new(Driver::resolve(library, name.to_owned())?));
                    loaded.push(driver);
                    return Ok(driver);
                }
                Err(why) => tried.push((name.display().to_string(), why)),
            }
        }
        Err(LoadError::NotFound { tried })
    }

    /// Whether the library is in this process already, opened by anybody. Loads nothing.
    pub fn is_loaded(explicit: Option<&Path>) -> bool {
        match explicit {
            Some(path) => platform::is_loaded(path),
            None => platform::DRIVER_NAMES.iter().any(|name| platform::is_loaded(Path::new(name))),
        }
    }

    /// The name or path that the library was opened by.
    pub fn path(&self) -> &Path {
        &self.path
    }
}

/// Declares the table: one field a function, named like the function in the library, so that a
/// reader can look it up in the driver's manual. All functions return a status.
macro_rules! table {
    (
        required { $($(#[$rdoc:meta])* fn $required:ident($($rarg:ty),*);)* }
        optional { $($(#[$odoc:meta])* fn $optional:ident($($oarg:ty),*);)* }
    ) => {
        /// The driver's functions, by the names that the library exports them under.
        ///
        /// Calling one is unsafe in the way its C counterpart is: pointers must be valid for what
        /// the driver does with them, for as long as it does it.
        #[derive(Debug)]
        #[allow(non_snake_case)]
        pub struct Driver {
            $($(#[$rdoc])* pub $required: unsafe extern "C" fn($($rarg),*) -> CuStatus,)*
            $($(#[$odoc])* pub $optional: Option<unsafe extern "C" fn($($oarg),*) -> CuStatus>,)*
            path: PathBuf,
        }

        impl Driver {
            /// Functions without which a library is not taken for the driver.
            pub const REQUIRED: &'static [&'static str] = &[$(stringify!($required)),*];
            /// Functions that only newer drivers have.
            pub const OPTIONAL: &'static [&'static str] = &[$(stringify!($optional)),*];

            fn resolve(library: &'static Library, path: PathBuf) -> Result<Driver, LoadError> {
                Ok(Driver {
                    $($required: {
                        // SAFETY: the driver's symbol of this name has this signature: it is part
                        // of its versioned binary interface. The library is never closed.
                        let symbol = unsafe {
                            library.get::<unsafe extern "C" fn($($rarg),*) -> CuStatus>(
                                concat!(stringify!($required), "\0"),
                            )
                        };
                        *symbol.map_err(|_| LoadError::MissingSymbol {
                            library: path.display().to_string(),
                            symbol: stringify!($required),
                        })?
                    },)*
                    $($optional: {
                        // SAFETY: as above.
                        let symbol = unsafe {
                            library.get::<unsafe extern "C" fn($($oarg),*) -> CuStatus>(
                                concat!(stringify!($optional), "\0"),
                            )
                        };
                        symbol.ok().map(|symbol| *symbol)
                    },)*
                    path,
                })
            }
        }
    };
}

table! {
    required {
        /// `(flags = 0)`: starts the driver in this process.
        fn cuInit(c_uint);
        /// `(*version)`: 1000 × major + 10 × minor; works before `cuInit`.
        fn cuDriverGetVersion(*mut c_int);
        /// `(status, *text)`: the code's name, owned by the driver.
        fn cuGetErrorName(CuStatus, *mut *const c_char);
        /// `(status, *text)`: a sentence about the code, owned by the driver.
        fn cuGetErrorString(CuStatus, *mut *const c_char);
        /// `(*device, ordinal)`
        fn cuDeviceGet(*mut CuDevice, c_int);
        /// `(*count)`: devices that this process may use.
        fn cuDeviceGetCount(*mut c_int);
        /// `(text, length, device)`
        fn cuDeviceGetName(*mut c_char, c_int, CuDevice);
        /// `(*value, attribute, device)`
        fn cuDeviceGetAttribute(*mut c_int, c_uint, CuDevice);
        /// `(*uuid, device)`: a slice of a partitioned GPU has its own.
        fn cuDeviceGetUuid_v2(*mut CuUuid, CuDevice);
        /// `(text, length, device)`: domain, bus, device and function, as in sysfs.
        fn cuDeviceGetPCIBusId(*mut c_char, c_int, CuDevice);
        /// `(*bytes, device)`
        fn cuDeviceTotalMem_v2(*mut usize, CuDevice);
        /// `(*context, device)`: the context that all libraries of a process share.
        fn cuDevicePrimaryCtxRetain(*mut CuContext, CuDevice);
        /// `(device)`
        fn cuDevicePrimaryCtxRelease_v2(CuDevice);
        /// `(device, *flags, *active)`
        fn cuDevicePrimaryCtxGetState(CuDevice, *mut c_uint, *mut c_int);
        /// `(*context)`: of the calling thread; null when it has none.
        fn cuCtxGetCurrent(*mut CuContext);
        /// `(context)`: for the calling thread.
        fn cuCtxSetCurrent(CuContext);
        /// `(*device)`: of the current context.
        fn cuCtxGetDevice(*mut CuDevice);
        /// `()`: waits for all work of the current context.
        fn cuCtxSynchronize();
        /// `(*free, *total)`: of the current context's device.
        fn cuMemGetInfo_v2(*mut usize, *mut usize);
        /// `(*pointer, bytes)`
        fn cuMemAlloc_v2(*mut CuDevicePtr, usize);
        /// `(pointer)`
        fn cuMemFree_v2(CuDevicePtr);
        /// `(pointer, bytes, flags)`: pins memory of the process.
        fn cuMemHostRegister_v2(*mut c_void, usize, c_uint);
        /// `(pointer)`: the start that was registered.
        fn cuMemHostUnregister(*mut c_void);
        /// `(to, from, bytes, stream)`
        fn cuMemcpyHtoDAsync_v2(CuDevicePtr, *const c_void, usize, CuStream);
        /// `(to, from, bytes, stream)`
        fn cuMemcpyDtoHAsync_v2(*mut c_void, CuDevicePtr, usize, CuStream);
        /// `(to, value, bytes, stream)`
        fn cuMemsetD8Async(CuDevicePtr, c_uchar, usize, CuStream);
        /// `(*stream, flags)`
        fn cuStreamCreate(*mut CuStream, c_uint);
        /// `(stream)`
        fn cuStreamSynchronize(CuStream);
        /// `(stream, event, flags = 0)`
        fn cuStreamWaitEvent(CuStream, CuEvent, c_uint);
        /// `(stream)`: [`CuStatus::NOT_READY`] while work is left.
        fn cuStreamQuery(CuStream);
        /// `(stream)`: work that is left still runs.
        fn cuStreamDestroy_v2(CuStream);
        /// `(*event, flags)`
        fn cuEventCreate(*mut CuEvent, c_uint);
        /// `(event, stream)`
        fn cuEventRecord(CuEvent, CuStream);
        /// `(event)`: [`CuStatus::NOT_READY`] while work is left.
        fn cuEventQuery(CuEvent);
        /// `(event)`
        fn cuEventSynchronize(CuEvent);
        /// `(event)`
        fn cuEventDestroy_v2(CuEvent);
        /// `(*value, attribute, pointer)`: the value's type depends on the attribute.
        fn cuPointerGetAttribute(*mut c_void, c_uint, CuDevicePtr);
    }
    optional {
        /// `(to, from, bytes, count, attributes, first copy of each attribute, attributes' count,
        /// *index of the copy that failed, stream)`: since 12.8.
        fn cuMemcpyBatchAsync(
            *mut CuDevicePtr, *mut CuDevicePtr, *mut usize, usize,
            *mut CuMemcpyAttributes, *mut usize, usize, *mut usize, CuStream
        );
        /// The same without the index of the copy that failed: since 13.0.
        fn cuMemcpyBatchAsync_v2(
            *mut CuDevicePtr, *mut CuDevicePtr, *mut usize, usize,
            *mut CuMemcpyAttributes, *mut usize, usize, CuStream
        );
    }
}
