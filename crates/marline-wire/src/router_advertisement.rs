//! Options of a router advertisement (RFC 4861, 4.6), including the network's NAT64 prefix (PREF64, RFC 8781, 4).

use core::net::Ipv6Addr;
use core::num::NonZeroUsize;

use crate::Prefix64;

/// Type of the PREF64 option.
const PREF64: u8 = 38;
/// Length of the PREF64 option in units of eight bytes.
const PREF64_UNITS: u8 = 2;
/// Unit of option lengths in bytes.
const UNIT: usize = 8;
/// Prefix length for each value of the three length bits; 6 and 7 are invalid.
const LENGTHS: [u8; 6] = [96, 64, 56, 48, 40, 32];
const LENGTH_BITS: u16 = 0b111;

/// The NAT64 prefix that a router announces.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub struct Pref64 {
    /// The prefix.
    pub prefix: Prefix64,
    /// Lifetime in seconds, starting now: a multiple of 8, at most 65,528. 0 withdraws the prefix.
    pub lifetime_s: u16,
}

impl Pref64 {
    /// Parses one option, including type and length. `None` if it is another option or its prefix length is invalid
    /// (RFC 8781, 4 requires ignoring it).
    #[must_use]
    pub fn parse(option: &[u8]) -> Option<Pref64> {
        let [PREF64, PREF64_UNITS, high, low, prefix @ ..] = option else { return None };
        let word = u16::from_be_bytes([*high, *low]);
        let len = *LENGTHS.get(usize::from(word & LENGTH_BITS))?;
        let mut octets = [0; 16];
        octets[..12].copy_from_slice(prefix.try_into().ok().map(|octets: &[u8; 12]| octets)?);
        let prefix = Prefix64::new(Ipv6Addr::from(octets), len)?;
        // The upper 13 bits hold the lifetime in units of eight, so a mask is sufficient.
        Some(Pref64 { prefix, lifetime_s: word & !LENGTH_BITS })
    }
}

/// The options of a router advertisement, each with type and length. Ends before the first invalid option: length 0
/// (forbidden by RFC 4861) or truncated.
pub fn router_options(mut bytes: &[u8]) -> impl Iterator<Item = &[u8]> {
    core::iter::from_fn(move || {
        let units = NonZeroUsize::new(usize::from(*bytes.get(1)?))?;
        let (option, rest) = bytes.split_at_checked(units.get() * UNIT)?;
        bytes = rest;
        Some(option)
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const LIFETIME_UNIT_S: u16 = 8;

    /// Scaled lifetime 75 (600 s) and code 0 (/96), as in RFC 8781's figure.
    const OPTION: [u8; 16] = [38, 2, 0x02, 0x58, 0x00, 0x64, 0xff, 0x9b, 0, 0, 0, 0, 0, 0, 0, 0];

    fn emit(said: Pref64) -> [u8; 16] {
        let code =
            LENGTHS.iter().position(|len| *len == said.prefix.len()).expect("the length is valid");
        let mut option = [0; 16];
        option[..2].copy_from_slice(&[PREF64, PREF64_UNITS]);
        option[2..4].copy_from_slice(&(said.lifetime_s | code as u16).to_be_bytes());
        option[4..].copy_from_slice(said.prefix.octets());
        option
    }

    #[test]
    fn the_option_is_that_of_the_rfc() {
        let said = Pref64 { prefix: Prefix64::WELL_KNOWN, lifetime_s: 600 };
        assert_eq!(Pref64::parse(&OPTION), Some(said));
        assert_eq!(emit(said), OPTION);
        for (code, len) in [96, 64, 56, 48, 40, 32].into_iter().enumerate() {
            let mut option = OPTION;
            option[3] = 0x58 | code as u8;
            let prefix = Prefix64::new("64:ff9b::".parse().unwrap(), len).unwrap();
            assert_eq!(Pref64::parse(&option), Some(Pref64 { prefix, lifetime_s: 600 }), "{len}");
        }
        let mut withdrawn = OPTION;
        withdrawn[2..4].fill(0);
        assert_eq!(Pref64::parse(&withdrawn).map(|said| said.lifetime_s), Some(0));
    }

    #[test]
    fn invalid_pref64_options_are_ignored() {
        for (at, byte) in [(0, 25), (1, 1), (1, 3), (3, 0x58 | 6), (3, 0x58 | 7), (12, 1)] {
            let mut option = OPTION;
            option[at] = byte;
            assert_eq!(Pref64::parse(&option), None, "byte {at} is {byte}");
        }
        for len in 0..OPTION.len() {
            assert_eq!(Pref64::parse(&OPTION[..len]), None, "{len} bytes");
        }
        // Bytes after a prefix shorter than its field are ignored.
        let mut behind = OPTION;
        behind[3] = 0x58 | 5;
        behind[15] = 7;
        assert_eq!(Pref64::parse(&behind).map(|said| said.prefix.len()), Some(32));
    }

    #[test]
    fn options_end_at_the_first_invalid_one() {
        let other = [25, 1, 0, 0, 0, 0, 0, 0];
        let all = [other.as_slice(), &OPTION, &other].concat();
        let lens = |bytes: &[u8]| router_options(bytes).map(<[u8]>::len).collect::<Vec<_>>();
        assert_eq!(lens(&all), [8, 16, 8]);
        assert_eq!(lens(&all[..31]), [8, 16]);
        assert_eq!(lens(&[&other, [1, 0].as_slice(), &OPTION].concat()), [8]);
    }

    proptest! {
        #[test]
        fn every_prefix_and_lifetime_comes_back(
            bits: u128,
            len in prop::sample::select(LENGTHS.as_slice()),
            eights in 0..=8_191_u16,
        ) {
            // The reserved byte must be zero.
            let address = Ipv6Addr::from_bits(bits & !(0xff << 56));
            let prefix = Prefix64::new(address, len).expect("a valid length");
            let said = Pref64 { prefix, lifetime_s: eights * LIFETIME_UNIT_S };
            prop_assert_eq!(Pref64::parse(&emit(said)), Some(said));
        }

        #[test]
        fn options_of_arbitrary_bytes_are_slices_of_them(bytes: Vec<u8>) {
            let mut sum = 0;
            for option in router_options(&bytes) {
                prop_assert!(!option.is_empty() && option.len() % UNIT == 0);
                prop_assert_eq!(option, &bytes[sum..sum + option.len()]);
                sum += option.len();
                let _ = Pref64::parse(option);
            }
            prop_assert!(sum <= bytes.len());
        }
    }
}
