//! The digests of all tensors, in bounded memory.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use weightlift::{
    DeviceChoice, Error, ErrorKind, Loader, Model, Options, Request, Tensor, TensorDigests,
};

use crate::signal::Stop;

/// Bytes that are in memory at one time, or one storage if that has more. Few enough for any
/// machine, many enough that the end of a window is short beside it.
const WINDOW: u64 = 256 << 20;

/// What every tensor is, in the index's order.
pub(super) fn digests(model: &Arc<Model>, stop: &Stop) -> Result<Vec<TensorDigests>, Error> {
    let loader = Loader::new(Options::default());
    let index = model.index();
    let mut found: Vec<Option<TensorDigests>> = vec![None; index.tensors.len()];
    for window in windows(model) {
        let names = window.iter().map(|number| &*index.tensors[*number].name);
        let request = Request::new().device(DeviceChoice::Host).tensors(names);
        let loaded = loader.load_model(model, request.cancel(stop.token()))?;
        // A name may be a pattern, and match more: what is not of the window comes again.
        let mut wanted = window.iter().peekable();
        let mut tensors = Vec::new();
        for tensor in &loaded.tensors {
            if let Some(number) = wanted.next_if(|n| *index.tensors[**n].name == *tensor.name()) {
                tensors.push((*number, tensor));
            }
        }
        for (number, digests) in of_all(&tensors, stop)? {
            found[number] = Some(digests);
        }
    }
    let all: Option<Vec<TensorDigests>> = found.into_iter().collect();
    all.ok_or_else(|| Error::new(ErrorKind::Internal, "a tensor was not loaded"))
}

/// Numbers of tensors that are loaded together, ascending. Those of one storage are.
fn windows(model: &Model) -> Vec<Vec<usize>> {
    let index = model.index();
    let storage = |number: &usize| {
        let id = index.tensors[*number].storage;
        let storage = &index.storages[id.0 as usize];
        (storage.source, storage.offset, id, storage.length)
    };
    let mut order: Vec<usize> = (0..index.tensors.len()).collect();
    order.sort_by_key(storage);
    let mut windows: Vec<Vec<usize>> = Vec::new();
    let mut bytes = 0_u64;
    let mut last = None;
    for number in order {
        let (.., id, length) = storage(&number);
        if last != Some(id) {
            if windows.is_empty() || bytes.saturating_add(length) > WINDOW && bytes > 0 {
                windows.push(Vec::new());
                bytes = 0;
            }
            bytes = bytes.saturating_add(length);
            last = Some(id);
        }
        if let Some(window) = windows.last_mut() {
            window.push(number);
        }
    }
    windows.iter_mut().for_each(|window| window.sort_unstable());
    windows
}

/// By as many threads as there are processors, each the next tensor.
fn of_all(tensors: &[(usize, &Tensor)], stop: &Stop) -> Result<Vec<(usize, TensorDigests)>, Error> {
    let next = AtomicUsize::new(0);
    let work = || -> Result<Vec<(usize, TensorDigests)>, Error> {
        let mut found = Vec::new();
        while let Some((number, tensor)) = tensors.get(next.fetch_add(1, Ordering::Relaxed)) {
            stop.check()?;
            found.push((*number, tensor.digests()?));
        }
        Ok(found)
    };
    let threads = std::thread::available_parallelism().map_or(1, usize::from);
    std::thread::scope(|scope| {
        let others = 1..threads.min(tensors.len());
        let others: Vec<_> = others.map(|_| scope.spawn(work)).collect();
        let mut found = work()?;
        for other in others {
            let died = |_| Error::new(ErrorKind::Internal, "a thread died that made digests");
            found.extend(other.join().map_err(died)??);
        }
        Ok(found)
    })
}
