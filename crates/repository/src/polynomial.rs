//! The polynomial in a repository's configuration. Leandisk does not cut by content; restic, which may put other backups into the same
//! repository, does, and refuses a polynomial that can be factored.

use block::Result;

use crate::crypto::random;

/// Degree 53, as restic has it.
const DEGREE: u32 = 53;

/// A random irreducible polynomial over GF(2) of degree 53.
pub(crate) fn random_irreducible() -> Result<u64> {
    loop {
        let mut bytes = [0; 8];
        random(&mut bytes)?;
        let candidate = u64::from_le_bytes(bytes) & ((1 << DEGREE) - 1) | 1 << DEGREE | 1;
        if is_irreducible(candidate) {
            return Ok(candidate);
        }
    }
}

/// Rabin's test: as 53 is a prime, the only factors to rule out besides are x and x + 1.
fn is_irreducible(polynomial: u64) -> bool {
    if polynomial & 1 == 0 || polynomial.count_ones().is_multiple_of(2) {
        return false;
    }
    let mut power = 2;
    for _ in 0..DEGREE {
        power = multiply(power, power, polynomial);
    }
    power == 2
}

fn multiply(a: u64, mut b: u64, modulus: u64) -> u64 {
    let (mut shifted, mut product) = (a, 0);
    while b != 0 {
        if b & 1 == 1 {
            product ^= shifted;
        }
        b >>= 1;
        shifted <<= 1;
        if shifted >> DEGREE & 1 == 1 {
            shifted ^= modulus;
        }
    }
    product
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn restics_own_is_irreducible_and_a_product_is_not() {
        // The example of restic's design, and the polynomial of its chunker's tests.
        assert!(is_irreducible(0x0025_b468_838d_cb75));
        assert!(is_irreducible(0x003d_a335_8b4d_c173));
        assert!(!is_irreducible(0x003d_a335_8b4d_c171));
        let found = random_irreducible().unwrap();
        assert!(is_irreducible(found) && found >> DEGREE == 1);
    }
}
