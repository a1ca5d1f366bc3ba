//! Conducts a load: chooses, drives, counts, checks, and hands out tensors or nothing.

mod cancel;
mod count;
mod destination;
mod engine;
mod layout;
mod pinning;
mod request;
mod select;
mod staging;
mod start;

use std::cell::{OnceCell, RefCell};
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use weightlift_index::{Index, TensorInfo};

use crate::device::{CopyQueue, Device, DeviceId, Location};
use crate::error::{Error, ErrorKind, Result};
use crate::options::{DeviceChoice, DirectIo, ReadingThreads, Route, RouteChoice};
use crate::plan::{self, Geometry, Plan, PlannedStorage};
use crate::read::{Access, FileFacts};
use crate::report::{Fallback, Report};
use crate::route::{
    self, Cancelled, End, Job, Meanwhile, Measures, Prepare, Staged, Stop, Targets,
};
use crate::source::Model;
use crate::system::{self, Threads};
use crate::tensor::Tensor;
use crate::verify::Checks;

pub use cancel::CancelToken;
pub use destination::{Destination, Wanted};
pub(crate) use engine::Engine;
pub use request::{Event, Request};
pub(crate) use select::{bytes_of, select, storages_of};

use count::{count, note, sources_of};
use destination::HostTargets;
use staging::{Need, Staging};
use start::Start;

/// What a load brought.
#[derive(Debug)]
#[non_exhaustive]
pub struct Loaded {
    /// The tensors asked for, in the order of the model's index.
    pub tensors: Vec<Tensor>,
    /// How they came.
    pub report: Report,
}

impl Loaded {
    /// The tensor of this name.
    pub fn tensor(&self, name: &str) -> Option<&Tensor> {
        self.tensors.iter().find(|tensor| tensor.name() == name)
    }
}

