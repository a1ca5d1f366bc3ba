//! The copy stream: copies out of staging blocks, single or batched, and their ends.
#![allow(unsafe_code)] // calls the driver

use std::ffi::{c_int, c_void};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use weightlift_cuda_sys::{
    CU_EVENT_DISABLE_TIMING, CU_MEMCPY_SRC_ACCESS_ORDER_STREAM, CU_STREAM_NON_BLOCKING, CuEvent,
    CuMemLocation, CuMemcpyAttributes, CuStatus, CuStream, Driver,
};

use super::CudaDevice;
use super::driver::forked;
use crate::device::{CopyQueue, Device, DeviceCopy};
use crate::error::Result;
use crate::memory::{Completion, HostRange, SubmitError};

/// Copies of one batched call: enough that the call's own cost does not show, few enough that
/// the first ones start early.
const BATCH: usize = 1024;

/// Fewer copies than this go one by one: a batch has a cost of its own.
const SMALLEST_BATCH: usize = 4;

/// How long a waiter asks without sleeping: longer than a block of 16 MiB takes over a PCIe 5
/// bus (0.3 ms). It yields between questions, so that readers are not kept from the processor.
const ASK: Duration = Duration::from_micros(500);

/// How long it lets others go first between two questions: each one takes the driver's lock,
/// which those who submit copies need.
const BETWEEN: Duration = Duration::from_micros(5);

/// How long it pauses between questions after that. Asking rather than sleeping in the driver:
/// an event that wakes sleepers raises an interrupt each, and waking takes 0.05 ms and more, in
/// which the bus may run dry.
const PAUSE: Duration = Duration::from_micros(50);

/// A stream that does not wait for the legacy default stream.
#[derive(Debug)]
pub(super) struct Stream {
    device: Arc<CudaDevice>,
    handle: CuStream,
    batch: Option<Batch>,
    /// Held from a block's first copy to its event, so that the event ends with that block.
    submitting: Mutex<()>,
    calls: AtomicU64,
}

/// The batched copy, in the two forms that drivers have.
#[derive(Debug, Clone, Copy)]
pub(super) enum Batch {
    /// Since 13.0.
    Plain(BatchPlain),
    /// Since 12.8: also tells which copy failed.
    WithIndex(BatchWithIndex),
}

type BatchPlain = unsafe extern "C" fn(
    *mut u64,
    *mut u64,
    *mut usize,
    usize,
    *mut CuMemcpyAttributes,
    *mut usize,
    usize,
    CuStream,
) -> CuStatus;

type BatchWithIndex = unsafe extern "C" fn(
    *mut u64,
    *mut u64,
    *mut usize,
    usize,
    *mut CuMemcpyAttributes,
    *mut usize,
    usize,
    *mut usize,
    CuStream,
) -> CuStatus;

/// The batched copy that a driver of that version has.
pub(super) fn batch(driver: &Driver, version: c_int) -> Option<Batch> {
    // A symbol may be there before the function works: the version decides too.
    match (driver.cuMemcpyBatchAsync_v2, driver.cuMemcpyBatchAsync) {
        (Some(function), _) if version >= 13000 => Some(Batch::Plain(function)),
        (_, Some(function)) if version >= 12080 => Some(Batch::WithIndex(function)),
        _ => None,
    }
}

impl Stream {
    /// The device's stream that is ready, or a new one.
    pub(super) fn new(device: Arc<CudaDevice>) -> Result<Self> {
        let handle = match device.take_stream() {
            Some(handle) => handle,
            None => create(&device)?,
        };
        let batch = batch(device.driver, device.version);
        let (submitting, calls) = (Mutex::new(()), AtomicU64::new(0));
        Ok(Self { device, handle, batch, submitting, calls })
    }

    fn copy(&self, source: HostRange, copies: &[DeviceCopy]) -> Result<()> {
        match self.batch {
            Some(batch) if copies.len() >= SMALLEST_BATCH => {
                copies.chunks(BATCH).try_for_each(|chunk| self.copy_batch(batch, source, chunk))
            }
            _ => copies.iter().try_for_each(|copy| self.copy_one(source, copy)),
        }
    }

    fn copy_one(&self, source: HostRange, copy: &DeviceCopy) -> Result<()> {
        let from = address(source, copy) as *const c_void;
        self.calls.fetch_add(1, Ordering::Relaxed);
        // SAFETY: the source is a staging block, which stays as it is until the copy is over
        // (the contract of `submit`); the driver checks the destination.
        let status = unsafe {
            (self.device.driver.cuMemcpyHtoDAsync_v2)(copy.to, from, copy.length, self.handle)
        };
        self.device.check(status, "cuMemcpyHtoDAsync")
    }

