//! A digest of what was written where, whatever the order and the cuts of the writes.
//!
//! Bytes are coefficients of a polynomial over the integers modulo 2^61 - 1, evaluated at a fixed
//! point: the digest is the sum over all bytes of (byte + 1) × R^offset. Sums do not care about
//! order. One is added to each byte so that written zeros differ from nothing written; a byte that
//! is written twice counts twice.

const PRIME: u64 = (1 << 61) - 1;
/// The point: any large number without structure does.
const R: u64 = 0x0B4A_6F5D_93C1_E27B;
/// Bytes whose powers are tabulated.
const BLOCK: usize = 1024;

/// Count and digest of the bytes written to one allocation.
#[repr(C)]
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Digest {
    /// How many bytes were written.
    pub bytes: u64,
    /// Their digest.
    pub value: u64,
}

impl Digest {
    /// The digest of `data` written at the start of an allocation.
    pub fn of(data: &[u8]) -> Digest {
        let mut digest = Digest::default();
        digest.add(0, data);
        digest
    }

    /// Takes in `data`, written `offset` bytes into the allocation.
    pub fn add(&mut self, offset: u64, data: &[u8]) {
        // Horner's scheme over blocks, from the last to the first.
        let whole = data.chunks(BLOCK).rev().fold(0, |sum, block| {
            reduce(u128::from(multiply(sum, POWERS.step)) + block_sum(block))
        });
        self.bytes += data.len() as u64;
        self.value = reduce(u128::from(self.value) + u128::from(multiply(whole, power(offset))));
    }

    /// Changes the digest as if the byte at `offset` had been one greater.
    pub(crate) fn disturb(&mut self, offset: u64) {
        self.value = reduce(u128::from(self.value) + u128::from(power(offset)));
    }
}

/// R^0 to R^1023 in halves, so that the inner loop is made of narrow products that a compiler
/// turns into vector instructions: 1024 products of a byte and 32 bits fit 64 bits.
struct Powers {
    low: [u32; BLOCK],
    high: [u32; BLOCK],
    step: u64,
}

static POWERS: Powers = {
    let mut powers = Powers { low: [0; BLOCK], high: [0; BLOCK], step: 1 };
    let mut i = 0;
    while i < BLOCK {
        powers.low[i] = powers.step as u32;
        powers.high[i] = (powers.step >> 32) as u32;
        powers.step = multiply(powers.step, R);
        i += 1;
    }
    powers
};

fn block_sum(block: &[u8]) -> u128 {
    let (mut low, mut high) = (0u64, 0u64);
    for ((&byte, &l), &h) in block.iter().zip(&POWERS.low).zip(&POWERS.high) {
        let byte = u64::from(byte) + 1;
        low += byte * u64::from(l);
        high += byte * u64::from(h);
    }
    (u128::from(high) << 32) + u128::from(low)
}

fn power(mut exponent: u64) -> u64 {
    let (mut result, mut square) = (1, R);
    while exponent > 0 {
        if exponent & 1 == 1 {
            result = multiply(result, square);
        }
        square = multiply(square, square);
        exponent >>= 1;
    }
    result
}

const fn multiply(a: u64, b: u64) -> u64 {
    reduce(a as u128 * b as u128)
}

/// The remainder of a number below 2^122, by folding its upper bits onto its lower ones.
const fn reduce(n: u128) -> u64 {
    let folded = (n >> 61) as u64 + (n as u64 & PRIME);
    let folded = (folded >> 61) + (folded & PRIME);
    if folded >= PRIME { folded - PRIME } else { folded }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sample(len: usize) -> Vec<u8> {
        (0..len).map(|i| (i * i / 7 % 251) as u8).collect()
    }

    #[test]
    fn it_is_the_polynomial_that_it_says() {
        let data = sample(3000);
        let mut expected = 0u128;
        let mut power = 1u128;
        for &byte in &data {
            expected = (expected + (u128::from(byte) + 1) * power) % u128::from(PRIME);
            power = power * u128::from(R) % u128::from(PRIME);
        }
        assert_eq!(u128::from(Digest::of(&data).value), expected);
    }

    #[test]
    fn order_and_cuts_do_not_matter() {
        let data = sample(10_000);
        let mut pieces = Digest::default();
        for cut in [(7000, 10_000), (0, 1), (1, 2500), (2500, 7000)] {
            pieces.add(cut.0 as u64, &data[cut.0..cut.1]);
        }
        assert_eq!(pieces, Digest::of(&data));
    }

    #[test]
    fn places_values_and_zeros_matter() {
        let mut data = sample(5000);
        let original = Digest::of(&data);
        data.swap(10, 4000);
        assert_ne!(Digest::of(&data), original);
        assert_ne!(Digest::of(&[0]).value, Digest::default().value);
        let mut one = Digest::of(&[1, 2, 3]);
        one.disturb(1);
        assert_eq!(one, Digest::of(&[1, 3, 3]));
    }
}
