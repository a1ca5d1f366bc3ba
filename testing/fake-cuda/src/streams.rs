//! Streams and events: work that runs in its order, later, on threads of its own.
//!
//! Everything that waits, waits for *points*: places in a stream's work. An event is the point at
//! which it was last recorded; the legacy stream's rules are points that an operation waits for.

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;
use std::thread;
use std::time::Duration;

use crate::work::Work;
use crate::world::{self, CHANGED, Guard, Status, World, status};

/// All streams, and the events over them.
#[derive(Default)]
pub(crate) struct Streams {
    all: BTreeMap<u64, Stream>,
    events: BTreeMap<u64, Event>,
    /// Nothing starts to run while this is set.
    pub held: bool,
}

struct Stream {
    device: usize,
    kind: Kind,
    /// Work that is not done; the first may be running.
    queue: VecDeque<Arc<Operation>>,
    issued: u64,
    done: u64,
    /// The handle is gone, work may be left.
    destroyed: bool,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Kind {
    Legacy,
    Blocking,
    NonBlocking,
}

struct Event {
    device: usize,
    recorded: Option<Point>,
}

/// A place in a stream's work: reached when the operation of that number is done.
#[derive(Clone, Copy)]
pub(crate) struct Point {
    stream: u64,
    operation: u64,
}

struct Operation {
    number: u64,
    after: Vec<Point>,
    work: Work,
}

impl World {
    pub fn create_stream(&mut self, device: usize, blocking: bool) -> u64 {
        let kind = if blocking { Kind::Blocking } else { Kind::NonBlocking };
        self.start_stream(device, kind)
    }

    /// The stream that a handle names, for work in a context of `device`.
    pub fn stream(&mut self, handle: u64, device: usize) -> Result<u64, Status> {
        // Null and CU_STREAM_LEGACY.
        if handle <= 1 {
            return Ok(match self.devices[device].legacy {
                Some(id) => id,
                None => {
                    let id = self.start_stream(device, Kind::Legacy);
                    self.devices[device].legacy = Some(id);
                    id
                }
            });
        }
        let found = self.streams.all.get(&handle).filter(|s| !s.destroyed);
        match found.map(|s| s.device) {
            Some(owner) if owner == device => Ok(handle),
            Some(owner) => {
                self.violation(format!(
                    "stream of device {owner} used in a context of device {device}"
                ));
                Err(status::INVALID_HANDLE)
            }
            None => {
                self.violation(format!("{handle:#x} is not a stream, or was destroyed"));
                Err(status::INVALID_HANDLE)
            }
        }
    }

    /// Takes the handle away; the work that is left still runs.
    pub fn destroy_stream(&mut self, id: u64) {
        if let Some(stream) = self.streams.all.get_mut(&id) {
            stream.destroyed = true;
        }
        CHANGED.notify_all();
    }

    pub fn is_legacy(&self, id: u64) -> bool {
        self.streams.all[&id].kind == Kind::Legacy
    }

    pub fn enqueue(&mut self, id: u64, mut after: Vec<Point>, work: Work) -> Point {
        after.extend(self.implied(id));
        let stream = self.streams.all.get_mut(&id).expect("resolved before");
        stream.issued += 1;
        let number = stream.issued;
        stream.queue.push_back(Arc::new(Operation { number, after, work }));
        CHANGED.notify_all();
        Point { stream: id, operation: number }
    }

    /// The points that are reached when the stream has nothing to do.
    pub fn tail(&self, id: u64) -> Vec<Point> {
        let mut points = vec![self.end_of(id)];
        if self.is_legacy(id) {
            points.extend(self.implied(id));
        }
        points
    }

    /// The points that are reached when a device has nothing to do.
    pub fn tails(&self, device: usize) -> Vec<Point> {
        let streams = self.streams.all.iter().filter(|(_, s)| s.device == device);
        streams.map(|(&id, _)| self.end_of(id)).collect()
    }

    pub fn reached(&self, point: &Point) -> bool {
        // A stream goes when it was destroyed and its work is done.
        let stream = self.streams.all.get(&point.stream);
        stream.is_none_or(|stream| stream.done >= point.operation)
    }

    /// Whether work that is not done fits the description.
    pub fn pending(&self, fits: impl Fn(&Work) -> bool) -> bool {
        let mut queued = self.streams.all.values().flat_map(|s| &s.queue);
        queued.any(|operation| fits(&operation.work))
    }

    pub fn is_busy(&self) -> bool {
        self.pending(|_| true)
    }

    pub fn create_event(&mut self, device: usize) -> u64 {
        let id = self.next_id();
        let event = Event { device, recorded: None };
        self.streams.events.insert(id, event);
        id
    }

    pub fn destroy_event(&mut self, id: u64) -> Result<(), Status> {
        self.recorded(id)?;
        self.streams.events.remove(&id);
        Ok(())
    }

    /// The point at which an event was last recorded, if it ever was.
    pub fn recorded(&mut self, id: u64) -> Result<Option<Point>, Status> {
        match self.streams.events.get(&id) {
            Some(event) => Ok(event.recorded),
            None => {
                self.violation(format!("{id:#x} is not an event, or was destroyed"));
                Err(status::INVALID_HANDLE)
            }
        }
    }

