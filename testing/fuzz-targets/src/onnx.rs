//! ONNX models.

use weightlift_index::Bytes;
use weightlift_index::onnx::{parse, recognises};
use weightlift_index::shards::check_name;

use crate::check;
use crate::input::{Input, Watched};

/// The input is a file, with zeros after it by the low bits of the choice; the next two say how long
/// the files with external data are.
pub(crate) fn run(input: &[u8]) {
    let Some(Input { limits, choice, file }) = Input::new(input) else { return };
    check::bounded(file.len() as u64, || recognises(file));
    let mut bytes = Watched::new(file, choice);
    let length = bytes.length();
    let data = [0, 100, 1 << 20, u64::MAX][usize::from(choice >> 3 & 3)];
    let index = check::bounded(length, || {
        let model = parse(&mut bytes, &limits)?;
        for location in model.locations() {
            check_name(location).expect("locations are safe names");
        }
        let lengths = vec![data; model.locations().len()];
        model.into_index("a", length, &lengths)
    });
    bytes.check();
    check::index(index);
}
