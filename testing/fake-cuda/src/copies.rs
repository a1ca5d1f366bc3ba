//! Copies to a device, one by one and in batches: what is checked before they are queued.

// Batches come as arrays of the caller's.
#![allow(unsafe_code)]

use std::ffi::{c_int, c_uint};

use crate::host;
use crate::work::{Source, Work};
use crate::world::{self, Guard, Status, World, check, status};

/// A copy to a device that was found right.
pub(crate) struct ToDevice {
    work: Work,
    pinned: bool,
    len: u64,
}

/// Checks a copy to a device and, if its source is not registered or `during_call`, takes its
/// bytes at once. The world is let go meanwhile: that takes time.
pub(crate) fn to_device(
    mut world: Guard,
    device: usize,
    to: u64,
    from: usize,
    bytes: usize,
    during_call: bool,
) -> Result<(Guard, ToDevice), Status> {
    let len = bytes as u64;
    let to = world.range(device, to, len)?;
    let registration = world.registration_of(from, bytes)?;
    let source = match registration {
        Some(registration) if !during_call => Source::Later { address: from, registration },
        _ => {
            drop(world);
            let mut taken = vec![0; bytes];
            let outcome = host::read(from, &mut taken);
            world = world::lock();
            if let Err(error) = outcome {
                world.violation(format!("{from:#x}+{bytes} cannot be read ({error})"));
                return Err(status::INVALID_VALUE);
            }
            Source::Taken(taken)
        }
    };
    let copy = ToDevice {
        work: Work::ToDevice { to, len, from: source },
        pinned: registration.is_some(),
        len,
    };
    Ok((world, copy))
}

impl World {
    pub fn enqueue_to_device(&mut self, stream: u64, copy: ToDevice) {
        let counts = &mut self.counts;
        if copy.pinned {
            counts.pinned_copies += 1;
            counts.pinned_bytes += copy.len;
        } else {
            counts.pageable_copies += 1;
            counts.pageable_bytes += copy.len;
        }
        self.enqueue(stream, Vec::new(), copy.work);
    }
}

/// `CUmemcpyAttributes`.
#[repr(C)]
#[derive(Clone, Copy)]
pub(crate) struct Attributes {
    source_access_order: c_uint,
    source_location: [c_int; 2],
    target_location: [c_int; 2],
    flags: c_uint,
}

/// A batch of copies, its arguments in order.
pub(crate) struct Batch {
    /// To, from, bytes, taken during the call.
    copies: Vec<(u64, u64, usize, bool)>,
}

impl Batch {
    /// # Safety
    /// The pointers, where not null, lead to arrays of `count` and `kinds` elements.
    pub unsafe fn new(
        to: *const u64,
        from: *const u64,
        sizes: *const usize,
        count: usize,
        attributes: *const Attributes,
        firsts: *const usize,
        kinds: usize,
    ) -> Result<Batch, Status> {
        let missing = to.is_null() || from.is_null() || sizes.is_null();
        let none = attributes.is_null() || firsts.is_null() || kinds == 0;
        check(!missing && !none && count > 0, status::INVALID_VALUE)?;
        check(kinds <= count, status::INVALID_VALUE)?;
        // SAFETY: as promised by the caller.
        let (attributes, firsts) = unsafe {
            (
                std::slice::from_raw_parts(attributes, kinds),
                std::slice::from_raw_parts(firsts, kinds),
            )
        };
        let ascending = firsts.windows(2).all(|pair| pair[0] < pair[1]);
        check(firsts[0] == 0 && ascending, status::INVALID_VALUE)?;
        check(firsts[kinds - 1] < count, status::INVALID_VALUE)?;
        // In stream order, during the call, at any time.
        let orders = |a: &Attributes| (1..=3).contains(&a.source_access_order);
        check(attributes.iter().all(orders), status::INVALID_VALUE)?;
        let copies = (0..count).map(|i| {
            let kind = firsts.partition_point(|&first| first <= i) - 1;
            let during_call = attributes[kind].source_access_order == 2;
            // SAFETY: as promised by the caller.
            unsafe { (*to.add(i), *from.add(i), *sizes.add(i), during_call) }
        });
        Ok(Batch { copies: copies.collect() })
    }

    /// Queues all copies, or none; `at` becomes the one that is wrong.
    pub fn enqueue(
        self,
        mut world: Guard,
        device: usize,
        stream: usize,
        at: &mut usize,
    ) -> Result<(), Status> {
        let stream = world.stream(stream as u64, device)?;
        if world.is_legacy(stream) {
            world.violation("a batch cannot go to the legacy stream".into());
            return Err(status::INVALID_VALUE);
        }
        let mut ready = Vec::new();
        for (i, &(to, from, bytes, during_call)) in self.copies.iter().enumerate() {
            *at = i;
            if bytes == 0 {
                world.violation(format!("copy {i} of a batch is empty"));
                return Err(status::INVALID_VALUE);
            }
            if world.find(from, 1).is_some() {
                world.violation("copies from a device are not modelled in batches".into());
                return Err(status::NOT_SUPPORTED);
            }
            let copy;
            (world, copy) = to_device(world, device, to, from as usize, bytes, during_call)?;
            ready.push(copy);
        }
        world.counts.batch_calls += 1;
        world.counts.batch_copies += ready.len() as u64;
        for copy in ready {
            world.enqueue_to_device(stream, copy);
        }
        Ok(())
    }
}
