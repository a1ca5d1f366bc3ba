//! The state of the process's one fake driver, and what every call goes through.

use std::cell::Cell;
use std::io::Write as _;
use std::process;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Condvar, LazyLock, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use crate::config::{Config, Counts, Live};
use crate::faults::Faults;
use crate::host::Registration;
use crate::memory::Memory;
use crate::streams::Streams;

/// A status code, as the C interface has it.
pub(crate) type Status = u32;

/// The codes that are answered of the fake's own accord.
pub(crate) mod status {
    use super::Status;

    pub const SUCCESS: Status = 0;
    pub const INVALID_VALUE: Status = 1;
    pub const OUT_OF_MEMORY: Status = 2;
    pub const NOT_INITIALIZED: Status = 3;
    pub const INVALID_DEVICE: Status = 101;
    pub const INVALID_CONTEXT: Status = 201;
    pub const INVALID_HANDLE: Status = 400;
    pub const NOT_READY: Status = 600;
    pub const CONTEXT_IS_DESTROYED: Status = 709;
    pub const HOST_MEMORY_ALREADY_REGISTERED: Status = 712;
    pub const HOST_MEMORY_NOT_REGISTERED: Status = 713;
    pub const NOT_SUPPORTED: Status = 801;
}

/// Everything, under one lock; work that takes time is done outside of it.
pub(crate) struct World {
    pub config: Config,
    pub initialised: bool,
    pub devices: Vec<Device>,
    pub memory: Memory,
    pub registrations: Vec<Registration>,
    pub streams: Streams,
    pub faults: Faults,
    pub counts: Counts,
    pub violations: Vec<String>,
    /// Numbers resets, so that what threads remember of an earlier life is void.
    generation: u64,
    last_id: u64,
}

/// A device and its primary context.
pub(crate) struct Device {
    pub retained: u64,
    /// What every call in the context answers from now on.
    pub poison: Option<Status>,
    /// Held by the copy that is on the bus.
    pub bus: Arc<Mutex<()>>,
    pub legacy: Option<u64>,
    pub used: u64,
    pub next_address: u64,
}

pub(crate) type Guard = MutexGuard<'static, World>;

static WORLD: LazyLock<Mutex<World>> = LazyLock::new(|| {
    let settings = std::env::var("FAKE_CUDA").unwrap_or_default();
    let config = Config::parse(&settings).unwrap_or_else(|why| panic!("FAKE_CUDA: {why}"));
    Mutex::new(World::new(config, 0, 0))
});

/// Notified whenever something happened that somebody may wait for.
pub(crate) static CHANGED: Condvar = Condvar::new();

/// The process that called `cuInit`; 0 before. Outside of the lock, which another thread may have
/// held when a child was forked.
static OWNER: AtomicU32 = AtomicU32::new(0);

thread_local! {
    /// The function that this thread is in, for the text of violations.
    static CALL: Cell<&'static str> = const { Cell::new("") };
    /// The device whose context is current in this thread, and the generation it belongs to.
    static CURRENT: Cell<Option<(u64, usize)>> = const { Cell::new(None) };
}

/// What a function needs before it does anything.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Need {
    /// Nothing, not even `cuInit`.
    Nothing,
    /// `cuInit`.
    Driver,
    /// A current context in working order.
    Context,
}

/// Counts a call, fails it where a test wants that, checks what it needs and runs its body with
/// the current context's device (0 where it needs no context).
pub(crate) fn call(
    name: &'static str,
    need: Need,
    body: impl FnOnce(Guard, usize) -> Result<(), Status>,
) -> Status {
    let owner = OWNER.load(Ordering::Relaxed);
    if owner != 0 && owner != process::id() {
        return status::NOT_INITIALIZED;
    }
    set_call(name);
    let mut world = lock();
    let device = match world.enter(name, need) {
        Ok(device) => device,
        Err(status) => return status,
    };
    body(world, device).err().unwrap_or(status::SUCCESS)
}

pub(crate) fn set_call(name: &'static str) {
    CALL.set(name);
}

pub(crate) fn lock() -> Guard {
    WORLD.lock().unwrap_or_else(PoisonError::into_inner)
}

pub(crate) fn wait(world: Guard) -> Guard {
    CHANGED.wait(world).unwrap_or_else(PoisonError::into_inner)
}

/// Starts anew; false if work that is left does not end within five seconds.
pub(crate) fn reset(config: Config) -> bool {
    let mut world = lock();
    world.streams.held = false;
    CHANGED.notify_all();
    let deadline = Instant::now() + Duration::from_secs(5);
    while world.is_busy() {
        let left = deadline.saturating_duration_since(Instant::now());
        if left.is_zero() {
            return false;
        }
        let waited = CHANGED.wait_timeout(world, left);
        world = waited.unwrap_or_else(PoisonError::into_inner).0;
    }
    // Streams find themselves gone and end.
    *world = World::new(config, world.generation + 1, world.last_id);
    OWNER.store(0, Ordering::Relaxed);
    CHANGED.notify_all();
    true
}

