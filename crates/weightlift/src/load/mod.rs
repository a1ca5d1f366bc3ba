//! Conducts a load: chooses, drives, counts, checks, and hands out tensors or nothing.

mod cancel;
mod destination;
mod request;
mod select;
mod staging;
mod start;

use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use weightlift_index::TensorInfo;

use crate::Loader;
use crate::device::cuda::CudaDevice;
use crate::device::{Device, DeviceId, Location};
use crate::error::Result;
use crate::memory::Ring;
use crate::options::{Route, RouteChoice};
use crate::plan::{self, Geometry, Plan, PlannedStorage};
use crate::report::{Bytes, Fallback, Quarantined, Report, SourceReport};
use crate::route::{self, End, Job, Measures, Staged, Stop, Targets};
use crate::source::Model;
use crate::system;
use crate::tensor::Tensor;

pub use cancel::CancelToken;
pub use destination::{Destination, Wanted};
pub use request::{Event, Request};
pub(crate) use select::{bytes_of, select, storages_of};
pub(crate) use staging::Staging;

use destination::HostTargets;
use staging::{Need, Pinning};
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
pub(crate) fn load(loader: &Loader, from: From<'_>, mut request: Request<'_>) -> Result<Loaded> {
    let started = Instant::now();
    let mut report = Report { schema: 1, ..Report::default() };
    let options = loader.options();
    let (asked_route, threads) = (request.route_or(options), request.reading_threads_or(options));
    let start = Start::begin(loader, request.device_or(options), asked_route, &mut report)?;
    route::choose(start.id(), asked_route, threads)?;

    // While the driver starts: open, plan, and have the kernel give the staging memory.
    let (model, opened_before) = match from {
        From::Path(path) => (Arc::new(Model::open(path, &request.open)?), Duration::ZERO),
        From::Opened(model) => (model.clone(), model.open_time()),
    };
    let readers = route::readers(threads, system::processors());
    let wanted = select(&model, request.patterns())?;
    let bytes = bytes_of(&model, &wanted);
    let need = Need { options, bytes, readers, quarantine: &loader.quarantine };
    // The host route stages nothing: the budget does not bound its pieces.
    let staged = start.id() != DeviceId::Host;
    let budget = if staged { options.staging_budget() } else { u64::MAX };
    let geometry = Geometry::new(options, budget, bytes, readers)?;
    let planning = Instant::now();
    let build = |block_size, piece_size| {
        plan::build(model.index(), &storages_of(&model, &wanted), block_size, piece_size)
    };
    let mut plan = build(geometry.block_size, geometry.piece_size);
    report.seconds.plan = planning.elapsed().as_secs_f64();
    let mut ready = None;
    if start.is_starting() && bytes > 0 && loader.staging.lacks_pinned() {
        let ring = need.ring(&geometry)?;
        ring.populate();
        ready = Some(ring);
    }

    let cancel = request.cancel.clone();
    let cancelled = move || cancel.is_cancelled();
    let device = start.finish(&cancelled, &mut report)?;
    let id = device.as_ref().map_or(DeviceId::Host, |device| device.id());
    let (route, why) = route::choose(id, asked_route, threads)?;
    report.devices = vec![id.to_string()];
    report.block_size = geometry.block_size;
    report.piece_size = geometry.piece_size;

    let numbers = select::plan_numbers(model.index(), &plan);
    let by_storage = select::tensors_by_storage(model.index(), &wanted, &numbers);
    let stop = Stop::new(&cancelled);
    let mut conductor =
        Conductor { model: &model, request: &mut request, by_storage: &by_storage, id };
    let (locations, route, measures, delivered) = match device {
        None => {
            report.decide("route", route, why);
            let readers = readers.min(plan.pieces.len()).max(1);
            let (locations, measures, delivered) =
                conductor.into_host(&plan, readers, &stop, &mut report)?;
            (locations, route, measures, delivered)
        }
        Some(device) => {
            let pinning = Instant::now();
            let (route, ring) =
                stage(loader, &need, &device, route, asked_route, ready, &mut report)?;
            report.seconds.pin = pinning.elapsed().as_secs_f64();
            report.decide("route", route, why);
            if ring.block_size() != plan.block_size {
                // A ring that another load uses, or that could not be pinned as large.
                let piece_size = geometry.piece_size.min(ring.block_size());
                plan = build(ring.block_size(), piece_size);
                (report.block_size, report.piece_size) = (ring.block_size(), piece_size);
            }
            let readers = geometry.readers.min(plan.pieces.len()).max(1);
            let (locations, measures, delivered) =
                conductor.onto_device(&plan, readers, &stop, &device, &ring, &mut report)?;
            report.staging_bytes_peak = ring.take_peak();
            report.pinned_bytes = if ring.is_pinned() { ring.bytes() } else { 0 };
            (locations, route, measures, delivered)
        }
    };
    for source in sources_of(&plan) {
        model.sources()[source].check_unchanged()?;
    }

    count(&mut report, &model, &plan, route, &measures, &delivered);
    report.quarantined =
        Quarantined { bytes: loader.quarantine.bytes(), handles: loader.quarantine.handles() };
    report.skipped_tensors = model.index().skipped_tensors;
    let since = |instant: Option<Instant>| {
        instant.map_or(0.0, |instant| instant.duration_since(started).as_secs_f64())
    };
    let seconds = &mut report.seconds;
    seconds.open = model.open_time().as_secs_f64();
    seconds.first_byte = since(measures.first_landed);
    seconds.copy = match (measures.first_submitted, measures.last_landed) {
        (Some(first), Some(last)) => last.saturating_duration_since(first).as_secs_f64(),
        _ => 0.0,
    };
    let tensors = tensors(model.index().tensors.as_slice(), &wanted, &numbers, &locations);
    seconds.total = (started.elapsed() + opened_before).as_secs_f64();
    let counted = (seconds.total - seconds.driver_wait).max(f64::MIN_POSITIVE);
    report.bytes_per_second = report.bytes.delivered as f64 / counted;
    tracing::info!(
        route = report.route(),
        bytes = report.bytes.delivered,
        seconds = report.seconds.total,
        reason = why,
        "loaded"
    );
    Ok(Loaded { tensors, report })
}

