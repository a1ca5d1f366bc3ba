//! Starting the device while the model is opened.

use std::sync::Arc;
use std::sync::mpsc::{self, Receiver, RecvTimeoutError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use super::Engine;
use crate::device::DeviceId;
use crate::device::cuda::{CudaDevice, Platform};
use crate::error::{Error, ErrorKind, Result};
use crate::options::{DeviceChoice, Route, RouteChoice};
use crate::report::{Fallback, Report};
use crate::route::Meanwhile;

/// A device that is there, or on its way.
pub(super) enum Start {
    Host,
    Up(Arc<CudaDevice>),
    Starting(Starting),
}

/// The driver's initialisation on a thread of its own: 0.3 s for one GPU, up to 20 s for many.
pub(super) struct Starting {
    ordinal: u32,
    may_be_host: bool,
    thread: Option<JoinHandle<()>>,
    said: Receiver<Said>,
}

/// What the driver's thread says.
enum Said {
    /// The library is there.
    Found,
    /// The device is, or is not; after how long.
    Up(Result<Arc<CudaDevice>>, Duration),
}

/// How long a waiter sleeps before it looks whether the load was cancelled.
const CANCEL_POLL: Duration = Duration::from_millis(20);

impl Start {
    /// Looks for the driver where the choice needs one, and starts it if it is not up, but calls
    /// `first` before that.
    pub(super) fn begin(
        engine: &Engine,
        device: DeviceChoice,
        route: RouteChoice,
        report: &mut Report,
        first: impl FnOnce(),
    ) -> Result<Self> {
        let may_be_host = device == DeviceChoice::Auto && route == RouteChoice::Auto;
        let host_asked = device == DeviceChoice::Auto && route == RouteChoice::Forced(Route::Host);
        if device == DeviceChoice::Host || host_asked {
            report.decide("device", DeviceId::Host, "asked for");
            return Ok(Self::Host);
        }
        let find = engine.find_driver();
        // Only a library that is there already can have given the thread a device.
        if engine.has_driver() {
            let found = find().and_then(|platform| Self::of_thread(platform, device));
            return match found {
                Ok((platform, ordinal)) => {
                    if let Some(up) = platform.retained(ordinal) {
                        let up = up?;
                        decide(report, ordinal, device);
                        return Ok(Self::Up(up));
                    }
                    first();
                    Self::on_a_thread(move || Ok(platform), ordinal, device, may_be_host, report)
                }
                Err(error) if may_be_host => Ok(Self::host_instead(error, report)),
                Err(error) => Err(error),
            };
        }
        let ordinal = match device {
            DeviceChoice::Cuda(ordinal) => ordinal,
            _ => 0,
        };
        first();
        Self::on_a_thread(find, ordinal, device, may_be_host, report)
    }

    fn of_thread(platform: Arc<Platform>, device: DeviceChoice) -> Result<(Arc<Platform>, u32)> {
        let ordinal = match device {
            DeviceChoice::Cuda(ordinal) => ordinal,
            _ => platform.current_ordinal()?,
        };
        Ok((platform, ordinal))
    }

    fn on_a_thread(
        find: impl FnOnce() -> Result<Arc<Platform>> + Send + 'static,
        ordinal: u32,
        asked: DeviceChoice,
        may_be_host: bool,
        report: &mut Report,
    ) -> Result<Self> {
        let (sender, said) = mpsc::sync_channel(2);
        let start = move || {
            let began = Instant::now();
            // The other side may have given up waiting.
            let device = find().and_then(|platform| {
                let _ = sender.send(Said::Found);
                platform.device(ordinal)
            });
            let _ = sender.send(Said::Up(device, began.elapsed()));
        };
        let thread = std::thread::Builder::new().name("weightlift-driver".to_owned()).spawn(start);
        let thread = thread.map_err(|error| {
            Error::new(ErrorKind::Io, "cannot start a thread for the driver").because(error)
        })?;
        decide(report, ordinal, asked);
        Ok(Self::Starting(Starting { ordinal, may_be_host, thread: Some(thread), said }))
    }

    /// Where tensors will be, if the device comes up.
    pub(super) fn id(&self) -> DeviceId {
        match self {
            Self::Host => DeviceId::Host,
            Self::Up(device) => DeviceId::Cuda(device.ordinal()),
            Self::Starting(starting) => DeviceId::Cuda(starting.ordinal),
        }
    }

    /// Waits until it is known whether the driver's library is there, a millisecond at most,
    /// where the host would be taken instead: nothing is read for nothing then.
    pub(super) fn find(&mut self, report: &mut Report) {
        let Self::Starting(starting) = self else { return };
        if starting.may_be_host
            && let Ok(Said::Up(Err(error), _)) = starting.said.recv()
        {
            *self = Self::host_instead(error, report);
        }
    }

    /// The device, `None` for the host; waits for it, and says so to `meanwhile`.
    pub(super) fn finish(
        &mut self,
        cancelled: &dyn Fn() -> bool,
        meanwhile: &Meanwhile<'_>,
        report: &mut Report,
    ) -> Result<Option<Arc<CudaDevice>>> {
        let mut starting = match std::mem::replace(self, Self::Host) {
            Self::Host => return Ok(None),
            Self::Up(device) => {
                *self = Self::Up(device.clone());
                return Ok(Some(device));
            }
            Self::Starting(starting) => starting,
        };
        let idle_before = meanwhile.idle();
        let (device, took) = loop {
            match starting.said.recv_timeout(CANCEL_POLL) {
                Ok(Said::Found) => {}
                Ok(Said::Up(device, took)) => break (device, took),
                Err(RecvTimeoutError::Timeout) if cancelled() => {
                    // The driver cannot be interrupted. Its thread goes on by itself, and what
                    // it starts is the loader's.
                    starting.thread = None;
                    return Err(Error::new(ErrorKind::Cancelled, "the load was cancelled"));
                }
                Err(RecvTimeoutError::Timeout) => meanwhile.wait(),
                Err(RecvTimeoutError::Disconnected) => {
                    return Err(Error::new(ErrorKind::Internal, "the driver's thread died"));
                }
            }
        };
        report.seconds.driver = took.as_secs_f64();
        let waited = meanwhile.idle().saturating_sub(idle_before).min(took);
        report.seconds.driver_wait = waited.as_secs_f64();
        match device {
            Ok(device) => {
                *self = Self::Up(device.clone());
                Ok(Some(device))
            }
            Err(error) if starting.may_be_host => {
                Self::host_instead(error, report);
                Ok(None)
            }
            Err(error) => Err(error),
        }
    }

    /// `auto` where there is no usable GPU. No driver and no device are ordinary; anything
    /// else is a fallback.
    fn host_instead(error: Error, report: &mut Report) -> Self {
        report.decide("device", DeviceId::Host, error.message());
        if !matches!(error.kind(), ErrorKind::NoDriver | ErrorKind::NoDevice) {
            report.fallbacks.push(Fallback {
                from: "cuda".to_owned(),
                to: "host".to_owned(),
                reason: error.to_string(),
                bytes: 0,
            });
        }
        Self::Host
    }
}

fn decide(report: &mut Report, ordinal: u32, asked: DeviceChoice) {
    let reason = match asked {
        DeviceChoice::Cuda(_) => "asked for",
        _ => "the calling thread's current CUDA device, or the first",
    };
    report.decide("device", DeviceId::Cuda(ordinal), reason);
}

impl Drop for Starting {
    fn drop(&mut self) {
        // A process that ends while the driver starts in it may crash on the way out.
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}