impl World {
    fn new(config: Config, generation: u64, last_id: u64) -> World {
        let device = |ordinal| Device {
            retained: 0,
            poison: None,
            bus: Arc::default(),
            legacy: None,
            used: 0,
            // A process's own addresses have fewer than 48 bits.
            next_address: (0xD0 + ordinal) << 44,
        };
        World {
            config,
            initialised: false,
            devices: (0..config.devices).map(device).collect(),
            memory: Memory::default(),
            registrations: Vec::new(),
            streams: Streams::default(),
            faults: Faults::default(),
            counts: Counts::default(),
            violations: Vec::new(),
            generation,
            last_id,
        }
    }

    fn enter(&mut self, name: &'static str, need: Need) -> Result<usize, Status> {
        if let Some((status, spoils)) = self.faults.count(name) {
            if spoils {
                self.poison(status);
            }
            return Err(status);
        }
        if need == Need::Nothing {
            return Ok(0);
        }
        if !self.initialised {
            return Err(status::NOT_INITIALIZED);
        }
        if need == Need::Driver {
            return Ok(0);
        }
        let device = self.current().ok_or(status::INVALID_CONTEXT)?;
        if self.devices[device].retained == 0 {
            self.violation(format!("the current context, of device {device}, is gone"));
            return Err(status::CONTEXT_IS_DESTROYED);
        }
        match self.devices[device].poison {
            Some(status) => Err(status),
            None => Ok(device),
        }
    }

    /// Makes this process the driver's owner.
    pub fn initialise(&mut self) {
        self.initialised = true;
        OWNER.store(process::id(), Ordering::Relaxed);
    }

    /// Spoils the current context, or all where there is none.
    fn poison(&mut self, status: Status) {
        match self.current() {
            Some(device) => self.devices[device].poison = Some(status),
            None => {
                for device in &mut self.devices {
                    device.poison = Some(status);
                }
            }
        }
        CHANGED.notify_all();
    }

    /// The device whose context is current in the calling thread.
    pub fn current(&self) -> Option<usize> {
        let (generation, device) = CURRENT.get()?;
        (generation == self.generation).then_some(device)
    }

    pub fn set_current(&self, device: Option<usize>) {
        CURRENT.set(device.map(|device| (self.generation, device)));
    }

    pub fn retain(&mut self, device: usize) -> Result<(), Status> {
        if let Some(status) = self.devices[device].poison {
            return Err(status);
        }
        self.devices[device].retained += 1;
        Ok(())
    }

    /// Gives one retain back; the last destroys the context and all that is in it.
    pub fn release(&mut self, device: usize) -> Result<(), Status> {
        match self.devices[device].retained {
            0 => {
                self.violation(format!("device {device} released more often than retained"));
                return Err(status::INVALID_CONTEXT);
            }
            1 => self.destroy_context(device),
            _ => {}
        }
        self.devices[device].retained -= 1;
        Ok(())
    }

    fn destroy_context(&mut self, device: usize) {
        let allocations = self.allocations_of(device);
        let count = allocations.len();
        for start in allocations {
            // Found a moment ago; and a copy under way is recorded by it.
            let _ = self.free(start);
        }
        let before = self.registrations.len();
        let ours = self.registrations.iter().filter(|r| r.device == device);
        let starts: Vec<_> = ours.map(|r| r.start).collect();
        for start in starts {
            let _ = self.unregister(start);
        }
        let registrations = before - self.registrations.len();
        let (streams, events) = self.drop_handles(device);
        if count + registrations + streams + events > 0 {
            self.violation(format!(
                "context of device {device} destroyed with {count} allocations, {registrations} \
                 registrations, {streams} streams and {events} events in it"
            ));
        }
    }

    pub fn violation(&mut self, text: String) {
        let text = format!("{}: {text}", CALL.get());
        if let Some(path) = std::env::var_os("FAKE_CUDA_VIOLATIONS") {
            let file = std::fs::File::options().append(true).create(true).open(path);
            // The list below has it in any case.
            let _ = file.and_then(|mut file| writeln!(file, "{text}"));
        }
        self.violations.push(text);
    }

    /// Handles look like addresses, and are told apart from small constants such as the legacy
    /// stream's.
    pub fn next_id(&mut self) -> u64 {
        self.last_id += 1;
        0x5EED_0000_0000 + self.last_id * 16
    }

    pub fn live(&self) -> Live {
        let (streams, events) = self.streams_and_events();
        Live {
            allocations: self.allocations() as u64,
            streams: streams as u64,
            events: events as u64,
            registrations: self.registrations.len() as u64,
            retained: self.devices.iter().map(|d| d.retained).sum(),
        }
    }
}

/// An error unless something holds.
pub(crate) fn check(holds: bool, otherwise: Status) -> Result<(), Status> {
    if holds { Ok(()) } else { Err(otherwise) }
}

/// The handle of a device's primary context.
pub(crate) fn context_handle(device: usize) -> usize {
    0xC0DE_0000 + device * 0x100
}

/// The device whose primary context a handle names.
pub(crate) fn context_device(handle: usize) -> Option<usize> {
    let offset = handle.checked_sub(context_handle(0))?;
    offset.is_multiple_of(0x100).then_some(offset / 0x100)
}