    fn copy_batch(&self, batch: Batch, source: HostRange, copies: &[DeviceCopy]) -> Result<()> {
        let mut to: Vec<u64> = copies.iter().map(|copy| copy.to).collect();
        let mut from: Vec<u64> = copies.iter().map(|copy| address(source, copy) as u64).collect();
        let mut lengths: Vec<usize> = copies.iter().map(|copy| copy.length).collect();
        let nowhere = CuMemLocation { kind: 0, id: 0 };
        let mut attributes = CuMemcpyAttributes {
            src_access_order: CU_MEMCPY_SRC_ACCESS_ORDER_STREAM,
            src_loc_hint: nowhere,
            dst_loc_hint: nowhere,
            flags: 0,
        };
        let (mut first, mut failed_at) = (0, usize::MAX);
        self.calls.fetch_add(1, Ordering::Relaxed);
        let (to, from, lengths) = (to.as_mut_ptr(), from.as_mut_ptr(), lengths.as_mut_ptr());
        let (count, stream) = (copies.len(), self.handle);
        // SAFETY: the arrays have `count` entries each and live through the call, which copies
        // what it needs of them; the sources are as in `copy_one`.
        let status = unsafe {
            match batch {
                Batch::Plain(function) => {
                    function(to, from, lengths, count, &mut attributes, &mut first, 1, stream)
                }
                Batch::WithIndex(function) => function(
                    to,
                    from,
                    lengths,
                    count,
                    &mut attributes,
                    &mut first,
                    1,
                    &mut failed_at,
                    stream,
                ),
            }
        };
        self.device.check(status, "cuMemcpyBatchAsync")
    }

    fn record(&self) -> Result<Event> {
        let mut handle = CuEvent::NULL;
        // SAFETY: the pointer is valid for the call; the context is current at the caller's.
        let status =
            unsafe { (self.device.driver.cuEventCreate)(&mut handle, CU_EVENT_DISABLE_TIMING) };
        self.device.check(status, "cuEventCreate")?;
        let event = Event { device: self.device.clone(), handle };
        // SAFETY: both handles are ours and alive.
        let status = unsafe { (self.device.driver.cuEventRecord)(handle, self.handle) };
        self.device.check(status, "cuEventRecord")?;
        Ok(event)
    }
}

fn address(source: HostRange, copy: &DeviceCopy) -> usize {
    debug_assert!(copy.from + copy.length <= source.length);
    source.pointer.as_ptr() as usize + copy.from
}

impl CopyQueue for Stream {
    fn wait_for(&self, event: u64) -> Result<()> {
        let _current = self.device.enter()?;
        let event = CuEvent(event as *mut c_void);
        // SAFETY: the caller gave the handle as one of a live event (`Destination::new`).
        let status = unsafe { (self.device.driver.cuStreamWaitEvent)(self.handle, event, 0) };
        self.device.check(status, "cuStreamWaitEvent")
    }

    fn submit(
        &self,
        source: HostRange,
        copies: &[DeviceCopy],
    ) -> Result<Arc<dyn Completion>, SubmitError> {
        let nothing_started = |error| SubmitError { error, idle: true };
        let _current = self.device.enter().map_err(nothing_started)?;
        let _submitting = self.submitting.lock().unwrap_or_else(PoisonError::into_inner);
        match self.copy(source, copies).and_then(|()| self.record()) {
            Ok(event) => Ok(Arc::new(event)),
            // Some copies may be under way without an event behind them.
            Err(error) => Err(SubmitError { error, idle: self.drain().is_ok() }),
        }
    }

    fn drain(&self) -> Result<()> {
        let _current = self.device.enter()?;
        // SAFETY: the handle is ours and alive.
        let status = unsafe { (self.device.driver.cuStreamSynchronize)(self.handle) };
        self.device.check(status, "cuStreamSynchronize")
    }

    fn calls(&self) -> u64 {
        self.calls.load(Ordering::Relaxed)
    }
}

impl Drop for Stream {
    fn drop(&mut self) {
        // Whoever has it next waits behind what may be left in it.
        self.device.keep_stream(self.handle);
    }
}

