//! What takes a reader takes a stream.

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::io::{self, BufRead, BufReader, Read, Seek, SeekFrom};
use std::os::unix::fs::FileExt;

use testkit::Random;
use weightlift::{Stream, StreamOptions};

use super::{KIB, MIB, settings};

#[test]
fn json_lines_text_and_copies_read_as_from_a_file() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("list.json");
    let list: BTreeMap<String, u64> = (0..60_000).map(|n| (format!("tensor.{n}"), n * n)).collect();
    fs::write(&path, serde_json::to_string_pretty(&list).unwrap()).unwrap();
    let open = || Stream::open(&path, &settings(3, MIB)).unwrap();
    let read: BTreeMap<String, u64> = serde_json::from_reader(open()).unwrap();
    assert_eq!(read, list);
    let read: BTreeMap<String, u64> = serde_json::from_reader(BufReader::new(open())).unwrap();
    assert_eq!(read, list);

    let text = fs::read_to_string(&path).unwrap();
    assert_eq!(io::read_to_string(open()).unwrap(), text);
    let lines: Vec<String> = open().lines().map(Result::unwrap).collect();
    assert!(lines.iter().eq(text.lines()));
    let mut copy = Vec::new();
    assert_eq!(io::copy(&mut open(), &mut copy).unwrap(), text.len() as u64);
    assert_eq!(copy, text.as_bytes());
    let mut stream = open();
    stream.seek(SeekFrom::Start(3)).unwrap();
    let mut after = "before ".to_owned();
    stream.read_to_string(&mut after).unwrap();
    assert_eq!(after, format!("before {}", &text[3..]));
}

/// As archives are read: the list of entries from the end, then entry by entry.
#[test]
fn an_archive_is_read_by_seeks_also_inside_another_file() {
    let mut random = Random::new(8);
    let entries: Vec<Vec<u8>> =
        [0, 5, 70_000, 6 * MIB, 300, MIB].iter().map(|size| random.bytes(*size)).collect();
    let lead = random.bytes(1001);
    let (mut archive, mut list) = (Vec::new(), Vec::new());
    for entry in &entries {
        let place = (archive.len() as u64, entry.len() as u64);
        list.extend([place.0.to_le_bytes(), place.1.to_le_bytes()].concat());
        archive.extend(b"ENTRY");
        archive.extend(entry);
    }
    archive.extend(&list);
    archive.extend((entries.len() as u64).to_le_bytes());
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("blob");
    fs::write(&path, [&lead[..], &archive, &lead].concat()).unwrap();

    let file = Stream::open(&path, &StreamOptions::default()).unwrap();
    assert_eq!(file.len(), (2 * lead.len() + archive.len()) as u64);
    drop(file);
    let model = weightlift::Model::open(&path, &{
        let mut options = weightlift::OpenOptions::default();
        options.format = Some(weightlift::index::Format::Raw);
        options
    })
    .unwrap();
    let range = lead.len() as u64..(lead.len() + archive.len()) as u64;
    let source = model.sources()[0].clone();
    let mut stream = Stream::over(source, range, &settings(3, 256 * KIB)).unwrap();

    let number = |stream: &mut Stream| {
        let mut bytes = [0; 8];
        stream.read_exact(&mut bytes).unwrap();
        u64::from_le_bytes(bytes)
    };
    stream.seek(SeekFrom::End(-8)).unwrap();
    let count = number(&mut stream);
    assert_eq!(stream.read(&mut [0; 1]).unwrap(), 0);
    stream.seek(SeekFrom::End(-8 - 16 * count as i64)).unwrap();
    let places: Vec<_> = (0..count).map(|_| (number(&mut stream), number(&mut stream))).collect();
    for (entry, (offset, length)) in entries.iter().zip(places).rev() {
        stream.seek(SeekFrom::Start(offset)).unwrap();
        let mut magic = [0; 5];
        stream.read_exact(&mut magic).unwrap();
        assert_eq!(&magic, b"ENTRY");
        let mut bytes = Vec::new();
        (&mut stream).take(length).read_to_end(&mut bytes).unwrap();
        assert!(bytes == *entry);
    }
    stream.check().unwrap();
}

#[test]
fn empty_files_and_files_of_a_windows_size() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("file");
    for length in [0, 1, 64 * KIB - 1, 64 * KIB, 64 * KIB + 1, 2 * MIB] {
        let bytes = Random::new(9).bytes(length);
        fs::write(&path, &bytes).unwrap();
        for window in [64 * KIB, 2 * MIB] {
            let mut stream = Stream::open(&path, &settings(2, window)).unwrap();
            assert_eq!((stream.len(), stream.is_empty()), (length as u64, length == 0));
            let mut found = Vec::new();
            let mut part = [0; 4096];
            loop {
                match stream.read(&mut part).unwrap() {
                    0 => break,
                    count => found.extend_from_slice(&part[..count]),
                }
            }
            assert!(found == bytes, "{length} bytes, a window of {window}");
            assert_eq!(stream.read(&mut part).unwrap(), 0);
            assert!(stream.fill_buf().unwrap().is_empty());
        }
    }
}

/// FS-01: beyond what one call of the system reads, and beyond 32 bits.
#[test]
fn offsets_and_reads_beyond_2_gib() {
    const LENGTH: u64 = 5 << 30;
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("sparse");
    let file = File::create(&path).unwrap();
    file.set_len(LENGTH).unwrap();
    let mut islands = Random::new(10);
    let places = [0, (2 << 30) - 7, (4 << 30) - 9, LENGTH - 100].map(|at| (at, islands.bytes(100)));
    for (at, bytes) in &places {
        file.write_all_at(bytes, *at).unwrap();
    }
    let mut stream = Stream::open(&path, &settings(2, 8 * MIB)).unwrap();
    let mut found = [0; 100];
    for (at, bytes) in &places {
        stream.seek(SeekFrom::Start(*at)).unwrap();
        stream.read_exact(&mut found).unwrap();
        assert_eq!(found[..], bytes[..]);
        stream.read_exact_at(&mut found, *at).unwrap();
        assert_eq!(found[..], bytes[..]);
    }
    // One read of 3 GiB; one call of Linux's reads 2 GiB less a page at the most.
    let mut large = vec![0; 3 << 30];
    stream.seek(SeekFrom::End(-(3 << 30))).unwrap();
    assert_eq!(stream.read(&mut large).unwrap(), 3 << 30);
    for (at, bytes) in &places[2..] {
        let from = (at - (LENGTH - (3 << 30))) as usize;
        assert!(large[from..from + 100] == bytes[..]);
    }
    assert_eq!(stream.read(&mut found).unwrap(), 0);
}
