//! The engine as its users call it, on the host and on the fake driver.

mod bytes;
mod direct;
mod disks;
mod driver;
mod elsewhere;
mod faults;
mod host;
mod kinds;
mod limits;
mod mapped;
mod memory;
mod plans;
mod shared;
mod sharing;
mod sources;
mod stopping;
mod streams;
mod verify;

use fake_cuda::{Config, FakeCuda, Guard};
use testkit::{Spec, digest};
use weightlift::{DeviceChoice, Loaded, Loader, Options, Request, Route, RouteChoice};

/// The fake driver, this test's alone, fresh.
struct Fake {
    cuda: FakeCuda,
    _alone: Guard,
}

impl Fake {
    fn new(config: Config) -> Self {
        let _alone = FakeCuda::lock();
        starts_are_over();
        let cuda = FakeCuda::open();
        cuda.reset(config);
        Self { cuda, _alone }
    }

    /// A loader that takes this driver.
    fn loader(&self, options: Options) -> Loader {
        Loader::new(options).with_driver(self.cuda.path())
    }

    /// Nobody broke a rule of the driver's, and nothing is left over.
    fn assert_clean(&self) {
        self.assert_no_violations();
        let live = self.cuda.live();
        let left = (live.allocations, live.streams, live.events, live.registrations, live.retained);
        assert_eq!(left, (0, 0, 0, 0, 0), "left over: {live:?}");
    }

    fn assert_no_violations(&self) {
        assert_eq!(self.cuda.violations(), Vec::<String>::new());
    }
}

/// Waits until no driver is being started any more. A load that was cancelled leaves its start
/// behind, and what that gives back would be taken from the next test's driver.
fn starts_are_over() {
    // The kernel keeps the first 15 characters of "weightlift-driver".
    let is_start = |task: std::io::Result<std::fs::DirEntry>| {
        let name = task.and_then(|task| std::fs::read_to_string(task.path().join("comm")));
        name.is_ok_and(|name| name.trim_end() == "weightlift-driv")
    };
    while std::fs::read_dir("/proc/self/task").expect("this process").any(is_start) {
        std::thread::sleep(std::time::Duration::from_millis(5));
    }
}

/// Settings from `name=value,...`.
fn options(text: &str) -> Options {
    text.parse().expect("settings")
}

fn on_cuda<'a>(route: Route) -> Request<'a> {
    Request::new().device(DeviceChoice::Cuda(0)).route(RouteChoice::Forced(route))
}

fn on_host<'a>() -> Request<'a> {
    Request::new().device(DeviceChoice::Host)
}

/// Every tensor is there, with the bytes that were written, and the report adds up.
fn assert_same(loaded: &Loaded, written: &[Spec]) {
    assert_eq!(loaded.tensors.len(), written.len());
    for spec in written {
        let tensor = loaded.tensor(&spec.name).expect("a tensor of that name");
        assert_eq!(tensor.shape(), spec.shape, "{}", spec.name);
        assert_eq!(tensor.dtype().name(), spec.dtype, "{}", spec.name);
        assert_eq!(tensor.nbytes(), spec.bytes.len() as u64, "{}", spec.name);
        let same = tensor.digest().expect("a digest") == digest(&spec.bytes);
        assert!(same, "the bytes of {} differ", spec.name);
    }
    assert_adds_up(loaded, written.iter().map(|spec| spec.bytes.len() as u64).sum());
}

fn assert_adds_up(loaded: &Loaded, bytes: u64) {
    let report = &loaded.report;
    assert_eq!(report.schema, 1);
    assert_eq!(report.reads.values().sum::<u64>(), report.bytes.read);
    assert_eq!((report.bytes.planned, report.bytes.delivered), (bytes, bytes));
    assert_eq!(report.routes.values().sum::<u64>(), bytes);
    // What was read before the ring turned out too large to be pinned was read for nothing.
    let smaller = report.decisions.iter().any(|decision| decision.what == "staging");
    let wasted = report.bytes.read - bytes;
    assert!(wasted == 0 || smaller || !report.fallbacks.is_empty(), "{wasted} bytes too many");
    assert_eq!(report.sources.iter().map(|source| source.bytes.delivered).sum::<u64>(), bytes);
    let seconds = &report.seconds;
    // A second for waking up: the machines that run tests are shared, and 0.1 s was too little.
    assert!(
        seconds.total >= seconds.open + seconds.driver_wait
            && seconds.driver_wait <= seconds.driver + 1.0,
        "{seconds:?}"
    );
    if bytes > 0 {
        let rate = bytes as f64 / (seconds.total - seconds.driver_wait);
        assert!((report.bytes_per_second / rate - 1.0).abs() < 1e-9);
    }
}
