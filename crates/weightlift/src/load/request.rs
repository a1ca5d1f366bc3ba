//! What a load is asked for.

use std::fmt;
use std::sync::Arc;

use weightlift_index::TensorInfo;

use super::{CancelToken, Destination, Wanted};
use crate::error::Result;
use crate::options::{DeviceChoice, Options, ReadingThreads, RouteChoice};
use crate::source::OpenOptions;
use crate::verify::Manifest;

/// What to load, where to, and how. Built by chaining; everything has a default.
///
/// ```
/// use weightlift::{DeviceChoice, Request};
/// let request = Request::new()
///     .device(DeviceChoice::Host)
///     .tensors(["model.layers.0.*"])
///     .on_event(|event| eprintln!("{event:?}"));
/// ```
#[derive(Default)]
pub struct Request<'a> {
    device: Option<DeviceChoice>,
    route: Option<RouteChoice>,
    reading_threads: Option<ReadingThreads>,
    pin_host: Option<bool>,
    pub(super) apart: bool,
    patterns: Vec<String>,
    pub(super) open: OpenOptions,
    pub(super) verify: Option<Arc<Manifest>>,
    pub(super) cancel: CancelToken,
    pub(super) provide: Option<Box<ProvideFor<'a>>>,
    pub(super) on_event: Option<Box<Tell<'a>>>,
}

/// Provides memory for what is wanted.
type ProvideFor<'a> = dyn FnMut(&Wanted<'_>) -> Result<Destination> + 'a;

/// Tells what happens.
type Tell<'a> = dyn FnMut(Event<'_>) + 'a;

/// What happens in a load, told on the calling thread.
#[derive(Debug, Clone, Copy)]
#[non_exhaustive]
pub enum Event<'a> {
    /// More bytes are in their destination.
    Landed {
        /// Bytes so far.
        bytes: u64,
        /// Bytes in all.
        total: u64,
    },
    /// All bytes of a tensor are in their destination. Whether its file stayed the same is
    /// known only when the load returns.
    Ready {
        /// The tensor.
        tensor: &'a TensorInfo,
    },
    /// Nothing new: told every 20 ms or so while the calling thread waits, so that whoever must
    /// look at something now and then, at signals for example, can cancel the load.
    Waiting,
}

impl<'a> Request<'a> {
    /// All tensors, with the loader's settings.
    pub fn new() -> Self {
        Self::default()
    }

    /// Where tensors go; the loader's setting otherwise.
    pub fn device(mut self, device: DeviceChoice) -> Self {
        self.device = Some(device);
        self
    }

    /// The way that bytes take; the loader's setting otherwise. A forced route never falls
    /// back: it works or it is an error.
    pub fn route(mut self, route: RouteChoice) -> Self {
        self.route = Some(route);
        self
    }

    /// How many threads read; the loader's setting otherwise.
    pub fn reading_threads(mut self, threads: ReadingThreads) -> Self {
        self.reading_threads = Some(threads);
        self
    }

    /// Whether host memory that weightlift allocates for tensors is pinned; the loader's setting
    /// otherwise. It is or the load is an error: see [`Options::pin_host`].
    pub fn pin_host(mut self, pin: bool) -> Self {
        self.pin_host = Some(pin);
        self
    }

    /// Whether memory that weightlift allocates is each storage's own, so that it goes with the
    /// storage's last tensor, and not with the last of the load. It costs a call of the driver, or
    /// whole pages, for each storage: for those who keep some tensors and let go of others. Such
    /// memory cannot be pinned: [`pin_host`](Self::pin_host) beside it is an error of kind
    /// `InvalidOption`.
    pub fn apart(mut self, apart: bool) -> Self {
        self.apart = apart;
        self
    }

    /// Only tensors whose names match one of these shell patterns (`*`, `?`, `[a-z]`, `{a,b}`;
    /// `*` matches dots and slashes too), or are one of them to the letter. All tensors where
    /// none is given; a pattern that matches nothing is an error.
    pub fn tensors(mut self, patterns: impl IntoIterator<Item = impl Into<String>>) -> Self {
        self.patterns.extend(patterns.into_iter().map(Into::into));
        self
    }

    /// How the model's files are opened.
    pub fn open_options(mut self, options: OpenOptions) -> Self {
        self.open = options;
        self
    }

    /// Compares every tensor with this manifest while it is read, in the memory that it is read
    /// into: of a load to a device that is staging memory, before the copy to the device. It
    /// costs the readers time, `seconds.verify` of the report, and no second look at the files.
    ///
    /// The load is an error of kind `Mismatch` if a tensor asked for is not in the manifest, is of
    /// another type or shape there, or has other bytes; and if, where all tensors are asked for,
    /// the manifest names one that the model has not. Then it hands out none; memory of the
    /// caller's may have been written to.
    pub fn verify(mut self, manifest: Arc<Manifest>) -> Self {
        self.verify = Some(manifest);
        self
    }

    /// A token that stops the load.
    pub fn cancel(mut self, token: &CancelToken) -> Self {
        self.cancel = token.clone();
        self
    }

    /// Memory of the caller's: asked for once per storage, on the calling thread, in the order
    /// in which the bytes arrive. Without it weightlift allocates.
    pub fn destinations(
        mut self,
        provide: impl FnMut(&Wanted<'_>) -> Result<Destination> + 'a,
    ) -> Self {
        self.provide = Some(Box::new(provide));
        self
    }

    /// Tells what happens, on the calling thread.
    pub fn on_event(mut self, tell: impl FnMut(Event<'_>) + 'a) -> Self {
        self.on_event = Some(Box::new(tell));
        self
    }

    pub(crate) fn patterns(&self) -> &[String] {
        &self.patterns
    }

    pub(crate) fn device_or(&self, options: &Options) -> DeviceChoice {
        self.device.unwrap_or(options.device)
    }

    pub(crate) fn route_or(&self, options: &Options) -> RouteChoice {
        self.route.unwrap_or(options.route)
    }

    pub(super) fn pin_host_or(&self, options: &Options) -> bool {
        self.pin_host.unwrap_or(options.pin_host)
    }

    pub(crate) fn reading_threads_or(&self, options: &Options) -> ReadingThreads {
        self.reading_threads.unwrap_or(options.reading_threads)
    }
}

impl fmt::Debug for Request<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Request")
            .field("device", &self.device)
            .field("route", &self.route)
            .field("reading_threads", &self.reading_threads)
            .field("pin_host", &self.pin_host)
            .field("tensors", &self.patterns)
            .field("verify", &self.verify.is_some())
            .finish_non_exhaustive()
    }
}