/// A stream that is ready: the driver sets up what it copies with at the first copy, which then
/// takes a millisecond longer. That belongs to starting the device, so it is done there.
pub(super) fn create_ready(device: &CudaDevice) -> Result<CuStream> {
    let handle = create(device)?;
    let made = first_copy(device, handle);
    if made.is_err() {
        destroy(device, handle);
    }
    made.map(|()| handle)
}

fn create(device: &CudaDevice) -> Result<CuStream> {
    let _current = device.enter()?;
    let mut handle = CuStream::NULL;
    // SAFETY: the pointer is valid for the call; the context is current.
    let status = unsafe { (device.driver.cuStreamCreate)(&mut handle, CU_STREAM_NON_BLOCKING) };
    device.check(status, "cuStreamCreate")?;
    Ok(handle)
}

fn first_copy(device: &CudaDevice, stream: CuStream) -> Result<()> {
    let _current = device.enter()?;
    let bytes = [0_u8; 256];
    let mut memory = 0;
    // SAFETY: the pointer is valid for the call; the context is current.
    let status = unsafe { (device.driver.cuMemAlloc_v2)(&mut memory, bytes.len()) };
    device.check(status, "cuMemAlloc")?;
    let from = bytes.as_ptr().cast();
    // SAFETY: both ranges are as long as said; the bytes, which are not pinned, are read when
    // the call returns.
    let copied = unsafe { (device.driver.cuMemcpyHtoDAsync_v2)(memory, from, bytes.len(), stream) };
    // SAFETY: the stream is ours and alive.
    let ended = unsafe { (device.driver.cuStreamSynchronize)(stream) };
    // SAFETY: allocated above; not freed while the copy may be under way.
    let freed = ended.is_success() && unsafe { (device.driver.cuMemFree_v2)(memory) }.is_success();
    if !freed {
        device.give_up_bytes(bytes.len() as u64);
    }
    device.check(copied, "cuMemcpyHtoDAsync")?;
    device.check(ended, "cuStreamSynchronize")
}

/// Destroys a stream; work that is left in it runs on.
pub(super) fn destroy(device: &CudaDevice, stream: CuStream) {
    let destroyed = device.enter().is_ok_and(|_current| {
        // SAFETY: created by `create`, destroyed once.
        let status = unsafe { (device.driver.cuStreamDestroy_v2)(stream) };
        status.is_success() || status == CuStatus::DEINITIALIZED
    });
    if !destroyed {
        device.give_up_handle();
    }
}

/// The end of a block's copies.
#[derive(Debug)]
struct Event {
    device: Arc<CudaDevice>,
    handle: CuEvent,
}

impl Completion for Event {
    fn wait(&self) -> Result<()> {
        let _current = self.device.enter()?;
        let started = Instant::now();
        loop {
            // SAFETY: the handle is ours and alive.
            match unsafe { (self.device.driver.cuEventQuery)(self.handle) } {
                CuStatus::NOT_READY if started.elapsed() < ASK => {
                    let asked = Instant::now();
                    while asked.elapsed() < BETWEEN {
                        std::thread::yield_now();
                    }
                }
                CuStatus::NOT_READY => std::thread::sleep(PAUSE),
                status => return self.device.check(status, "cuEventQuery"),
            }
        }
    }
}

impl Drop for Event {
    fn drop(&mut self) {
        if forked() {
            return;
        }
        let destroyed = self.device.enter().is_ok_and(|_current| {
            // SAFETY: created by `record`; an event that is not over yet may be destroyed.
            let status = unsafe { (self.device.driver.cuEventDestroy_v2)(self.handle) };
            status.is_success() || status == CuStatus::DEINITIALIZED
        });
        if !destroyed {
            self.device.give_up_handle();
        }
    }
}

/// Copies device memory into ordinary host memory and waits for it.
pub(super) fn read_back(device: &CudaDevice, pointer: u64, bytes: &mut [u8]) -> Result<()> {
    let _current = device.enter()?;
    let stream = CuStream::NULL;
    // SAFETY: the buffer is valid for writes of its length until the synchronisation below;
    // into memory that is not pinned the copy has ended when the call returns.
    let status = unsafe {
        (device.driver.cuMemcpyDtoHAsync_v2)(
            bytes.as_mut_ptr().cast(),
            pointer,
            bytes.len(),
            stream,
        )
    };
    // SAFETY: the default stream always exists.
    let ended = unsafe { (device.driver.cuStreamSynchronize)(stream) };
    device.check(status, "cuMemcpyDtoHAsync").map_err(|error| error.with("device", device.id()))?;
    device.check(ended, "cuStreamSynchronize")
}
