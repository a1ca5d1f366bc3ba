//! What the examples share: numbers in files.

use std::path::Path;

use anyhow::{Context, Result, ensure};

/// The little-endian `f32` that a file holds.
pub fn read_floats(path: impl AsRef<Path>) -> Result<Vec<f32>> {
    let path = path.as_ref();
    let bytes = std::fs::read(path).with_context(|| format!("cannot read {}", path.display()))?;
    let (numbers, rest) = bytes.as_chunks::<4>();
    ensure!(rest.is_empty(), "{} does not hold whole numbers of 4 bytes", path.display());
    Ok(numbers.iter().copied().map(f32::from_le_bytes).collect())
}

/// Writes numbers as `read_floats` reads them.
pub fn write_floats(path: impl AsRef<Path>, numbers: &[f32]) -> Result<()> {
    let path = path.as_ref();
    let bytes: Vec<u8> = numbers.iter().flat_map(|number| number.to_le_bytes()).collect();
    std::fs::write(path, bytes).with_context(|| format!("cannot write {}", path.display()))
}
