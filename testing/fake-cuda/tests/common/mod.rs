//! A driver in use: initialised, with a context that is current, and host memory to copy from.

// Each test program uses a part of this.
#![allow(dead_code, unsafe_code)]

use std::ffi::c_void;
use std::ptr;

use fake_cuda::{Config, FakeCuda, Guard};
use rustix::mm::{MapFlags, ProtFlags, mmap_anonymous, munmap};
use weightlift_cuda_sys::{
    CU_STREAM_NON_BLOCKING, CuContext, CuDevice, CuDevicePtr, CuEvent, CuStatus, CuStream, Driver,
};

/// Calls a function of the driver.
macro_rules! cu {
    ($session:expr, $function:ident($($arg:expr),* $(,)?)) => {{
        // SAFETY: the fake checks what it is given; places for answers are references.
        unsafe { ($session.driver.$function)($($arg),*) }
    }};
}

pub struct Session {
    pub fake: FakeCuda,
    pub driver: &'static Driver,
    _guard: Guard,
}

impl Session {
    /// A fresh driver, on which nothing was called.
    pub fn fresh(config: Config) -> Session {
        let guard = FakeCuda::lock();
        let fake = FakeCuda::open();
        fake.reset(config);
        let driver = Driver::load(Some(fake.path())).expect("the fake has all functions");
        Session { fake, driver, _guard: guard }
    }

    /// A driver whose first device has a context, current in this thread.
    pub fn new(config: Config) -> Session {
        let session = Session::fresh(config);
        assert!(cu!(session, cuInit(0)).is_success());
        session.enter(0);
        session
    }

    pub fn enter(&self, device: i32) -> CuContext {
        let mut context = CuContext::NULL;
        assert!(cu!(self, cuDevicePrimaryCtxRetain(&mut context, CuDevice(device))).is_success());
        assert!(cu!(self, cuCtxSetCurrent(context)).is_success());
        context
    }

    pub fn stream(&self, flags: u32) -> CuStream {
        let mut stream = CuStream::NULL;
        assert!(cu!(self, cuStreamCreate(&mut stream, flags)).is_success());
        stream
    }

    pub fn copy_stream(&self) -> CuStream {
        self.stream(CU_STREAM_NON_BLOCKING)
    }

    pub fn event(&self) -> CuEvent {
        let mut event = CuEvent::NULL;
        assert!(cu!(self, cuEventCreate(&mut event, 2)).is_success());
        event
    }

    pub fn alloc(&self, bytes: usize) -> CuDevicePtr {
        let mut pointer = 0;
        assert!(cu!(self, cuMemAlloc_v2(&mut pointer, bytes)).is_success());
        pointer
    }

    pub fn register(&self, region: &Region) {
        assert!(
            cu!(self, cuMemHostRegister_v2(region.at(0).cast_mut(), region.len, 1)).is_success()
        );
    }

    pub fn unregister(&self, region: &Region) -> CuStatus {
        cu!(self, cuMemHostUnregister(region.at(0).cast_mut()))
    }

    pub fn copy(
        &self,
        to: CuDevicePtr,
        from: *const c_void,
        bytes: usize,
        on: CuStream,
    ) -> CuStatus {
        cu!(self, cuMemcpyHtoDAsync_v2(to, from, bytes, on))
    }

    pub fn sync(&self, stream: CuStream) -> CuStatus {
        cu!(self, cuStreamSynchronize(stream))
    }

    /// The one violation that there is.
    #[track_caller]
    pub fn told_off(&self, part: &str) {
        let all = self.fake.violations();
        assert!(all.len() == 1 && all[0].contains(part), "{all:?}");
    }

    #[track_caller]
    pub fn no_violation(&self) {
        assert_eq!(self.fake.violations(), [""; 0]);
    }
}

/// Anonymous pages.
pub struct Region {
    start: *mut c_void,
    pub len: usize,
    mapped: bool,
}

impl Region {
    pub fn new(len: usize) -> Region {
        // SAFETY: a new mapping disturbs nobody.
        let start = unsafe {
            mmap_anonymous(
                ptr::null_mut(),
                len,
                ProtFlags::READ | ProtFlags::WRITE,
                MapFlags::PRIVATE,
            )
        };
        Region { start: start.expect("memory"), len, mapped: true }
    }

    pub fn at(&self, offset: usize) -> *const c_void {
        self.start.cast::<u8>().wrapping_add(offset).cast()
    }

    pub fn fill(&mut self, value: u8) {
        self.bytes().fill(value);
    }

    pub fn bytes(&mut self) -> &mut [u8] {
        assert!(self.mapped);
        // SAFETY: mapped, ours; the fake reads it by a system call.
        unsafe { std::slice::from_raw_parts_mut(self.start.cast(), self.len) }
    }

    /// Puts fresh pages where the old ones are.
    pub fn remap(&mut self) {
        let (protection, flags) = (ProtFlags::READ | ProtFlags::WRITE, MapFlags::PRIVATE);
        // SAFETY: ours, and no reference to it is left.
        let start =
            unsafe { mmap_anonymous(self.start, self.len, protection, flags | MapFlags::FIXED) };
        assert_eq!(start.expect("memory"), self.start);
    }

    pub fn unmap(&mut self) {
        if std::mem::replace(&mut self.mapped, false) {
            // SAFETY: ours, and no reference to it is left.
            unsafe { munmap(self.start, self.len) }.expect("it was mapped");
        }
    }
}

impl Drop for Region {
    fn drop(&mut self) {
        self.unmap();
    }
}
