//! The driver's functions, under the names that the real library exports.

// Functions of a C interface: they write through the caller's pointers.
#![allow(unsafe_code)]
#![allow(non_snake_case)]

use std::ffi::{c_char, c_int, c_uchar, c_uint, c_void};
use std::thread;
use std::time::Duration;

use crate::copies::{Attributes, Batch, to_device};
use crate::host;
use crate::streams;
use crate::work::Work;
use crate::world::{self, Guard, Need, Status, World, check, status};

/// Declares functions: each goes through [`world::call`] with what it needs, and its body gets the
/// locked world and the current context's device.
macro_rules! exports {
    ($(fn $name:ident($($arg:ident: $ty:ty),*) $need:ident |$world:ident, $device:ident| $body:block)*) => {
        /// The names of all functions of the driver that are here.
        pub(crate) const EXPORTED: &[&str] = &[$(stringify!($name)),*];
        $(
            #[unsafe(no_mangle)]
            unsafe extern "C" fn $name($($arg: $ty),*) -> Status {
                #[allow(unused_mut, unused_variables)]
                let body = |mut $world: Guard, $device: usize| -> Result<(), Status> { $body };
                world::call(stringify!($name), Need::$need, body)
            }
        )*
    };
}

exports! {
    fn cuInit(flags: c_uint) Nothing |world, _device| {
        let config = world.config;
        drop(world);
        thread::sleep(Duration::from_millis(config.init_delay_ms));
        check(flags == 0, status::INVALID_VALUE)?;
        check(config.init_status == 0, config.init_status as Status)?;
        check(config.devices > 0, NO_DEVICE)?;
        world::lock().initialise();
        Ok(())
    }

    fn cuDriverGetVersion(version: *mut c_int) Nothing |world, _device| {
        put(version, world.config.version as c_int)
    }

    fn cuGetErrorName(error: Status, text: *mut *const c_char) Nothing |world, _device| {
        put(text, describe(error)?.0.as_ptr())
    }

    fn cuGetErrorString(error: Status, text: *mut *const c_char) Nothing |world, _device| {
        put(text, describe(error)?.1.as_ptr())
    }

    fn cuDeviceGet(device: *mut c_int, ordinal: c_int) Driver |world, _device| {
        world.device(ordinal)?;
        put(device, ordinal)
    }

    fn cuDeviceGetCount(count: *mut c_int) Driver |world, _device| {
        put(count, world.devices.len() as c_int)
    }

    fn cuDeviceGetName(text: *mut c_char, len: c_int, device: c_int) Driver |world, _device| {
        world.device(device)?;
        put_text(text, len, &format!("Fake GPU {device}"))
    }

    fn cuDeviceGetAttribute(value: *mut c_int, attribute: c_uint, device: c_int) Driver |world, _device| {
        world.device(device)?;
        put(value, match attribute {
            // Warp size, engines for copies, unified addresses, compute capability 9.0,
            // registration of host memory.
            10 => 32,
            40 => 3,
            41 => 1,
            75 => 9,
            99 => 1,
            // PCI bus.
            33 => device + 1,
            1..=200 => 0,
            _ => return Err(status::INVALID_VALUE),
        })
    }

    fn cuDeviceGetUuid_v2(uuid: *mut [u8; 16], device: c_int) Driver |world, _device| {
        let ordinal = world.device(device)? as u8;
        put(uuid, std::array::from_fn(|i| 0xF0 ^ (ordinal << 4) ^ i as u8))
    }

    fn cuDeviceGetPCIBusId(text: *mut c_char, len: c_int, device: c_int) Driver |world, _device| {
        world.device(device)?;
        put_text(text, len, &format!("0000:{:02X}:00.0", device + 1))
    }

    fn cuDeviceTotalMem_v2(bytes: *mut usize, device: c_int) Driver |world, _device| {
        world.device(device)?;
        put(bytes, world.config.memory as usize)
    }

    fn cuDevicePrimaryCtxRetain(context: *mut usize, device: c_int) Driver |world, _device| {
        let ordinal = world.device(device)?;
        let delay = world.config.retain_delay_ms;
        if world.devices[ordinal].retained == 0 && delay > 0 {
            drop(world);
            thread::sleep(Duration::from_millis(delay));
            world = world::lock();
        }
        world.retain(ordinal)?;
        put(context, world::context_handle(ordinal))
    }

    fn cuDevicePrimaryCtxRelease_v2(device: c_int) Driver |world, _device| {
        let ordinal = world.device(device)?;
        world.release(ordinal)
    }

    fn cuDevicePrimaryCtxGetState(device: c_int, flags: *mut c_uint, active: *mut c_int) Driver |world, _device| {
        let ordinal = world.device(device)?;
        put(flags, 0)?;
        put(active, c_int::from(world.devices[ordinal].retained > 0))
    }

    fn cuCtxGetCurrent(context: *mut usize) Driver |world, _device| {
        put(context, world.current().map_or(0, world::context_handle))
    }

    fn cuCtxSetCurrent(context: usize) Driver |world, _device| {
        if context == 0 {
            world.set_current(None);
            return Ok(());
        }
        let ordinal = world::context_device(context).filter(|&d| d < world.devices.len());
        let ordinal = ordinal.ok_or(status::INVALID_CONTEXT)?;
        if world.devices[ordinal].retained == 0 {
            world.violation(format!("the context of device {ordinal} is gone"));
            return Err(status::CONTEXT_IS_DESTROYED);
        }
        world.set_current(Some(ordinal));
        Ok(())
    }

    fn cuCtxGetDevice(into: *mut c_int) Driver |world, _device| {
        put(into, world.current().ok_or(status::INVALID_CONTEXT)? as c_int)
    }

    fn cuCtxSynchronize() Context |world, device| {
        let points = world.tails(device);
        streams::wait_for(world, device, &points)
    }

    fn cuMemGetInfo_v2(free: *mut usize, total: *mut usize) Context |world, device| {
        let memory = world.config.memory;
        put(free, (memory - world.devices[device].used) as usize)?;
        put(total, memory as usize)
    }

    fn cuMemAlloc_v2(pointer: *mut u64, bytes: usize) Context |world, device| {
        check(!pointer.is_null(), status::INVALID_VALUE)?;
        let start = world.allocate(device, bytes as u64)?;
        put(pointer, start)
    }

    fn cuMemFree_v2(pointer: u64) Context |world, device| {
        world.free(pointer)
    }

    fn cuMemHostRegister_v2(pointer: *mut c_void, bytes: usize, flags: c_uint) Context |world, device| {
        world.register(device, pointer as usize, bytes, flags)
    }

    fn cuMemHostUnregister(pointer: *mut c_void) Context |world, device| {
        world.unregister(pointer as usize)
    }

    fn cuMemcpyHtoDAsync_v2(to: u64, from: *const c_void, bytes: usize, stream: usize) Context |world, device| {
        let stream = world.stream(stream as u64, device)?;
        if bytes == 0 {
            return Ok(());
        }
        let (mut world, copy) = to_device(world, device, to, from as usize, bytes, false)?;
        world.enqueue_to_device(stream, copy);
        Ok(())
    }

    fn cuMemcpyDtoHAsync_v2(to: *mut c_void, from: u64, bytes: usize, stream: usize) Context |world, device| {
        let stream = world.stream(stream as u64, device)?;
        if bytes == 0 {
            return Ok(());
        }
        let len = bytes as u64;
        let from = world.range(device, from, len)?;
        if from.0.digest().is_some() {
            world.violation("a device that discards its bytes cannot give them back".into());
            return Err(status::NOT_SUPPORTED);
        }
        let registration = world.registration_of(to as usize, bytes)?;
        world.counts.back_copies += 1;
        world.counts.back_bytes += len;
        let work = Work::ToHost { to: to as usize, registration, from, len };
        let point = world.enqueue(stream, Vec::new(), work);
        match registration {
            Some(_) => Ok(()),
            // To ordinary memory the call returns when the copy is done.
            None => streams::wait_for(world, device, &[point]),
        }
    }

    fn cuMemsetD8Async(to: u64, value: c_uchar, bytes: usize, stream: usize) Context |world, device| {
        let stream = world.stream(stream as u64, device)?;
        if bytes == 0 {
            return Ok(());
        }
        let len = bytes as u64;
        let to = world.range(device, to, len)?;
        world.enqueue(stream, Vec::new(), Work::Fill { to, len, value });
        Ok(())
    }

    fn cuMemcpyBatchAsync(
        to: *const u64, from: *const u64, sizes: *const usize, count: usize,
        attributes: *const Attributes, firsts: *const usize, kinds: usize,
        failed: *mut usize, stream: usize
    ) Context |world, device| {
        check(world.config.version >= 12080, status::NOT_SUPPORTED)?;
        // SAFETY: as promised by the caller of the export.
        let batch = unsafe { Batch::new(to, from, sizes, count, attributes, firsts, kinds) };
        let mut at = usize::MAX;
        let outcome = batch.and_then(|batch| batch.enqueue(world, device, stream, &mut at));
        if outcome.is_err() && !failed.is_null() {
            put(failed, at)?;
        }
        outcome
    }

    fn cuMemcpyBatchAsync_v2(
        to: *const u64, from: *const u64, sizes: *const usize, count: usize,
        attributes: *const Attributes, firsts: *const usize, kinds: usize,
        stream: usize
    ) Context |world, device| {
        check(world.config.version >= 13000, status::NOT_SUPPORTED)?;
        // SAFETY: as promised by the caller of the export.
        let batch = unsafe { Batch::new(to, from, sizes, count, attributes, firsts, kinds) };
        batch?.enqueue(world, device, stream, &mut 0)
    }

    fn cuStreamCreate(stream: *mut u64, flags: c_uint) Context |world, device| {
        check(!stream.is_null() && flags <= 1, status::INVALID_VALUE)?;
        let id = world.create_stream(device, flags == 0);
        put(stream, id)
    }

    fn cuStreamSynchronize(stream: usize) Context |world, device| {
        let stream = world.stream(stream as u64, device)?;
        let points = world.tail(stream);
        streams::wait_for(world, device, &points)
    }

    fn cuStreamQuery(stream: usize) Context |world, device| {
        let stream = world.stream(stream as u64, device)?;
        let done = world.tail(stream).iter().all(|point| world.reached(point));
        check(done, status::NOT_READY)
    }

    fn cuStreamWaitEvent(stream: usize, event: usize, flags: c_uint) Context |world, device| {
        check(flags == 0, status::INVALID_VALUE)?;
        let stream = world.stream(stream as u64, device)?;
        // An event that was never recorded holds nobody up.
        if let Some(point) = world.recorded(event as u64)? {
            world.enqueue(stream, vec![point], Work::Mark);
        }
        Ok(())
    }

    fn cuStreamDestroy_v2(stream: usize) Context |world, device| {
        let stream = world.stream(stream as u64, device)?;
        check(!world.is_legacy(stream), status::INVALID_HANDLE)?;
        world.destroy_stream(stream);
        Ok(())
    }

    fn cuEventCreate(event: *mut u64, flags: c_uint) Context |world, device| {
        check(!event.is_null() && flags & !7 == 0, status::INVALID_VALUE)?;
        let id = world.create_event(device);
        put(event, id)
    }

    fn cuEventRecord(event: usize, stream: usize) Context |world, device| {
        let stream = world.stream(stream as u64, device)?;
        world.record(event as u64, stream)
    }

    fn cuEventQuery(event: usize) Context |world, device| {
        let point = world.recorded(event as u64)?;
        check(point.is_none_or(|point| world.reached(&point)), status::NOT_READY)
    }

    fn cuEventSynchronize(event: usize) Context |world, device| {
        let point = world.recorded(event as u64)?;
        streams::wait_for(world, device, point.as_slice())
    }

    fn cuEventDestroy_v2(event: usize) Context |world, device| {
        world.destroy_event(event as u64)
    }

    fn cuPointerGetAttribute(value: *mut c_void, attribute: c_uint, pointer: u64) Driver |world, _device| {
        let found = world.find(pointer, 1);
        let registered = |r: &&host::Registration| {
            (r.start as u64..(r.start + r.len) as u64).contains(&pointer)
        };
        let host = world.registrations.iter().find(registered);
        let (start, len, device, kind) = match (found, host) {
            (Some((a, _)), _) => (a.start, a.len as usize, a.device, 2),
            (None, Some(r)) => (r.start as u64, r.len, r.device, 1),
            (None, None) => return Err(status::INVALID_VALUE),
        };
        match attribute {
            1 => put(value.cast(), world::context_handle(device)),
            2 => put(value.cast::<c_uint>(), kind),
            9 => put(value.cast(), device as c_int),
            11 => put(value.cast(), start),
            12 => put(value.cast(), len),
            _ => Err(status::INVALID_VALUE),
        }
    }
}

