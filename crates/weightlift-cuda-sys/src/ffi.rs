//! Types and constants of the driver's C interface, as far as they are used.

// Handles may cross threads, which the language wants promised; a code's name is read from a C
// string of the driver's.
#![allow(unsafe_code)]

use std::borrow::Cow;
use std::ffi::{CStr, c_int, c_uint, c_void};
use std::fmt;
use std::ptr;

use crate::Driver;

/// An answer of the driver: zero, or a code.
#[repr(transparent)]
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
#[must_use]
pub struct CuStatus(pub u32);

macro_rules! statuses {
    ($($(#[$doc:meta])* $name:ident = $code:literal $text:literal;)*) => {
        impl CuStatus {
            $($(#[$doc])* pub const $name: CuStatus = CuStatus($code);)*

            fn known_name(self) -> Option<&'static str> {
                match self.0 {
                    $($code => Some($text),)*
                    _ => None,
                }
            }
        }
    };
}

statuses! {
    /// The call did what it was asked, or queued it.
    SUCCESS = 0 "CUDA_SUCCESS";
    /// An argument is out of range, or a pointer unknown.
    INVALID_VALUE = 1 "CUDA_ERROR_INVALID_VALUE";
    /// Device memory is short, or host memory could not be pinned.
    OUT_OF_MEMORY = 2 "CUDA_ERROR_OUT_OF_MEMORY";
    /// `cuInit` was not called in this process; also what a forked child gets.
    NOT_INITIALIZED = 3 "CUDA_ERROR_NOT_INITIALIZED";
    /// The driver is shutting down with the process.
    DEINITIALIZED = 4 "CUDA_ERROR_DEINITIALIZED";
    /// The library is the toolkit's stub, not a driver.
    STUB_LIBRARY = 34 "CUDA_ERROR_STUB_LIBRARY";
    /// The driver is too old. The code is the runtime API's; stubs and shims answer it.
    INSUFFICIENT_DRIVER = 35 "CUDA_ERROR_INSUFFICIENT_DRIVER";
    /// The call needs a newer driver.
    CALL_REQUIRES_NEWER_DRIVER = 36 "CUDA_ERROR_CALL_REQUIRES_NEWER_DRIVER";
    /// The device is in use by others, or in exclusive mode.
    DEVICE_UNAVAILABLE = 46 "CUDA_ERROR_DEVICE_UNAVAILABLE";
    /// No device is visible to the process.
    NO_DEVICE = 100 "CUDA_ERROR_NO_DEVICE";
    /// The ordinal is out of range.
    INVALID_DEVICE = 101 "CUDA_ERROR_INVALID_DEVICE";
    /// The calling thread has no context, or one that is gone.
    INVALID_CONTEXT = 201 "CUDA_ERROR_INVALID_CONTEXT";
    /// Memory of the device is damaged beyond repair.
    ECC_UNCORRECTABLE = 214 "CUDA_ERROR_ECC_UNCORRECTABLE";
    /// A link between devices failed beyond repair.
    NVLINK_UNCORRECTABLE = 220 "CUDA_ERROR_NVLINK_UNCORRECTABLE";
    /// The device met an exception and contained it.
    CONTAINED = 226 "CUDA_ERROR_CONTAINED";
    /// An operating-system call failed.
    OPERATING_SYSTEM = 304 "CUDA_ERROR_OPERATING_SYSTEM";
    /// A stream or event is not one of this driver's.
    INVALID_HANDLE = 400 "CUDA_ERROR_INVALID_HANDLE";
    /// A named thing is not there.
    NOT_FOUND = 500 "CUDA_ERROR_NOT_FOUND";
    /// Work is still under way: no error.
    NOT_READY = 600 "CUDA_ERROR_NOT_READY";
    /// The device touched an address that is not mapped.
    ILLEGAL_ADDRESS = 700 "CUDA_ERROR_ILLEGAL_ADDRESS";
    /// A kernel ran too long.
    LAUNCH_TIMEOUT = 702 "CUDA_ERROR_LAUNCH_TIMEOUT";
    /// The context was destroyed under its user.
    CONTEXT_IS_DESTROYED = 709 "CUDA_ERROR_CONTEXT_IS_DESTROYED";
    /// An assertion failed on the device.
    ASSERT = 710 "CUDA_ERROR_ASSERT";
    /// Part of the range is registered already.
    HOST_MEMORY_ALREADY_REGISTERED = 712 "CUDA_ERROR_HOST_MEMORY_ALREADY_REGISTERED";
    /// Nothing is registered at this address.
    HOST_MEMORY_NOT_REGISTERED = 713 "CUDA_ERROR_HOST_MEMORY_NOT_REGISTERED";
    /// The device's call stack is damaged.
    HARDWARE_STACK_ERROR = 714 "CUDA_ERROR_HARDWARE_STACK_ERROR";
    /// The device met an instruction that it does not know.
    ILLEGAL_INSTRUCTION = 715 "CUDA_ERROR_ILLEGAL_INSTRUCTION";
    /// The device touched an address that is not aligned.
    MISALIGNED_ADDRESS = 716 "CUDA_ERROR_MISALIGNED_ADDRESS";
    /// The device touched an address of the wrong space.
    INVALID_ADDRESS_SPACE = 717 "CUDA_ERROR_INVALID_ADDRESS_SPACE";
    /// The device's program counter left its program.
    INVALID_PC = 718 "CUDA_ERROR_INVALID_PC";
    /// A kernel failed for a reason without a code of its own.
    LAUNCH_FAILED = 719 "CUDA_ERROR_LAUNCH_FAILED";
    /// A kernel ended without giving its tensor memory back.
    TENSOR_MEMORY_LEAK = 721 "CUDA_ERROR_TENSOR_MEMORY_LEAK";
    /// The process may not do this.
    NOT_PERMITTED = 800 "CUDA_ERROR_NOT_PERMITTED";
    /// The device or the system cannot do this.
    NOT_SUPPORTED = 801 "CUDA_ERROR_NOT_SUPPORTED";
    /// A service that the devices need (the fabric manager, say) is not up yet.
    SYSTEM_NOT_READY = 802 "CUDA_ERROR_SYSTEM_NOT_READY";
    /// The library and the kernel module are of different versions.
    SYSTEM_DRIVER_MISMATCH = 803 "CUDA_ERROR_SYSTEM_DRIVER_MISMATCH";
    /// The forward-compatibility library does not support this device.
    COMPAT_NOT_SUPPORTED_ON_DEVICE = 804 "CUDA_ERROR_COMPAT_NOT_SUPPORTED_ON_DEVICE";
    /// The multi-process service cannot be reached.
    MPS_CONNECTION_FAILED = 805 "CUDA_ERROR_MPS_CONNECTION_FAILED";
    /// The multi-process service ended this client.
    MPS_CLIENT_TERMINATED = 810 "CUDA_ERROR_MPS_CLIENT_TERMINATED";
    /// The stream is being captured and the call cannot be.
    STREAM_CAPTURE_UNSUPPORTED = 900 "CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED";
    /// The driver does not know what happened either.
    UNKNOWN = 999 "CUDA_ERROR_UNKNOWN";
}

impl CuStatus {
    /// Whether the call succeeded.
    pub fn is_success(self) -> bool {
        self == CuStatus::SUCCESS
    }

    /// Whether the code leaves the context unusable: every later call answers it again, and only
    /// a new process helps.
    pub fn is_sticky(self) -> bool {
        matches!(
            self,
            CuStatus::ECC_UNCORRECTABLE
                | CuStatus::NVLINK_UNCORRECTABLE
                | CuStatus::CONTAINED
                | CuStatus::ILLEGAL_ADDRESS
                | CuStatus::LAUNCH_TIMEOUT
                | CuStatus::CONTEXT_IS_DESTROYED
                | CuStatus::ASSERT
                | CuStatus::HARDWARE_STACK_ERROR
                | CuStatus::ILLEGAL_INSTRUCTION
                | CuStatus::MISALIGNED_ADDRESS
                | CuStatus::INVALID_ADDRESS_SPACE
                | CuStatus::INVALID_PC
                | CuStatus::LAUNCH_FAILED
                | CuStatus::TENSOR_MEMORY_LEAK
                | CuStatus::MPS_CLIENT_TERMINATED
        )
    }

    /// The code's name: ours where we know it, else the driver's, else `CUDA_ERROR_<code>`.
    pub fn name(self, driver: Option<&Driver>) -> Cow<'static, str> {
        if let Some(known) = self.known_name() {
            return known.into();
        }
        if let Some(named) = driver.and_then(|driver| self.name_by(driver)) {
            return named.into();
        }
        format!("CUDA_ERROR_{}", self.0).into()
    }

    fn name_by(self, driver: &Driver) -> Option<String> {
        let mut text = ptr::null();
        // SAFETY: the driver writes one pointer, to a string that it keeps.
        let answer = unsafe { (driver.cuGetErrorName)(self, &mut text) };
        if !answer.is_success() || text.is_null() {
            return None;
        }
        // SAFETY: not null, and the driver's names are static C strings.
        let text = unsafe { CStr::from_ptr(text) };
        Some(text.to_string_lossy().into_owned())
    }
}

impl fmt::Debug for CuStatus {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{self}")
    }
}

impl fmt::Display for CuStatus {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} ({})", self.name(None), self.0)
    }
}

