//! The fake answers as a real driver does.
//!
//! One list of calls with the codes that driver 580 (CUDA 13.0) gave. It runs against the fake, and
//! against the machine's own driver if `WEIGHTLIFT_TEST_GPU=1`. Calls whose outcome differs between
//! the two on purpose (see the crate's documentation) are not in it.

#![cfg(target_os = "linux")]
#![allow(unsafe_code)]

#[macro_use]
mod common;

use std::ffi::{c_int, c_void};
use std::ptr;

use common::{Region, Session};
use fake_cuda::Config;
use weightlift_cuda_sys::{
    CuContext, CuDevice, CuDevicePtr, CuEvent, CuMemcpyAttributes, CuStatus, CuStream, Driver,
};

const PAGE: usize = 4096;
const BYTES: usize = 64 << 20;

#[test]
fn the_fake_answers_so() {
    // The session has called nothing yet; its driver is the fake.
    let s = Session::fresh(Config::default());
    compare(s.driver);
}

#[test]
fn a_real_driver_answers_so() {
    if std::env::var_os("WEIGHTLIFT_TEST_GPU").is_none_or(|value| value != "1") {
        eprintln!("skipped: WEIGHTLIFT_TEST_GPU is not 1");
        return;
    }
    compare(Driver::load(None).expect("a driver, since the test was asked for"));
}

/// A driver to call, and what was found to differ.
struct Calls {
    driver: &'static Driver,
    wrong: Vec<String>,
}

impl Calls {
    fn expect(&mut self, what: &str, answer: CuStatus, expected: u32) {
        if answer.0 != expected {
            self.wrong.push(format!("{what}: {answer}, not {expected}"));
        }
    }
}

fn compare(driver: &'static Driver) {
    let mut c = Calls { driver, wrong: Vec::new() };
    before_a_context(&mut c);
    let mut context = CuContext::NULL;
    let retained = cu!(c, cuDevicePrimaryCtxRetain(&mut context, CuDevice(0)));
    c.expect("retain", retained, 0);
    c.expect("make current", cu!(c, cuCtxSetCurrent(context)), 0);

    let mut pointer = 0;
    c.expect("allocate 0", cu!(c, cuMemAlloc_v2(&mut pointer, 0)), 1);
    c.expect("allocate 1 PiB", cu!(c, cuMemAlloc_v2(&mut pointer, 1 << 50)), 2);
    c.expect("free null", cu!(c, cuMemFree_v2(0)), 0);
    c.expect("allocate", cu!(c, cuMemAlloc_v2(&mut pointer, BYTES)), 0);
    c.expect("free inside", cu!(c, cuMemFree_v2(pointer + 512)), 1);
    let (mut stream, mut blocking) = (CuStream::NULL, CuStream::NULL);
    c.expect("stream", cu!(c, cuStreamCreate(&mut stream, 1)), 0);
    c.expect("blocking stream", cu!(c, cuStreamCreate(&mut blocking, 0)), 0);

    streams_and_events(&mut c, stream);
    let region = Region::new(64 * PAGE);
    registrations(&mut c, &region);
    copies(&mut c, &region, pointer, stream);
    attributes(&mut c, &region, pointer);
    batches(&mut c, &region, pointer, stream, blocking);

    c.expect("wait for all", cu!(c, cuCtxSynchronize()), 0);
    for at in [0, 4 * PAGE, 8 * PAGE + 100, 8 * PAGE + 1000] {
        let given_back = cu!(c, cuMemHostUnregister(region.at(at).cast_mut()));
        c.expect("unregister", given_back, 0);
    }
    c.expect("free", cu!(c, cuMemFree_v2(pointer)), 0);
    c.expect("free again", cu!(c, cuMemFree_v2(pointer)), 1);
    let late = cu!(c, cuMemcpyHtoDAsync_v2(pointer, region.at(0), PAGE, stream));
    c.expect("copy to what was freed", late, 1);
    c.expect("destroy", cu!(c, cuStreamDestroy_v2(stream)), 0);
    c.expect("destroy", cu!(c, cuStreamDestroy_v2(blocking)), 0);
    c.expect("release", cu!(c, cuDevicePrimaryCtxRelease_v2(CuDevice(0))), 0);
    assert_eq!(c.wrong, [""; 0]);
}

