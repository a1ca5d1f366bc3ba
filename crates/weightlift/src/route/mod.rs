//! Which way bytes take, and who reads: the only room that knows readers and devices together.

mod activity;
mod pipeline;
mod targets;

use crate::device::DeviceId;
use crate::error::{Error, ErrorKind, Result};
use crate::options::{ReadingThreads, Route, RouteChoice};

pub(crate) use pipeline::{Cancelled, End, Job, Meanwhile, Measures, Prepare, Staged, Stop, run};
pub(crate) use targets::Targets;

/// The route for a device, from what was asked for, and why it is that one.
///
/// | device | route asked for | `reading_threads` | route | readers |
/// |---|---|---|---|---|
/// | host | auto, host | auto or 0 | host | chosen |
/// | host | auto, host | 1 | host | the calling thread |
/// | host | auto, host | 2 to 64 | host | that many |
/// | host | pageable, pinned | any | refused | |
/// | cuda | auto | auto | pinned, else pageable | chosen |
/// | cuda | auto | 0 | pageable | chosen |
/// | cuda | auto | 1 | pinned, else pageable | the calling thread |
/// | cuda | auto | 2 to 64 | pinned, else pageable | that many |
/// | cuda | pinned | auto, 1, 2 to 64 | pinned | as above |
/// | cuda | pinned | 0 | refused: 0 pins nothing | |
/// | cuda | pageable | auto or 0 | pageable | chosen |
/// | cuda | pageable | 1, 2 to 64 | pageable | as above |
/// | cuda | host | any | refused | |
pub(crate) fn choose(
    device: DeviceId,
    asked: RouteChoice,
    threads: ReadingThreads,
) -> Result<(Route, &'static str)> {
    let refuse = |why: &str, hint: &str| {
        Err(Error::new(ErrorKind::InvalidRoute, why)
            .with("route", asked)
            .with("device", device)
            .with("reading_threads", threads)
            .hint(hint))
    };
    match (device, asked, threads.get()) {
        (DeviceId::Host, RouteChoice::Auto, _) => Ok((Route::Host, "host memory is read in place")),
        (DeviceId::Host, RouteChoice::Forced(Route::Host), _) => Ok((Route::Host, "asked for")),
        (DeviceId::Host, RouteChoice::Forced(_), _) => {
            refuse("this route leads to a CUDA device", "take --route host or --device cuda")
        }
        (DeviceId::Cuda(_), RouteChoice::Auto, Some(0)) => {
            Ok((Route::Pageable, "reading_threads=0 pins nothing"))
        }
        (DeviceId::Cuda(_), RouteChoice::Auto, _) => {
            Ok((Route::Pinned, "copies out of pinned memory run at bus speed"))
        }
        (DeviceId::Cuda(_), RouteChoice::Forced(Route::Pinned), Some(0)) => refuse(
            "reading_threads=0 pins nothing",
            "take 1 to 64 reading threads, or --route pageable",
        ),
        (DeviceId::Cuda(_), RouteChoice::Forced(Route::Host), _) => {
            refuse("the host route leads to host memory", "take --route pinned or --device host")
        }
        (DeviceId::Cuda(_), RouteChoice::Forced(route), _) => Ok((route, "asked for")),
    }
}

/// Most readers that are chosen unasked. 12 keep a PCIe 5 x16 bus busy (one H200 with 16 cores);
/// 14 were no faster there (docs/benchmarks.md).
const MOST_READERS: usize = 12;

/// Most readers that are chosen unasked for a disk that rotates. One is enough to keep the head
/// where it is; the second asks for what comes next while the first one's bytes are copied. More
/// have the head move between them: with many threads on one file, a load that had taken one to
/// three minutes took fifteen (llama.cpp#705).
const MOST_READERS_OF_A_ROTATING_DISK: usize = 2;

/// How many readers, from what was asked for and the number of processors.
pub(crate) fn readers(threads: ReadingThreads, processors: usize) -> usize {
    match threads.get() {
        None | Some(0) => processors.clamp(1, MOST_READERS),
        Some(count) => usize::from(count),
    }
}

/// How many of these readers a disk that rotates is to have, unless their number was asked for.
pub(crate) fn readers_of_a_rotating_disk(threads: ReadingThreads, readers: usize) -> Option<usize> {
    let unasked = matches!(threads.get(), None | Some(0));
    unasked.then(|| readers.min(MOST_READERS_OF_A_ROTATING_DISK))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Every combination there is, in the words of the table above.
    #[test]
    fn the_table_of_route_threads_and_device_holds() {
        let cuda = DeviceId::Cuda(0);
        let routes = [
            RouteChoice::Auto,
            RouteChoice::Forced(Route::Host),
            RouteChoice::Forced(Route::Pageable),
            RouteChoice::Forced(Route::Pinned),
        ];
        let mut threads = vec![ReadingThreads::AUTO];
        threads.extend((0..=64).map(|count| ReadingThreads::new(count).unwrap()));
        assert!(ReadingThreads::new(65).is_err());
        for device in [DeviceId::Host, cuda] {
            for route in routes {
                for threads in &threads {
                    let zero = threads.get() == Some(0);
                    let expected = match (device == cuda, route.to_string().as_str()) {
                        (false, "auto" | "host") => Some(Route::Host),
                        (false, _) => None,
                        (true, "auto") if zero => Some(Route::Pageable),
                        (true, "auto") => Some(Route::Pinned),
                        (true, "pinned") if zero => None,
                        (true, "pinned") => Some(Route::Pinned),
                        (true, "pageable") => Some(Route::Pageable),
                        (true, _) => None,
                    };
                    let chosen = choose(device, route, *threads);
                    match (&chosen, expected) {
                        (Ok((route, _)), Some(expected)) => assert_eq!(*route, expected),
                        (Err(error), None) => assert_eq!(error.kind(), ErrorKind::InvalidRoute),
                        _ => {
                            panic!("{device} {route} {threads}: {chosen:?}, expected {expected:?}")
                        }
                    }
                }
            }
        }
    }

    #[test]
    fn readers_follow_the_processors_unless_told() {
        let count = |text: &str, processors| readers(text.parse().unwrap(), processors);
        assert_eq!(count("auto", 1), 1);
        assert_eq!(count("auto", 2), 2);
        assert_eq!(count("0", 8), 8);
        assert_eq!(count("auto", 16), 12);
        assert_eq!(count("1", 16), 1);
        assert_eq!(count("64", 2), 64);
    }

    #[test]
    fn a_rotating_disk_has_two_readers_unless_told() {
        let count =
            |text: &str, readers| readers_of_a_rotating_disk(text.parse().unwrap(), readers);
        assert_eq!([count("auto", 1), count("auto", 2), count("auto", 12)], [1, 2, 2].map(Some));
        assert_eq!(count("0", 12), Some(2));
        assert_eq!([count("1", 1), count("8", 8)], [None, None]);
    }
}
