//! How fast a stream reads a file, beside the standard library's own ways.
//!
//! ```text
//! cargo run --release --example stream -- [--threads N] [--window SIZE] [--rounds N] FILE
//! ```
//!
//! Prints, for every way, the median and the range of the rounds in GB/s (10^9 bytes). The ways
//! take turns, so that whatever else the machine does meets all of them; a first round, which
//! fills the page cache, is not counted. Every way must have seen the same bytes.

use std::fs::File;
use std::io::{BufReader, Read, Result, Seek, SeekFrom};
use std::time::Instant;

use weightlift::{Stream, StreamOptions, parse_size};

const MIB: usize = 1 << 20;

fn main() -> Result<()> {
    let (mut options, mut rounds, mut file) = (StreamOptions::default(), 7, None);
    let mut arguments = std::env::args().skip(1);
    while let Some(argument) = arguments.next() {
        let mut value = || arguments.next().unwrap_or_default();
        match argument.as_str() {
            "--threads" => options.threads = value().parse()?,
            "--window" => options.window = parse_size(&value()).unwrap_or(0),
            "--rounds" => rounds = value().parse().unwrap_or(rounds),
            _ => file = Some(argument),
        }
    }
    let path = file.ok_or_else(|| std::io::Error::other("which file?"))?;
    let length = File::open(&path)?.metadata()?.len() as usize;
    let stream = || -> Result<Stream> { Ok(Stream::open(&path, &options)?) };

    // Large reads go to memory that has its pages, as those of a reader that reads often do;
    // `read_to_end` is the one that has to be given new ones.
    let mut memory = vec![1_u8; length];
    type Way<'a> = (&'a str, Box<dyn Fn(&mut [u8]) -> Result<u64> + 'a>);
    let ways: Vec<Way<'_>> = vec![
        (
            "File, BufReader of 64 KiB, reads of 4 KiB",
            Box::new(|memory| {
                in_reads(BufReader::with_capacity(64 << 10, File::open(&path)?), 4096, memory)
            }),
        ),
        ("stream, reads of 4 KiB", Box::new(|memory| in_reads(stream()?, 4096, memory))),
        ("File, reads of 64 KiB", Box::new(|m| in_reads(File::open(&path)?, 64 << 10, m))),
        ("stream, reads of 64 KiB", Box::new(|memory| in_reads(stream()?, 64 << 10, memory))),
        ("File, reads of 1 MiB", Box::new(|m| in_reads(File::open(&path)?, MIB, m))),
        ("stream, reads of 1 MiB", Box::new(|memory| in_reads(stream()?, MIB, memory))),
        ("File, reads of 2 MiB", Box::new(|m| in_reads(File::open(&path)?, 2 * MIB, m))),
        ("stream, reads of 2 MiB", Box::new(|memory| in_reads(stream()?, 2 * MIB, memory))),
        ("File, reads of 4 MiB", Box::new(|m| in_reads(File::open(&path)?, 4 * MIB, m))),
        ("stream, reads of 4 MiB", Box::new(|memory| in_reads(stream()?, 4 * MIB, memory))),
        ("File, one read", Box::new(|memory| whole(File::open(&path)?, memory))),
        ("stream, one read", Box::new(|memory| whole(stream()?, memory))),
        ("File, one read into new memory", Box::new(|_| into_new(File::open(&path)?, length))),
        ("stream, one read into new memory", Box::new(|_| into_new(stream()?, length))),
        ("File, read_to_end", Box::new(|_| to_end(File::open(&path)?))),
        ("stream, read_to_end", Box::new(|_| to_end(stream()?))),
        (
            "File, 2,000 reads of 4 KiB here and there",
            Box::new(|m| scattered(File::open(&path)?, m)),
        ),
        ("stream, 2,000 reads of 4 KiB here and there", Box::new(|m| scattered(stream()?, m))),
    ];
    let mut seconds = vec![Vec::new(); ways.len()];
    let mut sums = vec![None; ways.len()];
    for round in 0..=rounds {
        for (way, (name, run)) in ways.iter().enumerate() {
            let start = Instant::now();
            let sum = run(&mut memory)?;
            if round > 0 {
                seconds[way].push(start.elapsed().as_secs_f64());
            }
            assert_eq!(*sums[way].get_or_insert(sum), sum, "{name}: other bytes than before");
        }
    }
    let (whole, scattered) = sums.split_at(ways.len() - 2);
    assert!(whole.iter().all(|sum| *sum == whole[0]), "the ways differ: {whole:?}");
    assert_eq!(scattered[0], scattered[1], "the ways differ");
    for ((name, _), mut seconds) in ways.iter().zip(seconds) {
        seconds.sort_by(f64::total_cmp);
        let bytes = if name.contains("here and there") { 2_000 * 4096 } else { length };
        let rate = |seconds: f64| bytes as f64 / seconds / 1e9;
        let (low, high) = (rate(seconds[seconds.len() - 1]), rate(seconds[0]));
        println!("{name:45} {:6.2}  ({low:.2} to {high:.2})", rate(seconds[seconds.len() / 2]));
    }
    Ok(())
}

/// Reads of `size` bytes, all into the same memory, whose first byte is looked at.
fn in_reads(mut reader: impl Read, size: usize, memory: &mut [u8]) -> Result<u64> {
    let mut sum = 0;
    let mut total = 0;
    loop {
        let mut done = 0;
        while done < size {
            match reader.read(&mut memory[done..size])? {
                0 => break,
                count => done += count,
            }
        }
        for at in (0..done).step_by(4096) {
            sum = mixed(sum, memory[at]);
        }
        total += done;
        if done < size {
            return Ok(sum + total as u64);
        }
    }
}

fn whole(mut reader: impl Read, memory: &mut [u8]) -> Result<u64> {
    reader.read_exact(memory)?;
    Ok(sum_of(memory))
}

fn into_new(mut reader: impl Read, length: usize) -> Result<u64> {
    let mut bytes = vec![0; length];
    reader.read_exact(&mut bytes)?;
    Ok(sum_of(&bytes))
}

fn to_end(mut reader: impl Read) -> Result<u64> {
    let mut bytes = Vec::new();
    reader.read_to_end(&mut bytes)?;
    Ok(sum_of(&bytes))
}

fn sum_of(bytes: &[u8]) -> u64 {
    bytes.iter().step_by(4096).fold(0, |sum, byte| mixed(sum, *byte)) + bytes.len() as u64
}

fn scattered(mut reader: impl Read + Seek, memory: &mut [u8]) -> Result<u64> {
    let mut sum = 0;
    let mut at = 1_u64;
    for _ in 0..2_000 {
        at = at.wrapping_mul(0x5851_f42d_4c95_7f2d).wrapping_add(1);
        reader.seek(SeekFrom::Start((at >> 16) % (memory.len() as u64 - 4096)))?;
        reader.read_exact(&mut memory[..4096])?;
        sum = mixed(sum, memory[0]);
    }
    Ok(sum)
}

fn mixed(sum: u64, byte: u8) -> u64 {
    sum.rotate_left(7) ^ u64::from(byte)
}