fn before_a_context(c: &mut Calls) {
    let (mut number, mut context, mut pointer): (c_int, _, _) = (0, CuContext::NULL, 0);
    let mut device = CuDevice(0);
    c.expect("count first", cu!(c, cuDeviceGetCount(&mut number)), 3);
    c.expect("version first", cu!(c, cuDriverGetVersion(&mut number)), 0);
    c.expect("current first", cu!(c, cuCtxGetCurrent(&mut context)), 3);
    c.expect("init with flags", cu!(c, cuInit(1)), 1);
    c.expect("init", cu!(c, cuInit(0)), 0);
    c.expect("device 99", cu!(c, cuDeviceGet(&mut device, 99)), 101);
    let attribute = cu!(c, cuDeviceGetAttribute(&mut number, 5000, device));
    c.expect("attribute 5000", attribute, 1);
    c.expect("allocate", cu!(c, cuMemAlloc_v2(&mut pointer, 1)), 201);
    c.expect("device of none", cu!(c, cuCtxGetDevice(&mut device)), 201);
    c.expect("wait for none", cu!(c, cuCtxSynchronize()), 201);
    let released = cu!(c, cuDevicePrimaryCtxRelease_v2(CuDevice(0)));
    c.expect("release what is not retained", released, 201);
}

fn streams_and_events(c: &mut Calls, stream: CuStream) {
    let (mut event, mut other, mut third) = (CuEvent::NULL, CuEvent::NULL, CuStream::NULL);
    c.expect("stream flags 6", cu!(c, cuStreamCreate(&mut third, 6)), 1);
    c.expect("event flags 16", cu!(c, cuEventCreate(&mut other, 16)), 1);
    c.expect("event", cu!(c, cuEventCreate(&mut event, 2)), 0);
    c.expect("query unrecorded", cu!(c, cuEventQuery(event)), 0);
    c.expect("wait unrecorded", cu!(c, cuEventSynchronize(event)), 0);
    c.expect("order unrecorded", cu!(c, cuStreamWaitEvent(stream, event, 0)), 0);
    c.expect("wait flags 5", cu!(c, cuStreamWaitEvent(stream, event, 5)), 1);
    c.expect("record null", cu!(c, cuEventRecord(CuEvent::NULL, stream)), 400);
    c.expect("destroy no event", cu!(c, cuEventDestroy_v2(CuEvent::NULL)), 400);
    c.expect("destroy no stream", cu!(c, cuStreamDestroy_v2(CuStream::NULL)), 400);
    c.expect("destroy event", cu!(c, cuEventDestroy_v2(event)), 0);
}

/// Leaves two ranges registered side by side, and two in one page.
fn registrations(c: &mut Calls, region: &Region) {
    for (what, at, len, flags, expected) in [
        ("nothing", 0, 0, 1, 1),
        ("flags 64", 0, PAGE, 64, 1),
        ("four pages", 0, 4 * PAGE, 1, 0),
        ("again", 0, 4 * PAGE, 1, 712),
        ("overlapping", 3 * PAGE, 2 * PAGE, 1, 712),
        ("the next four", 4 * PAGE, 4 * PAGE, 1, 0),
        ("unaligned", 8 * PAGE + 100, 200, 1, 0),
        ("in the same page", 8 * PAGE + 1000, 200, 1, 0),
    ] {
        let start = region.at(at).cast_mut();
        let answer = cu!(c, cuMemHostRegister_v2(start, len, flags));
        c.expect(&format!("register {what}"), answer, expected);
    }
    let null = cu!(c, cuMemHostRegister_v2(ptr::null_mut(), PAGE, 1));
    c.expect("register null", null, 1);
    let low: *mut c_void = ptr::without_provenance_mut(PAGE);
    let unmapped = cu!(c, cuMemHostRegister_v2(low, PAGE, 1));
    c.expect("register what is not mapped", unmapped, 1);
    for (what, at, expected) in [
        ("unknown", region.at(20 * PAGE), 713),
        ("inside", region.at(PAGE), 1),
        ("null", ptr::null(), 1),
    ] {
        let answer = cu!(c, cuMemHostUnregister(at.cast_mut()));
        c.expect(&format!("unregister {what}"), answer, expected);
    }
}

fn copies(c: &mut Calls, region: &Region, pointer: CuDevicePtr, stream: CuStream) {
    let end = pointer + BYTES as u64;
    for (what, to, from, len, expected) in [
        ("pinned", pointer, region.at(0), PAGE, 0),
        ("nothing", pointer, region.at(0), 0, 0),
        ("nothing from nowhere", 0, ptr::null(), 0, 0),
        ("across two registrations", pointer, region.at(3 * PAGE), 2 * PAGE, 1),
        ("out of a registration", pointer, region.at(7 * PAGE), PAGE + 8, 1),
        ("pageable", pointer, region.at(20 * PAGE), PAGE, 0),
        ("beyond the target", end - 8, region.at(0), PAGE, 1),
        ("to a host address", region.at(30 * PAGE) as u64, region.at(0), PAGE, 1),
    ] {
        let answer = cu!(c, cuMemcpyHtoDAsync_v2(to, from, len, stream));
        c.expect(&format!("copy {what}"), answer, expected);
    }
    c.expect("wait", cu!(c, cuStreamSynchronize(stream)), 0);
    let nothing = cu!(c, cuMemsetD8Async(pointer, 1, 0, stream));
    c.expect("set nothing", nothing, 0);
    let beyond = cu!(c, cuMemsetD8Async(end - 8, 1, PAGE, stream));
    c.expect("set beyond the target", beyond, 1);
}

