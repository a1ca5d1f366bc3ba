//! What copying out of mappings does beside what all readers do.

use std::fs::File;
use std::io::Read as _;

use super::*;
use crate::error::ErrorKind;

const ENODEV: i32 = 19;
const ENOMEM: i32 = 12;
const EFAULT: i32 = 14;
const MIB: usize = 1 << 20;

fn mapped(sources: Vec<Arc<dyn Source>>) -> Access {
    access(sources, DirectAlignment::USUAL, DirectIo::Auto).mapped()
}

fn pieces(count: usize) -> Layout {
    (0..count).map(|piece| ((piece * MIB) as u64, vec![(0, MIB)])).collect()
}

#[test]
fn a_mapping_brings_the_bytes_and_they_count_as_mapped() {
    let test = "a_mapping_brings_the_bytes_and_they_count_as_mapped";
    if subjects(test, &[Subject::Mapped]).is_empty() {
        return;
    }
    // A window and a half, and an end within a page.
    let file = Written::new(6 * MIB + 100);
    let access = mapped(file.source(Fault::None));
    let mut layout = vec![(0, vec![(5, 6 * MIB + 100)]), (4097, vec![(0, 1), (3, 8192)])];
    layout.push((file.bytes.len() as u64 - 1, vec![(0, 1)]));
    let (results, memory) = read(&mut Auto::new(&access), &layout);
    assert!(results.into_iter().all(|result| result.unwrap() == Kind::Mapped));
    assert_same(&memory, &expected(&layout, &file.bytes), &"mapped");
    assert_eq!(access.mapped_bytes(), (file.bytes.len() + 8193 + 1) as u64);
    assert_eq!(access.refusals().count(), 0);
}

/// FS-14, FS-15 and MM-11: file systems without mappings (ENODEV), pages that cannot be read
/// (EFAULT), no room for a mapping (ENOMEM). All are read by calls from then on, and it is told.
#[test]
fn what_cannot_be_mapped_is_read_otherwise() {
    if subjects("what_cannot_be_mapped_is_read_otherwise", &[Subject::Mapped]).is_empty() {
        return;
    }
    for errno in [ENODEV, ENOMEM, EFAULT] {
        let file = Written::new(4 * MIB);
        let access = mapped(file.source(Fault::None));
        let mut reader = Subject::Mapped.reader(&access, Fault::From(3, errno));
        let (results, memory) = read(&mut *reader, &pieces(4));
        let kinds: Vec<Kind> = results.into_iter().map(Result::unwrap).collect();
        assert_eq!(kinds, [[Kind::Mapped; 2], [Kind::Buffered; 2]].concat(), "{errno}");
        assert_same(&memory, &file.bytes, &errno);
        assert_eq!(access.mapped_bytes(), 2 * MIB as u64);
        let refusals: Vec<_> = access.refusals().collect();
        let [(0, why, bytes)] = refusals[..] else { panic!("{refusals:?}") };
        assert_eq!(bytes, 2 * MIB as u64);
        let said = format!("mapping it: {}", io::Error::from_raw_os_error(errno));
        assert_eq!(why, said);
        // Another reader of the load does not try again.
        let (results, _) = read(&mut Mapped::new(&access), &pieces(1));
        assert_eq!(results[0].as_ref().unwrap(), &Kind::Buffered);
    }
}

/// FS-14: a file that the kernel maps for nobody.
#[test]
fn a_file_system_without_mappings_is_read_by_calls() {
    let test = "a_file_system_without_mappings_is_read_by_calls";
    let path = std::path::Path::new("/sys/kernel/notes");
    let mut bytes = Vec::new();
    let opened = File::open(path).and_then(|mut file| file.read_to_end(&mut bytes));
    if opened.is_err() || bytes.is_empty() {
        return testkit::skipped(test, "no /sys/kernel/notes");
    }
    let local = LocalFile::open_new(path.to_owned(), "notes").unwrap().0;
    if local.length() != bytes.len() as u64 {
        return testkit::skipped(test, "/sys/kernel/notes has no length");
    }
    let access = mapped(vec![Arc::new(local)]);
    let layout = vec![(0, vec![(0, bytes.len())])];
    let (results, memory) = read(&mut Mapped::new(&access), &layout);
    assert_eq!(results[0].as_ref().unwrap(), &Kind::Buffered);
    assert_same(&memory, &bytes, &"notes");
    let why = access.refusals().next().unwrap().1;
    assert!(why.starts_with("mapping it: No such device"), "{why}");
}

/// FS-14: mapped, a folder would be ENODEV too.
#[test]
fn a_folder_in_the_files_place_is_no_regular_file() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("model");
    std::fs::write(&path, [1; 4096]).unwrap();
    let access = mapped(vec![Arc::new(LocalFile::open_new(path.clone(), "model").unwrap().0)]);
    std::fs::remove_file(&path).unwrap();
    std::fs::create_dir(&path).unwrap();
    let (results, _) = read(&mut Mapped::new(&access), &vec![(0, vec![(0, 4096)])]);
    assert_eq!(results[0].as_ref().unwrap_err().kind(), ErrorKind::NotRegular);
    assert_eq!(access.refusals().count(), 0);
}
