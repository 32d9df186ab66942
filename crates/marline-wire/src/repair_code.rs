//! Repair code: the coefficients of the sums that repairs carry, and the underlying arithmetic.
//!
//! Repairs of a stream (`docs/spec/experimental.md`) and of datagrams (`docs/spec/datagrams.md`) are sums over cells.
//! Each cell is multiplied by a coefficient that depends on its number and the *row* of the repair. The coefficients
//! are those of a Cauchy matrix whose columns are scaled so that row 0 is all ones. So row 0 is the plain XOR of all
//! cells, and any n rows repair any n lost cells (every square submatrix of a Cauchy matrix is invertible, and scaling
//! columns does not change that).
//!
//! The field has 256 elements. Addition is XOR. Multiplication is that of polynomials over one bit modulo x^8 + x^4 +
//! x^3 + x^2 + 1 (0x11d, as in RAID-6 and most erasure codes), whose root 2 generates all 255 nonzero elements.
//! Logarithms turn a product into an addition. A whole cell is multiplied by looking up the 256 products of its
//! coefficient, so that a byte costs one lookup, or none if the coefficient is 1.

/// Number of distinct rows. Row numbers are taken modulo this value.
pub const ROWS: u8 = 64;
/// Number of distinct cells. Cell numbers are taken modulo this value. Rows and cells together are the elements of
/// the field.
pub const CELLS: u64 = 192;

/// Coefficient of a cell in the sum of a row; never zero.
#[must_use]
pub const fn coefficient(row: u8, cell: u64) -> u8 {
    let (x, y) = (row % ROWS, ROWS + (cell % CELLS) as u8);
    // Row 0 has x = 0: its Cauchy element is 1 / y, which scales the column.
    multiply(y, inverse(x ^ y))
}

/// The field polynomial without its highest term.
const POLYNOMIAL: u8 = 0x1d;

/// Powers of 2, repeated so that a sum of two logarithms needs no reduction, and the logarithms.
const TABLES: ([u8; 512], [u8; 256]) = tables();

const fn tables() -> ([u8; 512], [u8; 256]) {
    let (mut powers, mut logarithms) = ([0; 512], [0; 256]);
    let (mut value, mut exponent) = (1u8, 0);
    while exponent < 255 {
        powers[exponent] = value;
        powers[exponent + 255] = value;
        logarithms[value as usize] = exponent as u8;
        let carry = value & 0x80 != 0;
        value <<= 1;
        if carry {
            value ^= POLYNOMIAL;
        }
        exponent += 1;
    }
    (powers, logarithms)
}

/// The product of `a` and `b`.
#[must_use]
pub const fn multiply(a: u8, b: u8) -> u8 {
    if a == 0 || b == 0 {
        return 0;
    }
    let (powers, logarithms) = (&TABLES.0, &TABLES.1);
    powers[logarithms[a as usize] as usize + logarithms[b as usize] as usize]
}

/// The multiplicative inverse of `a`. Zero has none; its result is 0.
#[must_use]
pub const fn inverse(a: u8) -> u8 {
    if a == 0 { 0 } else { TABLES.0[255 - TABLES.1[a as usize] as usize] }
}

/// Adds `factor` times `from` to `to`, byte by byte, up to the length of the shorter slice.
pub fn add_multiple(to: &mut [u8], from: &[u8], factor: u8) {
    match factor {
        0 => {}
        1 => to.iter_mut().zip(from).for_each(|(to, from)| *to ^= from),
        _ => {
            let mut products = [0; 256];
            for (byte, product) in products.iter_mut().enumerate() {
                *product = multiply(factor, byte as u8);
            }
            to.iter_mut().zip(from).for_each(|(to, from)| *to ^= products[usize::from(*from)]);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Multiplication by definition: shift and reduce.
    fn multiply_by_definition(mut a: u8, mut b: u8) -> u8 {
        let mut product = 0;
        while b != 0 {
            if b & 1 != 0 {
                product ^= a;
            }
            a = (a << 1) ^ if a & 0x80 != 0 { POLYNOMIAL } else { 0 };
            b >>= 1;
        }
        product
    }

    #[test]
    fn products_are_those_of_the_definition() {
        for a in 0..=255 {
            for b in 0..=255 {
                assert_eq!(multiply(a, b), multiply_by_definition(a, b), "{a} times {b}");
            }
        }
    }

    #[test]
    fn everything_but_zero_has_an_inverse() {
        assert_eq!(inverse(0), 0);
        (1..=255).for_each(|a| assert_eq!(multiply(a, inverse(a)), 1, "{a}"));
    }

    #[test]
    fn coefficients_of_one_cell_differ_by_row_and_are_never_zero() {
        for cell in [0, 1, 63, 191, 192, 1 << 40] {
            let mut seen: Vec<u8> = (0..ROWS).map(|row| coefficient(row, cell)).collect();
            assert!(seen[0] == 1 && seen.iter().all(|c| *c != 0));
            seen.sort_unstable();
            seen.dedup();
            assert_eq!(seen.len(), usize::from(ROWS), "cell {cell}");
        }
    }

    #[test]
    fn adding_a_multiple_twice_cancels_it() {
        let from: Vec<u8> = (0..=255).collect();
        for factor in [0, 1, 2, 97, 255] {
            let mut to = vec![42; 256];
            add_multiple(&mut to, &from, factor);
            let sum = |byte: u8| 42 ^ multiply(factor, byte);
            assert!(from.iter().zip(&to).all(|(from, to)| *to == sum(*from)));
            add_multiple(&mut to, &from, factor);
            assert_eq!(to, [42; 256]);
        }
    }
}