/// What to load from.
pub(crate) enum From<'a> {
    Path(&'a Path),
    Opened(&'a Arc<Model>),
}

/// Opens the model, if it is not open, and loads from it.
pub(crate) fn load(engine: &Engine, from: From<'_>, mut request: Request<'_>) -> Result<Loaded> {
    let started = Instant::now();
    let mut report = Report { schema: 1, ..Report::default() };
    let options = &engine.options;
    let (asked, threads) = (request.route_or(options), request.reading_threads_or(options));
    let readers = route::readers(threads, system::processors());
    let mut pool = Threads::default();
    let device = request.device_or(options);
    let mut start = Start::begin(engine, device, asked, &mut report, || {
        // Fewer than wanted, or none, is seen to when they are needed.
        let _ = pool.start(if readers > 1 { readers } else { 0 });
    })?;
    route::choose(start.id(), asked, threads)?;
    if options.map_files {
        check_mapping(options.direct_io, &start)?;
    }
    let mut pinner = match request.pin_host_or(options) {
        true => Some(begin_to_pin(engine, &request, &start, threads)?),
        false => None,
    };

    // While the driver starts: open the model, and further down plan and begin to read.
    let (model, opened_before) = match from {
        From::Path(path) => {
            (Arc::new(Model::open_on(path, &request.open, &mut pool)?), Duration::ZERO)
        }
        From::Opened(model) => (model.clone(), model.open_time()),
    };
    let wanted = select(&model, request.patterns())?;
    if let Some(manifest) = &request.verify {
        manifest.check_tensors(model.index(), &wanted, request.patterns().is_empty())?;
    }
    start.find(&mut report);
    let bytes = bytes_of(&model, &wanted);
    let few = readers_of_its_disk(&model, &wanted, threads, readers);
    if let Some(few) = few {
        report.decide("readers", few, "the disk rotates");
    }
    let readers = few.unwrap_or(readers);
    let cancel = request.cancel.clone();
    let cancelled: Arc<Cancelled> = Arc::new(move || cancel.is_cancelled());
    let mut conductor = Conductor {
        engine,
        model: &model,
        wanted: &wanted,
        bytes,
        readers,
        threads: pool,
        request: &mut request,
        cancelled,
        report: &mut report,
    };
    // Each round that fails leaves less to try: half the staging memory, or another device.
    let ran = loop {
        let (route, why) = route::choose(start.id(), asked, threads)?;
        let ended = match start.id() {
            DeviceId::Host => conductor.load_to_host(pinner.as_mut()),
            DeviceId::Cuda(_) => conductor.load_to_device(&mut start, route, asked),
        };
        match ended? {
            Ended::Done(ran) => {
                let why = if ran.route == route { why } else { "nothing could be pinned" };
                conductor.report.decide("route", ran.route, why);
                break *ran;
            }
            Ended::Again => {}
        }
    };
    let mut touched = Vec::new();
    for source in sources_of(&ran.plan) {
        let source = &model.sources()[source];
        source.check_unchanged()?;
        if source.is_touched() {
            touched.push(source.name());
        }
    }
    if let Some(first) = touched.first() {
        let others = match touched.len() - 1 {
            0 => String::new(),
            others => format!(" and of {others} more"),
        };
        let why = format!("rights, owner or names of {first}{others} changed, the bytes did not");
        report.decide("sources", "unchanged", why);
    }

    report.devices = vec![start.id().to_string()];
    report.block_size = ran.plan.block_size;
    report.piece_size = ran.plan.piece_size;
    report.skipped_tensors = model.index().skipped_tensors;
    report.quarantined = engine.quarantined();
    for fallback in report.fallbacks.iter_mut().filter(|fallback| fallback.to == "host") {
        fallback.bytes = bytes;
    }
    if request.verify.is_some() {
        report.verified_tensors = wanted.len() as u64;
    }
    count(&mut report, &model, &ran);
    let since = |instant: Option<Instant>| {
        instant.map_or(0.0, |instant| instant.duration_since(started).as_secs_f64())
    };
    let seconds = &mut report.seconds;
    seconds.open = model.open_time().as_secs_f64();
    seconds.first_byte = since(ran.measures.first_landed);
    seconds.copy = match (ran.measures.first_submitted, ran.measures.last_landed) {
        (Some(first), Some(last)) => last.saturating_duration_since(first).as_secs_f64(),
        _ => 0.0,
    };
    let tensors = tensors(model.index(), &wanted, &ran);
    seconds.total = (started.elapsed() + opened_before).as_secs_f64();
    let counted = (seconds.total - seconds.driver_wait).max(f64::MIN_POSITIVE);
    report.bytes_per_second = report.bytes.delivered as f64 / counted;
    let reason = report.decisions.last().map_or("", |decision| &decision.reason);
    tracing::info!(
        route = report.route(),
        bytes = report.bytes.delivered,
        seconds = report.seconds.total,
        reason,
        "loaded"
    );
    Ok(Loaded { tensors, report })
}

/// Drives runs and tells the caller about them.
struct Conductor<'r, 'a> {
    engine: &'r Engine,
    model: &'r Model,
    wanted: &'r [usize],
    bytes: u64,
    readers: usize,
    /// Threads that may be there already.
    threads: Threads,
    request: &'r mut Request<'a>,
    cancelled: Arc<Cancelled>,
    report: &'r mut Report,
}

/// How a run ended that was no error.
enum Ended {
    Done(Box<Ran>),
    /// Something was refused that `auto` has an answer to: try again with what is known now.
    Again,
}

/// A run that brought everything.
struct Ran {
    plan: Arc<Plan>,
    route: Route,
    /// Where every planned storage is.
    locations: Vec<Location>,
    measures: Measures,
    /// Bytes, by source.
    delivered: Vec<u64>,
}

impl Conductor<'_, '_> {
    /// With a device that `pinner` starts, the memory is pinned as it fills.
    fn load_to_host(&mut self, pinner: Option<&mut Start>) -> Result<Ended> {
        let geometry = Geometry::for_host(&self.engine.options, self.readers);
        let plan = self.plan(geometry.block_size, geometry.piece_size);
        let by_storage = select::tensors_by_storage(self.model.index(), self.wanted, &plan);
        let allocating = Instant::now();
        let mut targets = match &mut self.request.provide {
            None => {
                let (index, quarantine) = (self.model.index(), &self.engine.quarantine);
                let available = system::available_memory().saturating_add(system::free_swap());
                match self.request.apart {
                    true => HostTargets::allocate_apart(index, &plan, quarantine, available)?,
                    false => HostTargets::allocate(index, &plan, quarantine, available)?,
                }
            }
            Some(provide) => {
                let mut provide = asking(&mut **provide, &by_storage, DeviceId::Host);
                HostTargets::provide(&plan, &mut provide)?
            }
        };
        self.report.seconds.allocate = allocating.elapsed().as_secs_f64();
        let readers = self.readers.min(plan.pieces.len());
        let end = End::InPlace(targets.places(&plan)?);
        let cancelled = self.cancelled.clone();
        let mut seconds = Report::default();
        let registrar = OnceCell::new();
        let (mut start, mut pinning) =
            pinner.and_then(|start| Some((start, targets.pinning(&plan)?))).unzip();
        let mut prepare = |meanwhile: &Meanwhile<'_>| -> Result<()> {
            let Some(start) = &mut start else { return Ok(()) };
            let device =
                start.finish(&*cancelled, meanwhile, &mut seconds).map_err(pinning::needed)?;
            let none = || Error::new(ErrorKind::NoDevice, "there is no device to pin memory for");
            let _ = registrar.set(device.ok_or_else(none)?.registrar());
            Ok(())
        };
        let mut arrived = |storage: usize, length: u64| match (&mut pinning, registrar.get()) {
            (Some(parts), Some(registrar)) => parts.landed(storage, length, &**registrar),
            _ => Ok(()),
        };
        let (result, measures, delivered) =
            self.run(&plan, readers, end, &by_storage, &mut prepare, &mut arrived);
        if let Some(parts) = &pinning {
            self.report.pinned_destination_bytes = parts.pinned();
            seconds.seconds.pin = parts.took().as_secs_f64();
        }
        self.report.take_start(seconds);
        result?;
        let locations = targets.into_locations();
        Ok(Ended::Done(Box::new(Ran { plan, route: Route::Host, locations, measures, delivered })))
    }

    fn load_to_device(
        &mut self,
        start: &mut Start,
        route: Route,
        asked: RouteChoice,
    ) -> Result<Ended> {
        let options = &self.engine.options;
        let cancelled = self.cancelled.clone();
        let need = Need {
            options,
            bytes: self.bytes,
            readers: self.readers,
            quarantine: &self.engine.quarantine,
            cancelled: &*cancelled,
        };
        let staging = &self.engine.staging;
        let (mut claim, route) = match route {
            Route::Pinned => match staging.to_be_pinned(&need, asked != RouteChoice::Auto) {
                Err(error)
                    if error.kind() == ErrorKind::PinFailed && asked == RouteChoice::Auto =>
                {
                    self.report.fallbacks.push(Fallback {
                        from: Route::Pinned.to_string(),
                        to: Route::Pageable.to_string(),
                        reason: error.to_string(),
                        bytes: self.bytes,
                    });
                    (staging.pageable(&need)?, Route::Pageable)
                }
                claim => (claim?, route),
            },
            _ => (staging.pageable(&need)?, route),
        };
        // The ring's memory is there sooner than the plan. Not for as many as there are: that would
        // be to wait for all of them.
        for _ in 0..self.readers {
            let ring = claim.ring.clone();
            self.threads.give(Box::new(move || ring.touch()));
        }
        // Of the ring as it is: another load may use it, or a larger one could not be pinned.
        let ring = claim.ring.clone();
        let geometry = Geometry::within(options, ring.block_size(), ring.blocks(), self.readers);
        let plan = self.plan(ring.block_size(), geometry.piece_size);
        let by_storage = select::tensors_by_storage(self.model.index(), self.wanted, &plan);
        let readers = geometry.readers.min(plan.pieces.len());

        let targets = Arc::new(Targets::new(plan.storages.len()));
        let end = End::Staged(Staged { ring: ring.clone(), targets: targets.clone() });
        let mut provide = self.request.provide.take();
        let apart = self.request.apart;
        let mut seconds = Report::default();
        let mut again = false;
        let mut prepare = |meanwhile: &Meanwhile<'_>| -> Result<()> {
            let Some(device) = start.finish(&*cancelled, meanwhile, &mut seconds)? else {
                again = true;
                return Err(Error::new(ErrorKind::NoDevice, "host memory is taken instead"));
            };
            let pinning = Instant::now();
            if route == Route::Pinned {
                let pinned = claim.pin(&*device.clone().registrar());
                again = pinned.as_ref().is_err_and(|error| error.kind() == ErrorKind::PinFailed);
                pinned?;
            }
            let allocating = Instant::now();
            seconds.seconds.pin = (allocating - pinning).as_secs_f64();
            let id = device.id();
            let device: Arc<dyn Device> = device;
            targets.set_queue(device.clone().copy_queue()?);
            match &mut provide {
                None => destination::allocate_on(&device, &plan, &targets, apart)?,
                Some(provide) => {
                    let mut provide = asking(&mut **provide, &by_storage, id);
                    let quarantine = &self.engine.quarantine;
                    destination::provide_on(&device, &plan, &targets, &mut provide, quarantine)?;
                }
            }
            seconds.seconds.allocate = allocating.elapsed().as_secs_f64();
            Ok(())
        };
        let (result, measures, delivered) =
            self.run(&plan, readers, end, &by_storage, &mut prepare, &mut |_, _| Ok(()));
        self.request.provide = provide;
        self.report.take_start(seconds);
        match result {
            Ok(()) => {}
            Err(error) if again && error.kind() != ErrorKind::Cancelled => {
                // They may still hold the ring, which is to be another.
                self.threads = Threads::default();
                // What was read meanwhile was read for nothing, and counts as read.
                self.report.bytes.read += measures.read.iter().sum::<u64>();
                self.report.count_direct(measures.direct);
                let forced = asked != RouteChoice::Auto;
                let nothing_left = || staging.to_be_pinned(&need, false).is_err();
                if forced && start.id() != DeviceId::Host && nothing_left() {
                    return Err(error);
                }
                return Ok(Ended::Again);
            }
            Err(error) => return Err(error),
        }
        if let Some(reason) = &claim.smaller {
            self.report.decide("staging", format!("{} bytes", ring.bytes()), reason);
        }
        self.report.copy_calls = targets.queue().map_or(0, CopyQueue::calls);
        self.report.staging_bytes_peak = ring.take_peak();
        self.report.pinned_bytes = if ring.is_pinned() { ring.bytes() } else { 0 };
        let locations = targets.places().into_iter().map(Location::Device).collect();
        Ok(Ended::Done(Box::new(Ran { plan, route, locations, measures, delivered })))
    }

    fn plan(&mut self, block_size: u64, piece_size: u64) -> Arc<Plan> {
        let planning = Instant::now();
        let storages = storages_of(self.model, self.wanted);
        let plan = plan::build(self.model.index(), &storages, block_size, piece_size);
        self.report.seconds.plan += planning.elapsed().as_secs_f64();
        Arc::new(plan)
    }

    fn run(
        &mut self,
        plan: &Arc<Plan>,
        readers: usize,
        end: End,
        by_storage: &[Vec<&TensorInfo>],
        prepare: &mut Prepare<'_>,
        arrived: &mut dyn FnMut(usize, u64) -> Result<()>,
    ) -> (Result<()>, Measures, Vec<u64>) {
        let sources = self.model.sources();
        let total = plan.bytes();
        let mut left: Vec<u64> = plan.storages.iter().map(|storage| storage.length).collect();
        let mut delivered = vec![0; sources.len()];
        let mut landed_bytes = 0;
        let on_event = &mut self.request.on_event;
        let on_event = RefCell::new(on_event);
        let tell = |event: Event<'_>| {
            if let Some(on_event) = &mut **on_event.borrow_mut() {
                on_event(event);
            }
        };
        let ready = |storage: usize| {
            by_storage[storage].iter().for_each(|tensor| tell(Event::Ready { tensor }));
        };
        let checks = self.request.verify.as_ref();
        let checks = checks.map(|manifest| Checks::new(manifest, by_storage)).transpose();
        let checks = match checks {
            Ok(checks) => checks.map(Arc::new),
            Err(error) => return (Err(error), Measures::default(), delivered),
        };
        let stop = Arc::new(Stop::new(self.cancelled.clone()));
        let mut landed = |block: usize| {
            for piece in plan.pieces_of(block) {
                delivered[piece.source.0 as usize] += piece.length;
            }
            landed_bytes += plan.blocks[block].bytes;
            tell(Event::Landed { bytes: landed_bytes, total });
            for copy in plan.copies_of(block) {
                if let Err(error) = arrived(copy.storage, copy.length) {
                    stop.fail(error);
                }
                left[copy.storage] -= copy.length;
                if left[copy.storage] == 0 {
                    ready(copy.storage);
                }
            }
        };
        let options = &self.engine.options;
        let facts = Box::new(FileFacts::new(sources.clone()));
        let access = Access::new(sources.clone(), options.direct_io, facts);
        let access = match &end {
            End::Staged(staged) => access.staged(staged.ring.memory()),
            End::InPlace(_) => access,
        };
        let access = Arc::new(if options.map_files { access.mapped() } else { access });
        let (access_of_job, stop) = (access.clone(), stop.clone());
        let (plan_of_job, checks_of_job) = (plan.clone(), checks.clone());
        let job = Job {
            plan: plan_of_job,
            access: access_of_job,
            checks: checks_of_job,
            readers,
            end,
            stop,
        };
        let (result, measures) =
            route::run(job, &mut self.threads, prepare, &mut landed, &|| tell(Event::Waiting));
        let result = result.and_then(|()| checks.map_or(Ok(()), |checks| checks.finish()));
        self.report.read_ahead_bytes += access.bytes_ahead();
        if result.is_ok() {
            // What the index holds itself was read when the model was opened.
            let decoded = |source: &usize| self.model.index().sources[*source].decoded.is_some();
            let files = sources_of(plan).into_iter().filter(|source| !decoded(source));
            note(&access, files, self.report);
        }
        if result.is_ok() {
            let empty = plan.storages.iter().take_while(|storage| storage.length == 0).count();
            (0..empty).for_each(ready);
        }
        (result, measures, delivered)
    }
}