const NO_DEVICE: Status = 100;

/// Writes an answer to where the caller wants it.
fn put<T>(place: *mut T, value: T) -> Result<(), Status> {
    check(!place.is_null(), status::INVALID_VALUE)?;
    // SAFETY: not null, and by the C interface a place for a value of this type.
    unsafe { place.write_unaligned(value) };
    Ok(())
}

/// Writes a C string, cut to the caller's length.
fn put_text(place: *mut c_char, len: c_int, text: &str) -> Result<(), Status> {
    check(!place.is_null() && len > 0, status::INVALID_VALUE)?;
    let count = text.len().min(len as usize - 1);
    // SAFETY: by the C interface the place has `len` bytes, and `count` is smaller.
    unsafe {
        place.copy_from_nonoverlapping(text.as_ptr().cast(), count);
        place.add(count).write(0);
    }
    Ok(())
}

/// Name and explanation of some codes, among them one that no header knows.
fn describe(error: Status) -> Result<(&'static std::ffi::CStr, &'static std::ffi::CStr), Status> {
    Ok(match error {
        0 => (c"CUDA_SUCCESS", c"no error"),
        1 => (c"CUDA_ERROR_INVALID_VALUE", c"invalid argument"),
        2 => (c"CUDA_ERROR_OUT_OF_MEMORY", c"out of memory"),
        100 => (c"CUDA_ERROR_NO_DEVICE", c"no CUDA-capable device"),
        700 => (c"CUDA_ERROR_ILLEGAL_ADDRESS", c"illegal memory access"),
        4242 => (c"CUDA_ERROR_OF_TOMORROW", c"a code that is not known yet"),
        _ => return Err(status::INVALID_VALUE),
    })
}

impl World {
    fn device(&self, ordinal: c_int) -> Result<usize, Status> {
        let ordinal = usize::try_from(ordinal).map_err(|_| status::INVALID_DEVICE)?;
        check(ordinal < self.devices.len(), status::INVALID_DEVICE)?;
        Ok(ordinal)
    }
}
