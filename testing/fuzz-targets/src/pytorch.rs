//! PyTorch checkpoints.

use weightlift_index::pytorch::parse;

use crate::check;
use crate::input::{Input, Watched};
use crate::write::pytorch::archive;
use crate::write::{Dtype, Tensor};

/// The input is an archive, or, with the lowest bit of the choice, a pickle that is put into one
/// with three storages: a checksum and a directory that fit are hard to come by.
pub(crate) fn run(input: &[u8]) {
    let Some(Input { limits, choice, file }) = Input::new(input) else { return };
    let packed;
    let file = if choice & 1 == 1 {
        let storages = [16, 1, 0].map(|elements| Tensor::new("", Dtype::F32, &[elements]));
        packed = archive(file, &storages).to_vec();
        &packed
    } else {
        file
    };
    let mut bytes = Watched::new(file, 0);
    // Dictionaries that stand in many places may give names to a thousand tensors free.
    let index = check::bounded(file.len() as u64 + (1 << 10), || parse(&mut bytes, "a", &limits));
    bytes.check();
    check::index(index);
}
