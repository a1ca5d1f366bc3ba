//! The driver is loaded once, or not with an error that says what was missing.

// A function of the table is called.
#![allow(unsafe_code)]

use std::path::Path;

use weightlift_cuda_sys::{CuStatus, Driver, LoadError};

#[test]
fn a_missing_library_lists_what_was_tried() {
    let path = Path::new("/nowhere/libcuda.so.1");
    let error = Driver::load(Some(path)).unwrap_err();
    let LoadError::NotFound { tried } = &error else {
        panic!("unexpected error {error:?}");
    };
    assert_eq!(tried.len(), 1);
    assert_eq!(tried[0].0, "/nowhere/libcuda.so.1");
    assert!(!tried[0].1.is_empty());
    assert!(error.to_string().contains("/nowhere/libcuda.so.1"));
}

#[test]
fn without_a_path_the_usual_names_are_tried() {
    // On a machine with a driver there is nothing to list, and the table must be usable.
    match Driver::load(None) {
        Ok(driver) => assert!(!driver.path().as_os_str().is_empty()),
        Err(LoadError::NotFound { tried }) => {
            let names: Vec<_> = tried.iter().map(|(name, _)| name.as_str()).collect();
            #[cfg(not(windows))]
            assert_eq!(names, ["libcuda.so.1", "libcuda.so", "/usr/lib/wsl/lib/libcuda.so.1"]);
            #[cfg(windows)]
            assert_eq!(names, ["nvcuda.dll"]);
        }
        Err(other) => panic!("unexpected error {other:?}"),
    }
}

#[cfg(target_os = "linux")]
#[test]
fn a_library_that_is_not_the_driver_is_told_by_its_missing_function() {
    let error = Driver::load(Some(Path::new("libm.so.6"))).unwrap_err();
    let LoadError::MissingSymbol { library, symbol } = error else {
        panic!("unexpected error {error:?}");
    };
    assert_eq!((library.as_str(), symbol), ("libm.so.6", "cuInit"));
}

#[test]
fn an_unknown_code_is_a_value_with_a_name() {
    assert_eq!(CuStatus(12345).name(None), "CUDA_ERROR_12345");
    assert_eq!(CuStatus(12345).to_string(), "CUDA_ERROR_12345 (12345)");
    assert_eq!(CuStatus::OUT_OF_MEMORY.to_string(), "CUDA_ERROR_OUT_OF_MEMORY (2)");
}

#[test]
fn only_codes_that_poison_a_context_are_sticky() {
    assert!(CuStatus::ILLEGAL_ADDRESS.is_sticky());
    assert!(CuStatus::LAUNCH_FAILED.is_sticky());
    for mild in [
        CuStatus::SUCCESS,
        CuStatus::OUT_OF_MEMORY,
        CuStatus::NOT_READY,
        CuStatus::HOST_MEMORY_ALREADY_REGISTERED,
        CuStatus(12345),
    ] {
        assert!(!mild.is_sticky(), "{mild}");
    }
}

#[cfg(target_os = "linux")]
#[test]
fn threads_that_load_the_same_driver_share_one_table() {
    let path = fake_cuda::library_path();
    let tables: Vec<usize> = std::thread::scope(|scope| {
        let load = || std::ptr::from_ref(Driver::load(Some(&path)).unwrap()) as usize;
        let threads: Vec<_> = (0..8).map(|_| scope.spawn(load)).collect();
        threads.into_iter().map(|t| t.join().unwrap()).collect()
    });
    assert_eq!(tables, [tables[0]; 8]);

    let driver = Driver::load(Some(&path)).unwrap();
    assert_eq!(driver.path(), path);
    let (mut version, mut count) = (0, 0);
    // SAFETY: the places for answers are references.
    let answers = unsafe {
        [(driver.cuDriverGetVersion)(&mut version), (driver.cuDeviceGetCount)(&mut count)]
    };
    // Loading does not start the driver.
    assert_eq!(answers, [CuStatus::SUCCESS, CuStatus::NOT_INITIALIZED]);
    assert_eq!(version, 13000);
}