/// Refuses what copies out of mappings do not go with.
fn check_mapping(direct_io: DirectIo, start: &Start) -> Result<()> {
    let refuse = |why: &str, hint: &str| {
        Err(Error::new(ErrorKind::InvalidOption, why)
            .with("option", "map_files")
            .with("value", "on")
            .with("device", start.id())
            .with("direct_io", direct_io)
            .hint(hint))
    };
    // A driver that copies out of a mapping, or pins it, fails in ways that nobody can mend; and
    // out of staging memory a mapping would be one copy more.
    if !matches!(start, Start::Host) {
        return refuse("map_files is for tensors in host memory", "add --device host");
    }
    if direct_io == DirectIo::On {
        return refuse("a mapping does not go past the page cache", "take one of the two");
    }
    Ok(())
}

/// How many of these readers there are to be because the disk rotates that the model lies on.
pub(crate) fn readers_of_its_disk(
    model: &Model,
    wanted: &[usize],
    threads: ReadingThreads,
    readers: usize,
) -> Option<usize> {
    let few = route::readers_of_a_rotating_disk(threads, readers)?;
    // The file that most is read of stands for all: a model's files lie in one folder as a rule,
    // and asking about hundreds of them takes milliseconds.
    let source = &model.sources()[select::largest_source(model, wanted)?];
    (source.storage()?.rotational == Some(true)).then_some(few)
}