    pub fn record(&mut self, event: u64, stream: u64) -> Result<(), Status> {
        self.recorded(event)?;
        let (of_event, of_stream) =
            (self.streams.events[&event].device, self.streams.all[&stream].device);
        if of_event != of_stream {
            self.violation(format!(
                "event of device {of_event} recorded in a stream of device {of_stream}"
            ));
            return Err(status::INVALID_HANDLE);
        }
        let point = self.enqueue(stream, Vec::new(), Work::Mark);
        if let Some(event) = self.streams.events.get_mut(&event) {
            event.recorded = Some(point);
        }
        Ok(())
    }

    pub fn streams_and_events(&self) -> (usize, usize) {
        let named = |s: &&Stream| !s.destroyed && s.kind != Kind::Legacy;
        (self.streams.all.values().filter(named).count(), self.streams.events.len())
    }

    /// What goes with a context: the handles of its streams and events.
    pub fn drop_handles(&mut self, device: usize) -> (usize, usize) {
        let mut streams = 0;
        for stream in self.streams.all.values_mut() {
            if stream.device == device && !stream.destroyed {
                stream.destroyed = true;
                streams += usize::from(stream.kind != Kind::Legacy);
            }
        }
        let events = self.streams.events.len();
        self.streams.events.retain(|_, event| event.device != device);
        self.devices[device].legacy = None;
        CHANGED.notify_all();
        (streams, events - self.streams.events.len())
    }

    fn start_stream(&mut self, device: usize, kind: Kind) -> u64 {
        let id = self.next_id();
        let stream =
            Stream { device, kind, queue: VecDeque::new(), issued: 0, done: 0, destroyed: false };
        self.streams.all.insert(id, stream);
        thread::Builder::new()
            .name("fake-cuda stream".into())
            .spawn(move || serve(id))
            .expect("a thread for a stream");
        id
    }

    fn end_of(&self, id: u64) -> Point {
        Point { stream: id, operation: self.streams.all[&id].issued }
    }

    /// The legacy stream and the blocking streams of a device wait for each other.
    fn implied(&self, id: u64) -> Vec<Point> {
        let this = &self.streams.all[&id];
        let other = match this.kind {
            Kind::Legacy => Kind::Blocking,
            Kind::Blocking => Kind::Legacy,
            Kind::NonBlocking => return Vec::new(),
        };
        let streams = self.streams.all.iter();
        streams
            .filter(|(_, s)| s.device == this.device && s.kind == other && !s.queue.is_empty())
            .map(|(&id, _)| self.end_of(id))
            .collect()
    }
}

/// Blocks until all points are reached, or the device's context is spoilt.
pub(crate) fn wait_for(mut world: Guard, device: usize, points: &[Point]) -> Result<(), Status> {
    loop {
        // A reset may leave fewer devices while somebody still wakes up.
        if let Some(status) = world.devices.get(device).and_then(|d| d.poison) {
            return Err(status);
        }
        if points.iter().all(|point| world.reached(point)) {
            return Ok(());
        }
        world = world::wait(world);
    }
}

/// The thread of a stream.
fn serve(id: u64) {
    world::set_call("a stream");
    let mut world = world::lock();
    loop {
        let Some(stream) = world.streams.all.get(&id) else {
            return;
        };
        let device = stream.device;
        let next = stream.queue.front().cloned();
        match next {
            None if stream.destroyed => {
                world.streams.all.remove(&id);
                CHANGED.notify_all();
                return;
            }
            Some(operation)
                if !world.streams.held && operation.after.iter().all(|p| world.reached(p)) =>
            {
                world = execute(world, device, &operation.work);
                // Nobody removes a stream that has work.
                if let Some(stream) = world.streams.all.get_mut(&id) {
                    stream.queue.pop_front();
                    stream.done = operation.number;
                }
                CHANGED.notify_all();
            }
            _ => world = world::wait(world),
        }
    }
}

/// Runs one piece of work, without holding the world while it takes time. In a spoilt context it
/// is dropped, as the real device's queues are.
fn execute(mut world: Guard, device: usize, work: &Work) -> Guard {
    let len = match work {
        Work::ToDevice { len, .. } | Work::ToHost { len, .. } => *len,
        Work::Mark | Work::Fill { .. } => 0,
    };
    if world.devices[device].poison.is_some() {
        return world;
    }
    let is_copy = len > 0;
    if is_copy {
        let seconds = match world.config.bandwidth {
            0 => 0.0,
            bandwidth => len as f64 / bandwidth as f64,
        };
        let time =
            Duration::from_micros(world.config.copy_delay_us) + Duration::from_secs_f64(seconds);
        let bus = Arc::clone(&world.devices[device].bus);
        drop(world);
        if !time.is_zero() {
            // The copies of a device take turns on its bus.
            let turn = bus.lock();
            thread::sleep(time);
            drop(turn);
        }
        world = world::lock();
        if let Some(status) = world.count_copy() {
            world.devices[device].poison = Some(status);
            return world;
        }
        world.check_mappings(false);
    }
    drop(world);
    let outcome = work.run();
    world = world::lock();
    if let Err(text) = outcome {
        world.violation(text);
    }
    world
}