/// Staging memory for a route, or for the one that `auto` falls back to.
fn stage(
    loader: &Loader,
    need: &Need<'_>,
    device: &Arc<CudaDevice>,
    route: Route,
    asked: RouteChoice,
    ready: Option<Ring>,
    report: &mut Report,
) -> Result<(Route, Arc<Ring>)> {
    if route != Route::Pinned {
        return Ok((route, loader.staging.pageable(need, ready)?));
    }
    let registrar = device.clone().registrar();
    let forced = asked != RouteChoice::Auto;
    match loader.staging.pinned(need, &*registrar, ready, forced)? {
        Pinning::Pinned(ring, None) => Ok((Route::Pinned, ring)),
        Pinning::Pinned(ring, Some(reason)) => {
            report.decide("staging", format!("{} bytes", ring.bytes()), reason);
            Ok((Route::Pinned, ring))
        }
        Pinning::Failed(error) if forced => Err(error),
        Pinning::Failed(error) => {
            report.fallbacks.push(Fallback {
                from: Route::Pinned.to_string(),
                to: Route::Pageable.to_string(),
                reason: error.to_string(),
                bytes: need.bytes,
            });
            Ok((Route::Pageable, loader.staging.pageable(need, None)?))
        }
    }
}

/// Drives one run and tells the caller about it.
struct Conductor<'r, 'a> {
    model: &'r Model,
    request: &'r mut Request<'a>,
    by_storage: &'r [Vec<&'r TensorInfo>],
    id: DeviceId,
}

/// Where every planned storage is, what it took, and bytes delivered by source.
type Ran = (Vec<Location>, Measures, Vec<u64>);

impl Conductor<'_, '_> {
    fn into_host(
        &mut self,
        plan: &Plan,
        readers: usize,
        stop: &Stop<'_>,
        report: &mut Report,
    ) -> Result<Ran> {
        let allocating = Instant::now();
        let mut targets = match &mut self.request.provide {
            None => HostTargets::allocate(plan)?,
            Some(provide) => {
                HostTargets::provide(plan, &mut asking(&mut **provide, self.by_storage, self.id))?
            }
        };
        report.seconds.allocate = allocating.elapsed().as_secs_f64();
        let end = End::InPlace(targets.places(plan)?);
        let job = Job { plan, sources: self.model.sources(), readers, end, stop };
        let (measures, delivered) = self.run(job, &mut || Ok(()))?;
        Ok((targets.into_locations(), measures, delivered))
    }