/// A device of the driver; the number is its ordinal.
#[repr(transparent)]
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct CuDevice(pub c_int);

/// An address in device memory.
pub type CuDevicePtr = u64;

// Only 64-bit drivers exist, and on 32-bit targets the interface looks different.
const _: () = assert!(size_of::<usize>() == size_of::<CuDevicePtr>());

macro_rules! handles {
    ($($(#[$doc:meta])* $name:ident;)*) => {$(
        $(#[$doc])*
        #[repr(transparent)]
        #[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
        pub struct $name(pub *mut c_void);

        impl $name {
            /// The null handle.
            pub const NULL: $name = $name(ptr::null_mut());

            /// Whether this is the null handle.
            pub fn is_null(self) -> bool {
                self.0.is_null()
            }
        }

        // SAFETY: the handle is a name, never dereferenced on our side; the driver's functions may
        // be called with it from any thread.
        unsafe impl Send for $name {}
        // SAFETY: as above.
        unsafe impl Sync for $name {}
    )*};
}

handles! {
    /// A context: the device's counterpart of a process. Null means none.
    CuContext;
    /// A queue of work. Null is the legacy stream, which synchronises with blocking streams.
    CuStream;
    /// A point in a stream's work.
    CuEvent;
}

/// A device's universally unique identifier.
#[repr(C)]
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub struct CuUuid {
    /// The sixteen bytes, in the order in which they are printed.
    pub bytes: [u8; 16],
}

/// Where memory is.
#[repr(C)]
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct CuMemLocation {
    /// One of the `CU_MEM_LOCATION_TYPE_*` constants.
    pub kind: c_uint,
    /// The device's ordinal, or the NUMA node; zero for other kinds.
    pub id: c_int,
}

/// How the copies of one part of a batch behave.
#[repr(C)]
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct CuMemcpyAttributes {
    /// One of the `CU_MEMCPY_SRC_ACCESS_ORDER_*` constants: when the source is read.
    pub src_access_order: c_uint,
    /// Where the source is, if known; matters for managed memory only.
    pub src_loc_hint: CuMemLocation,
    /// Where the destination is, if known; matters for managed memory only.
    pub dst_loc_hint: CuMemLocation,
    /// Zero, or [`CU_MEMCPY_FLAG_PREFER_OVERLAP_WITH_COMPUTE`].
    pub flags: c_uint,
}

const _: () = {
    use std::mem::offset_of;
    assert!(size_of::<CuUuid>() == 16 && align_of::<CuUuid>() == 1);
    assert!(size_of::<CuMemLocation>() == 8 && align_of::<CuMemLocation>() == 4);
    assert!(offset_of!(CuMemLocation, id) == 4);
    assert!(size_of::<CuMemcpyAttributes>() == 24 && align_of::<CuMemcpyAttributes>() == 4);
    assert!(offset_of!(CuMemcpyAttributes, src_access_order) == 0);
    assert!(offset_of!(CuMemcpyAttributes, src_loc_hint) == 4);
    assert!(offset_of!(CuMemcpyAttributes, dst_loc_hint) == 12);
    assert!(offset_of!(CuMemcpyAttributes, flags) == 20);
};

macro_rules! constants {
    ($($(#[$doc:meta])* $name:ident = $value:literal;)*) => {
        $($(#[$doc])* pub const $name: c_uint = $value;)*
    };
}

constants! {
    /// `cuStreamCreate`: the stream does not synchronise with the legacy stream.
    CU_STREAM_NON_BLOCKING = 1;
    /// `cuEventCreate`: waiting sleeps instead of spinning.
    CU_EVENT_BLOCKING_SYNC = 1;
    /// `cuEventCreate`: the event takes no time stamp and is cheaper.
    CU_EVENT_DISABLE_TIMING = 2;
    /// `cuMemHostRegister_v2`: pinned for all contexts, not the current one alone.
    CU_MEMHOSTREGISTER_PORTABLE = 1;
    /// `cuMemHostRegister_v2`: mapped into the device's address space.
    CU_MEMHOSTREGISTER_DEVICEMAP = 2;
    /// `cuMemHostRegister_v2`: the device only reads the range.
    CU_MEMHOSTREGISTER_READ_ONLY = 8;

    /// `cuDeviceGetAttribute`: the device shares the host's memory.
    CU_DEVICE_ATTRIBUTE_INTEGRATED = 18;
    /// `cuDeviceGetAttribute`: engines that copy beside running kernels.
    CU_DEVICE_ATTRIBUTE_ASYNC_ENGINE_COUNT = 40;
    /// `cuDeviceGetAttribute`: major part of the compute capability.
    CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR = 75;
    /// `cuDeviceGetAttribute`: minor part of the compute capability.
    CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR = 76;
    /// `cuDeviceGetAttribute`: `cuMemHostRegister_v2` works.
    CU_DEVICE_ATTRIBUTE_HOST_REGISTER_SUPPORTED = 99;

    /// `cuPointerGetAttribute`: `CuContext` that owns the pointer.
    CU_POINTER_ATTRIBUTE_CONTEXT = 1;
    /// `cuPointerGetAttribute`: `c_uint`, one of the `CU_MEMORYTYPE_*` constants.
    CU_POINTER_ATTRIBUTE_MEMORY_TYPE = 2;
    /// `cuPointerGetAttribute`: `c_int`, the ordinal of the pointer's device.
    CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL = 9;
    /// `cuPointerGetAttribute`: `CuDevicePtr`, start of the allocation.
    CU_POINTER_ATTRIBUTE_RANGE_START_ADDR = 11;
    /// `cuPointerGetAttribute`: `usize`, length of the allocation.
    CU_POINTER_ATTRIBUTE_RANGE_SIZE = 12;
    /// Memory of the host that the driver knows.
    CU_MEMORYTYPE_HOST = 1;
    /// Memory of a device.
    CU_MEMORYTYPE_DEVICE = 2;

    /// No place is told.
    CU_MEM_LOCATION_TYPE_INVALID = 0;
    /// A device, by ordinal.
    CU_MEM_LOCATION_TYPE_DEVICE = 1;
    /// The host.
    CU_MEM_LOCATION_TYPE_HOST = 2;
    /// The source is read in stream order.
    CU_MEMCPY_SRC_ACCESS_ORDER_STREAM = 1;
    /// The source is read before the call returns.
    CU_MEMCPY_SRC_ACCESS_ORDER_DURING_API_CALL = 2;
    /// The source may be read at any time, also before earlier work of the stream.
    CU_MEMCPY_SRC_ACCESS_ORDER_ANY = 3;
    /// The copy may run slower so that kernels run faster.
    CU_MEMCPY_FLAG_PREFER_OVERLAP_WITH_COMPUTE = 1;
}