fn attributes(c: &mut Calls, region: &Region, pointer: CuDevicePtr) {
    let device = Some([2, 0, pointer, BYTES as u64]);
    let host = Some([1, 0, region.at(0) as u64, 4 * PAGE as u64]);
    for (what, at, expected) in [
        ("device", pointer + 5, device),
        ("registered", region.at(5000) as u64, host),
        ("pageable", region.at(20 * PAGE) as u64, None),
        ("null", 0, None),
    ] {
        // Kind of memory, device, start, length.
        for (i, attribute) in [2, 9, 11, 12].into_iter().enumerate() {
            let mut value = 0u64;
            let place = (&raw mut value).cast();
            let answer = cu!(c, cuPointerGetAttribute(place, attribute, at));
            let what = format!("attribute {attribute} of {what} memory");
            c.expect(&what, answer, u32::from(expected.is_none()));
            let expected = expected.map_or(0, |all| all[i]);
            if value != expected {
                c.wrong.push(format!("{what}: {value:#x}, not {expected:#x}"));
            }
        }
    }
    let mut value = 0u64;
    let unknown = cu!(c, cuPointerGetAttribute((&raw mut value).cast(), 77, pointer));
    c.expect("attribute 77", unknown, 1);
}

fn batches(
    c: &mut Calls,
    region: &Region,
    pointer: CuDevicePtr,
    stream: CuStream,
    blocking: CuStream,
) {
    struct Case {
        count: usize,
        to: u64,
        from: [usize; 2],
        sizes: [usize; 2],
        orders: [u32; 2],
        firsts: [usize; 2],
        kinds: usize,
        stream: CuStream,
    }
    let plain = || Case {
        count: 2,
        to: pointer + PAGE as u64,
        from: [0, PAGE],
        sizes: [PAGE; 2],
        orders: [1, 2],
        firsts: [0, 1],
        kinds: 2,
        stream,
    };
    #[rustfmt::skip]
    let cases = [
        ("plain", plain(), 0),
        ("at any time", Case { orders: [3, 3], ..plain() }, 0),
        ("in a blocking stream", Case { stream: blocking, ..plain() }, 0),
        ("pageable", Case { from: [20 * PAGE, 21 * PAGE], ..plain() }, 0),
        ("in the legacy stream", Case { stream: CuStream::NULL, ..plain() }, 1),
        ("of none", Case { count: 0, ..plain() }, 1),
        ("without attributes", Case { kinds: 0, ..plain() }, 1),
        ("with more attributes than copies", Case { count: 1, ..plain() }, 1),
        ("with attributes out of order", Case { firsts: [0, 0], ..plain() }, 1),
        ("whose first has no attributes", Case { firsts: [1, 1], kinds: 1, ..plain() }, 1),
        ("with attributes for a third", Case { firsts: [0, 2], ..plain() }, 1),
        ("in order 0", Case { orders: [0, 0], ..plain() }, 1),
        ("in order 9", Case { orders: [9, 1], ..plain() }, 1),
        ("with an empty copy", Case { sizes: [PAGE, 0], ..plain() }, 1),
        ("across registrations", Case { from: [0, 3 * PAGE], sizes: [PAGE, 2 * PAGE], ..plain() }, 1),
        ("beyond the target", Case { to: pointer + BYTES as u64 - 8, ..plain() }, 1),
    ];
    let (Some(old), Some(new)) = (c.driver.cuMemcpyBatchAsync, c.driver.cuMemcpyBatchAsync_v2)
    else {
        eprintln!("skipped: batches, the driver is older than 13.0");
        return;
    };
    for (what, case, expected) in cases {
        let mut to = [pointer, case.to];
        let mut from = case.from.map(|at| region.at(at) as u64);
        let mut sizes = case.sizes;
        let mut firsts = case.firsts;
        let mut kinds = case.orders.map(|src_access_order| CuMemcpyAttributes {
            src_access_order,
            ..CuMemcpyAttributes::default()
        });
        let (to, from, sizes) = (to.as_mut_ptr(), from.as_mut_ptr(), sizes.as_mut_ptr());
        let (kinds, firsts) = (kinds.as_mut_ptr(), firsts.as_mut_ptr());
        let mut failed = 0;
        // SAFETY: arrays of two elements, of which at most two are told; the sources outlive the
        // wait below.
        let answers = unsafe {
            [
                old(
                    to,
                    from,
                    sizes,
                    case.count,
                    kinds,
                    firsts,
                    case.kinds,
                    &mut failed,
                    case.stream,
                ),
                new(to, from, sizes, case.count, kinds, firsts, case.kinds, case.stream),
            ]
        };
        for answer in answers {
            c.expect(&format!("a batch {what}"), answer, expected);
        }
        c.expect("wait", cu!(c, cuCtxSynchronize()), 0);
    }
}