    fn onto_device(
        &mut self,
        plan: &Plan,
        readers: usize,
        stop: &Stop<'_>,
        device: &Arc<CudaDevice>,
        ring: &Arc<Ring>,
        report: &mut Report,
    ) -> Result<Ran> {
        let device: Arc<dyn Device> = device.clone();
        let targets = Targets::new(plan.storages.len());
        let queue = device.clone().copy_queue()?;
        let end = End::Staged(Staged { ring, queue: &*queue, targets: &targets });
        let job = Job { plan, sources: self.model.sources(), readers, end, stop };
        let mut provide = self.request.provide.take();
        let (by_storage, id) = (self.by_storage, self.id);
        let mut prepare = || {
            let allocating = Instant::now();
            match &mut provide {
                None => destination::allocate_on(device.clone(), plan, &targets)?,
                Some(provide) => destination::provide_on(
                    &device,
                    plan,
                    &targets,
                    &mut asking(&mut **provide, by_storage, id),
                    &|event| queue.wait_for(event),
                )?,
            }
            report.seconds.allocate = allocating.elapsed().as_secs_f64();
            Ok(())
        };
        let (measures, delivered) = self.run(job, &mut prepare)?;
        report.copy_calls = queue.calls();
        let places = targets.into_places();
        Ok((places.into_iter().map(Location::Device).collect(), measures, delivered))
    }

    fn run(
        &mut self,
        job: Job<'_>,
        prepare: &mut dyn FnMut() -> Result<()>,
    ) -> Result<(Measures, Vec<u64>)> {
        let plan = job.plan;
        let total = plan.bytes();
        let mut left: Vec<u64> = plan.storages.iter().map(|storage| storage.length).collect();
        let mut delivered = vec![0; job.sources.len()];
        let mut landed_bytes = 0;
        let by_storage = self.by_storage;
        let on_event = &mut self.request.on_event;
        let mut tell = |event: Event<'_>| {
            if let Some(on_event) = on_event {
                on_event(event);
            }
        };
        let ready = |storage: usize, tell: &mut dyn FnMut(Event<'_>)| {
            by_storage[storage].iter().for_each(|tensor| tell(Event::Ready { tensor }));
        };
        for (storage, _) in left.iter().enumerate().filter(|(_, bytes)| **bytes == 0) {
            ready(storage, &mut tell);
        }
        let mut landed = |block: usize| {
            for piece in plan.pieces_of(block) {
                delivered[piece.source.0 as usize] += piece.length;
            }
            landed_bytes += plan.blocks[block].bytes;
            tell(Event::Landed { bytes: landed_bytes, total });
            for copy in plan.copies_of(block) {
                left[copy.storage] -= copy.length;
                if left[copy.storage] == 0 {
                    ready(copy.storage, &mut tell);
                }
            }
        };
        let (result, measures) = route::run(job, prepare, &mut landed);
        result?;
        Ok((measures, delivered))
    }
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

fn tensors(
    infos: &[TensorInfo],
    wanted: &[usize],
    numbers: &[u32],
    locations: &[Location],
) -> Vec<Tensor> {
    let tensor = |number: &usize| {
        let info = &infos[*number];
        let location = locations[numbers[info.storage.0 as usize] as usize].clone();
        Tensor::new(&info.name, info.dtype.clone(), &info.shape, info.offset, info.length, location)
    };
    wanted.iter().map(tensor).collect()
}

/// The sources that a plan reads, each once, in order.
fn sources_of(plan: &Plan) -> Vec<usize> {
    let mut sources: Vec<usize> = plan.pieces.iter().map(|piece| piece.source.0 as usize).collect();
    sources.dedup();
    sources
}

fn count(
    report: &mut Report,
    model: &Model,
    plan: &Plan,
    route: Route,
    measures: &Measures,
    delivered: &[u64],
) {
    let mut planned = vec![0; model.sources().len()];
    for piece in &plan.pieces {
        planned[piece.source.0 as usize] += piece.length;
    }
    for source in sources_of(plan) {
        let bytes = Bytes {
            planned: planned[source],
            read: measures.read[source],
            delivered: delivered[source],
        };
        report.bytes.planned += bytes.planned;
        report.bytes.read += bytes.read;
        report.bytes.delivered += bytes.delivered;
        report
            .sources
            .push(SourceReport { name: model.sources()[source].name().to_owned(), bytes });
    }
    report.routes.insert(route.to_string(), report.bytes.delivered);
    report.reads.insert(crate::read::Kind::Buffered.name().to_owned(), report.bytes.read);
    report.reading_threads = measures.readers;
    let seconds = &mut report.seconds;
    seconds.read = measures.reading.as_secs_f64();
    seconds.waiting_for_disk = measures.waiting_for_disk.as_secs_f64();
    seconds.waiting_for_bus = measures.waiting_for_bus.as_secs_f64();
}
