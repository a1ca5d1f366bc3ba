//! Telling an ONNX model by its first bytes: it has no magic number.

use std::ops::ControlFlow::{self, Break, Continue};

/// Whether a file with these first bytes, of which 4096 are enough, looks like an ONNX model.
///
/// It does if they are fields of a model and nothing else, as far as they go, and say enough: a
/// version of the format and another field, or a graph. Fields may stand in any order.
pub fn recognises(first: &[u8]) -> bool {
    // A colon and a letter begin a graph of so many bytes, and letters are fields of it.
    let is_of_text = |byte: &u8| matches!(byte, b'\t' | b'\n' | b'\r' | b' '..);
    if first.iter().take(64).all(is_of_text) {
        return false;
    }
    let mut seen = 0_u64;
    let mut fields = 0_u32;
    let plausible = walk(first, &mut |number, value| {
        let good = match (number, value) {
            // Versions of the format are 14 in 2026.
            (1, Shown::Number(version)) => (1..=1000).contains(&version),
            (5, Shown::Number(_)) => true,
            (2..=4 | 6, Shown::Bytes(text)) => is_text(text),
            (7, Shown::Bytes(graph)) => is_graph(graph),
            (8, Shown::Bytes(set)) => walk(set, &mut |number, value| match (number, value) {
                (1, Shown::Bytes(domain)) => is_text(domain),
                (2, Shown::Number(version)) => version <= 100_000,
                _ => false,
            }),
            (14, Shown::Bytes(entry)) => walk(entry, &mut |number, value| {
                matches!((number, value), (1 | 2, Shown::Bytes(_)))
            }),
            (20 | 25, Shown::Bytes(part)) => walk(part, &mut |number, value| {
                matches!((number, value), (1..=14, Shown::Bytes(_)))
            }),
            (26, Shown::Bytes(device)) => walk(device, &mut |number, value| {
                matches!((number, value), (1 | 3, Shown::Bytes(_)) | (2, Shown::Number(_)))
            }),
            _ => false,
        };
        if good {
            seen |= 1 << number;
            fields += 1;
        }
        good
    });
    let has = |number: u32| seen & (1 << number) != 0;
    plausible && (has(7) || has(1) && fields > 1)
}

/// Looks two levels down: of random bytes, one file in 30,000 begins like a graph of unknown content.
fn is_graph(graph: &[u8]) -> bool {
    walk(graph, &mut |number, value| match (number, value) {
        (1, Shown::Bytes(node)) => walk(node, &mut |number, value| {
            matches!((number, value), (1..=4 | 7 | 8, Shown::Bytes(text)) if is_text(text))
                || matches!((number, value), (5 | 6 | 9 | 10, Shown::Bytes(_)))
        }),
        (5, Shown::Bytes(tensor)) => walk(tensor, &mut |number, value| match value {
            Shown::Number(_) => matches!(number, 1 | 2 | 5 | 7 | 11 | 14),
            Shown::Fixed => matches!(number, 4 | 10),
            Shown::Bytes(name) if number == 8 => is_text(name),
            Shown::Bytes(_) => matches!(number, 1 | 3..=13 | 16),
        }),
        (2, Shown::Bytes(name)) => is_text(name),
        (10..=16, Shown::Bytes(_)) => true,
        _ => false,
    })
}

/// The value of a field as far as it is shown.
#[derive(Clone, Copy)]
enum Shown<'a> {
    Number(u64),
    Fixed,
    Bytes(&'a [u8]),
}

/// Hands the fields of a message to `check`, until it says no or the bytes end; whether it never
/// said no and all of them are fields.
fn walk(bytes: &[u8], check: &mut dyn FnMut(u64, Shown<'_>) -> bool) -> bool {
    let mut rest = bytes;
    while !rest.is_empty() {
        match field(&mut rest) {
            Continue((number, value)) if check(number, value) => {}
            Continue(_) | Break(false) => return false,
            // Cut off inside a tag or a number.
            Break(true) => return true,
        }
    }
    true
}

/// The next field; `Break(true)` if the bytes end inside it, `Break(false)` if it is none.
fn field<'a>(rest: &mut &'a [u8]) -> ControlFlow<bool, (u64, Shown<'a>)> {
    let tag = varint(rest)?;
    let (number, kind) = (tag >> 3, tag & 7);
    if number == 0 || number > 63 {
        return Break(false);
    }
    match kind {
        0 => Continue((number, Shown::Number(varint(rest)?))),
        2 => {
            let length = usize::try_from(varint(rest)?).unwrap_or(usize::MAX);
            // No file has 2^50 bytes.
            if length as u64 >= 1 << 50 {
                return Break(false);
            }
            let (shown, after) = rest.split_at(length.min(rest.len()));
            *rest = after;
            Continue((number, Shown::Bytes(shown)))
        }
        1 | 5 => {
            *rest = rest.get(if kind == 1 { 8 } else { 4 }..).unwrap_or_default();
            Continue((number, Shown::Fixed))
        }
        _ => Break(false),
    }
}

fn varint(rest: &mut &[u8]) -> ControlFlow<bool, u64> {
    let mut value = 0_u64;
    for shift in (0..63).step_by(7) {
        let Some((byte, after)) = rest.split_first() else {
            return Break(true);
        };
        *rest = after;
        value |= u64::from(byte & 0x7f) << shift;
        if byte & 0x80 == 0 {
            return Continue(value);
        }
    }
    Break(false)
}

/// Whether these bytes, perhaps cut off, are text.
fn is_text(bytes: &[u8]) -> bool {
    let text = match std::str::from_utf8(bytes) {
        Ok(text) => text,
        Err(error) if error.error_len().is_none() => {
            std::str::from_utf8(&bytes[..error.valid_up_to()]).unwrap_or_default()
        }
        Err(_) => return false,
    };
    !text.contains(|c: char| c.is_control() && !c.is_whitespace())
}