/// Begins to start the device whose driver is to pin the host memory that tensors go to, or
/// refuses: what is asked for is that or an error.
fn begin_to_pin(
    engine: &Engine,
    request: &Request<'_>,
    start: &Start,
    threads: ReadingThreads,
) -> Result<Start> {
    let refuse = |why: &str, hint: &str| {
        Err(Error::new(ErrorKind::InvalidOption, why)
            .with("option", "pin_host")
            .with("value", "on")
            .with("device", start.id())
            .hint(hint))
    };
    if !matches!(start, Start::Host) {
        return refuse("pin_host is for tensors in host memory", "add --device host");
    }
    if request.provide.is_some() {
        return refuse("memory of the caller's is not pinned", "pin it before the load");
    }
    if request.apart {
        return refuse("memory that lies apart is not pinned", "load the tensors together");
    }
    if threads.get() == Some(0) {
        return refuse("reading_threads=0 pins nothing", "take 1 to 64 reading threads");
    }
    // Which device does not matter: the memory is pinned for all. The report's device is where
    // the tensors are.
    let (device, mut unsaid) = (DeviceChoice::CurrentCuda, Report::default());
    Start::begin(engine, device, RouteChoice::Auto, &mut unsaid, || {}).map_err(pinning::needed)
}

/// Asks the caller for memory, telling which tensors it is for.
fn asking<'p>(
    provide: &'p mut (dyn FnMut(&Wanted<'_>) -> Result<Destination> + 'p),
    by_storage: &'p [Vec<&'p TensorInfo>],
    device: DeviceId,
) -> impl FnMut(&PlannedStorage) -> Result<Destination> + 'p {
    let mut storages = by_storage.iter();
    move |storage| {
        let tensors = storages.next().map_or(&[][..], Vec::as_slice);
        provide(&Wanted { storage: storage.id, length: storage.length, tensors, device })
    }
}

fn tensors(index: &Index, wanted: &[usize], ran: &Ran) -> Vec<Tensor> {
    let numbers = select::plan_numbers(index, &ran.plan);
    let tensor = |number: &usize| {
        let info = &index.tensors[*number];
        let location = ran.locations[numbers[info.storage.0 as usize] as usize].clone();
        Tensor::new(info, location)
    };
    wanted.iter().map(tensor).collect()
}
