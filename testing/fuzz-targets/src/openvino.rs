//! OpenVINO networks.

use weightlift_index::openvino::parse;

use crate::check;
use crate::input::{Input, Watched};

/// The input is the XML; the low bits of the choice say how long the weights are, if they are there.
pub(crate) fn run(input: &[u8]) {
    let Some(Input { limits, choice, file }) = Input::new(input) else { return };
    let weights =
        [None, Some(0), Some(24), Some(1 << 20), Some(u64::MAX)][usize::from(choice & 7).min(4)];
    // Zeros are no XML, so there are none after it.
    let mut bytes = Watched::new(file, 0);
    let index = check::bounded(file.len() as u64, || {
        let network = parse(&mut bytes, &limits)?;
        let needed = network.needs_weights();
        let index = network.into_index(weights.map(|length| ("a", length)));
        assert!(weights.is_some() || index.is_err() == needed, "{index:?}");
        index
    });
    bytes.check();
    check::index(index);
}
