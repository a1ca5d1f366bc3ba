//! Ctrl-C, SIGTERM and SIGHUP: the first asks the work to stop, the second ends the process.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::time::Duration;

use weightlift::{CancelToken, Error, ErrorKind};

use crate::error::Failure;

/// The exit status of a stopped command: that of a shell's command that Ctrl-C ended. SIGTERM
/// and SIGHUP end with the same one, so that scripts need to know but one.
pub(crate) const STOPPED: u8 = 130;

/// How work is asked to stop. Clones stop the same work.
#[derive(Debug, Clone, Default)]
pub struct Stop(Arc<Shared>);

#[derive(Debug, Default)]
struct Shared {
    token: CancelToken,
    signals: AtomicUsize,
    /// Milliseconds that the work has to end by itself after the first signal.
    grace: AtomicU64,
    /// Whether errors are wanted as JSON on stdout.
    json: AtomicBool,
    /// Whether somebody prints to stdout, or has.
    stdout_claimed: AtomicBool,
}

/// How long a command may take to stop.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Grace {
    /// It holds nothing that the kernel would not take back. A load ends sooner, except in
    /// what cannot look at the token: a header being read, a digest, memory given back.
    Short,
    /// It has files to remove.
    AsLongAsNeeded,
}

impl Stop {
    /// A stop that only [`stop`](Self::stop) triggers.
    pub fn new() -> Self {
        Self::default()
    }

    /// One that Ctrl-C, SIGTERM and SIGHUP trigger too. The process ends with status 130 if the
    /// work does not end in time, and at the second signal in any case.
    ///
    /// Where no handler can be installed, the signals keep what they do by themselves.
    pub fn on_signals() -> Self {
        let stop = Self::default();
        let signalled = stop.clone();
        // An error means that signals end the process without our help.
        let _ = ctrlc::set_handler(move || signalled.signalled());
        stop
    }

    /// Asks the work to stop.
    pub fn stop(&self) {
        self.0.token.cancel();
    }

    /// For loads.
    pub(crate) fn token(&self) -> &CancelToken {
        &self.0.token
    }

    /// From here on a signal leaves the work time to end by itself. Before, there is nothing to
    /// be put in order and a signal ends the process at once.
    pub(crate) fn allow(&self, grace: Grace) {
        let milliseconds = match grace {
            Grace::Short => 120,
            Grace::AsLongAsNeeded => u64::MAX,
        };
        self.0.grace.store(milliseconds, Ordering::Relaxed);
    }

    /// An error of kind `Cancelled` once the work is to stop.
    pub(crate) fn check(&self) -> Result<(), Error> {
        if self.0.token.is_cancelled() { Err(self.error()) } else { Ok(()) }
    }

    /// That the work is to stop.
    pub(crate) fn error(&self) -> Error {
        Error::new(ErrorKind::Cancelled, "the work was stopped")
    }

    /// A command begins: until it says otherwise a signal ends it at once.
    pub(crate) fn begin(&self, json: bool) {
        self.0.grace.store(0, Ordering::Relaxed);
        self.0.json.store(json, Ordering::Relaxed);
        self.0.stdout_claimed.store(false, Ordering::Relaxed);
    }

    /// Whether the caller is the first to print to stdout. There is to be one JSON value, and
    /// the thread that ends the process must not wait for one that prints to a full pipe.
    pub(crate) fn claim_stdout(&self) -> bool {
        !self.0.stdout_claimed.swap(true, Ordering::Relaxed)
    }

    /// Runs on a thread of its own, not in the signal handler itself: all calls are allowed.
    fn signalled(&self) {
        self.stop();
        let grace = self.0.grace.load(Ordering::Relaxed);
        if grace == 0 || self.0.signals.fetch_add(1, Ordering::Relaxed) > 0 {
            self.end();
        }
        if grace < u64::MAX {
            let stop = self.clone();
            let late = move || {
                std::thread::sleep(Duration::from_millis(grace));
                stop.end();
            };
            let spawned =
                std::thread::Builder::new().name("weightlift-stop".to_owned()).spawn(late);
            if spawned.is_err() {
                self.end();
            }
        }
    }

    /// Ends the process in the middle of its work, which is told as any other error.
    fn end(&self) -> ! {
        if self.claim_stdout() {
            Failure::from(self.error()).report(self.0.json.load(Ordering::Relaxed));
        } else {
            // The work has come to its end by itself and is telling so: it needs but a moment,
            // unless nobody reads what it prints.
            std::thread::sleep(Duration::from_millis(40));
        }
        std::process::exit(i32::from(STOPPED))
    }
}
