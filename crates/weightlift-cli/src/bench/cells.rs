//! What is sampled: routes times states times numbers of reading threads, and in which order.

use std::hash::{BuildHasher, RandomState};

use weightlift::{DeviceChoice, ReadingThreads, Route, RouteChoice};

use super::results::{Cell, LeftOut};
use super::state::State;

/// A combination as it is asked for.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Asked {
    pub(super) route: RouteChoice,
    pub(super) state: State,
    pub(super) threads: ReadingThreads,
    /// Where tensors are to go.
    pub(super) device: DeviceChoice,
    /// The route that it comes to where nothing goes wrong.
    pub(super) expected: Route,
}

impl Asked {
    pub(super) fn cell(&self) -> Cell {
        Cell {
            state: self.state.to_string(),
            route: self.route.to_string(),
            reading_threads: self.threads.to_string(),
        }
    }
}

/// All combinations, and those that are none.
pub(super) fn all(
    routes: &[RouteChoice],
    states: &[State],
    threads: &[ReadingThreads],
    device: DeviceChoice,
    has_cuda: bool,
) -> (Vec<Asked>, Vec<LeftOut>) {
    let (mut all, mut left_out) = (Vec::new(), Vec::new());
    for &state in states {
        for &route in routes {
            for &threads in threads {
                let (device, expected) = way(route, threads, device, has_cuda);
                let asked = Asked { route, state, threads, device, expected };
                let pins_nothing = threads.get() == Some(0);
                if route == RouteChoice::Forced(Route::Pinned) && pins_nothing {
                    let reason = "0 reading threads pin nothing".to_owned();
                    left_out.push(LeftOut { cell: asked.cell(), reason });
                } else {
                    all.push(asked);
                }
            }
        }
    }
    (all, left_out)
}

/// Where tensors go, and the route that bytes take where nothing goes wrong.
fn way(
    route: RouteChoice,
    threads: ReadingThreads,
    device: DeviceChoice,
    has_cuda: bool,
) -> (DeviceChoice, Route) {
    match route {
        RouteChoice::Forced(Route::Host) => (DeviceChoice::Host, Route::Host),
        // A forced route has no other end.
        RouteChoice::Forced(route) if device == DeviceChoice::Auto => {
            (DeviceChoice::CurrentCuda, route)
        }
        RouteChoice::Forced(route) => (device, route),
        RouteChoice::Auto if device == DeviceChoice::Host => (device, Route::Host),
        // Without a device that is what `auto` means; one that was asked for is an error.
        RouteChoice::Auto if !has_cuda && device == DeviceChoice::Auto => (device, Route::Host),
        RouteChoice::Auto if threads.get() == Some(0) => (device, Route::Pageable),
        RouteChoice::Auto => (device, Route::Pinned),
    }
}

/// The order of one round: another one each time, so that what changes with time meets all alike.
pub(super) fn shuffled(count: usize) -> Vec<usize> {
    let mut order: Vec<usize> = (0..count).collect();
    // The standard library's only random numbers are its hashers' keys.
    let random = RandomState::new();
    for last in (1..count).rev() {
        order.swap(last, (random.hash_one(last) % (last as u64 + 1)) as usize);
    }
    order
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_none_is_left_out_and_auto_is_known() {
        let routes = ["auto", "host", "pageable", "pinned"].map(|route| route.parse().unwrap());
        let threads = [ReadingThreads::new(0).unwrap(), ReadingThreads::AUTO];
        let (asked, left_out) = all(&routes, &[State::Warm], &threads, DeviceChoice::Auto, true);
        assert_eq!((asked.len(), left_out.len()), (7, 1));
        assert_eq!(left_out[0].cell.name(), "pinned, warm, 0 threads");
        let ways: Vec<_> =
            asked.iter().map(|asked| (asked.device.to_string(), asked.expected.name())).collect();
        let cuda = |route| ("cuda".to_owned(), route);
        let auto = |route| ("auto".to_owned(), route);
        let host = || ("host".to_owned(), "host");
        let wanted = [auto("pageable"), auto("pinned"), host(), host()];
        assert_eq!(ways[..4], wanted);
        assert_eq!(ways[4..], [cuda("pageable"), cuda("pageable"), cuda("pinned")]);
        let (asked, _) = all(&routes[..1], &[State::Warm], &threads, DeviceChoice::Auto, false);
        assert!(asked.iter().all(|asked| asked.expected == Route::Host));
    }

    #[test]
    fn an_order_has_everything_once() {
        let mut order = shuffled(50);
        assert_ne!(order, (0..50).collect::<Vec<_>>());
        order.sort_unstable();
        assert_eq!(order, (0..50).collect::<Vec<_>>());
        assert!(shuffled(0).is_empty());
    }
}
