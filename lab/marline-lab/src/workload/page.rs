//! Objects of a web page. Later objects become known only when earlier ones have arrived.
//!
//! *Source.* The median desktop page of HTTP Archive in October 2024 (Web Almanac 2024, Page Weight): 71 requests, of
//! which 2 are HTML (18 kB), 8 style sheets (78 kB), 24 scripts (613 kB), 4 fonts (131 kB) and 18 images (1,054 kB).
//! The other 15 have 1 kB each. The following are from memory or our choice: the spread of sizes within a type, 12
//! hosts, which objects refer to which and the time to find them, a request of 500 bytes, and TLS as one exchange of
//! 600 and 3,000 bytes.

use marline_time::{Duration, Rng, SeedTree};

/// Number of objects of a page.
pub(crate) const OBJECT_COUNT: u32 = 71;
/// Number of hosts of a page. The first one has the page itself.
pub(crate) const HOST_COUNT: usize = 12;
/// Standard deviation of the logarithm of sizes within a type.
const SIZE_SPREAD: f64 = 1.0;

/// Object types: number of objects, total bytes, index of the type that refers to them, and time in ms from that
/// object's arrival to the request. Half of those that refer to their own type are found in the page.
const TYPES: [(u32, f64, usize, u64); 6] = [
    (2, 18e3, 0, 10),     // HTML, the first of which is the page
    (8, 78e3, 0, 10),     // style sheets
    (24, 613e3, 2, 30),   // scripts
    (4, 131e3, 1, 20),    // fonts
    (18, 1_054e3, 0, 20), // images
    (15, 15e3, 2, 30),    // what scripts fetch
];

/// An object of a page.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub(crate) struct Object {
    pub(crate) host: usize,
    pub(crate) bytes: u64,
    /// Object that refers to this one.
    pub(crate) found_in: usize,
    pub(crate) delay: Duration,
}

/// The objects of a page, the first of which is the page itself.
pub(crate) fn objects(seed: u64, page: u32) -> Vec<Object> {
    let mut rng = SeedTree::new(seed).branch("web").stream(&format!("page/{page}"));
    let mut objects: Vec<Object> = Vec::new();
    let mut first_of = [0; TYPES.len()];
    for (kind, (count, bytes, found_in, delay_ms)) in TYPES.into_iter().enumerate() {
        first_of[kind] = objects.len();
        let weights: Vec<f64> =
            (0..count).map(|_| (SIZE_SPREAD * sample_normal(&mut rng)).exp()).collect();
        let scale = bytes / weights.iter().sum::<f64>();
        for (number, weight) in weights.into_iter().enumerate() {
            // The page's own host has half of all objects, and all style sheets.
            let own = objects.is_empty() || kind == 1 || rng.unit() < 0.5;
            let host = if own { 0 } else { 1 + rng.below(HOST_COUNT as u64 - 1) as usize };
            let parents = u64::from(TYPES[found_in].0);
            let found_in = match found_in {
                0 => 0,
                own if own == kind && number < count as usize / 2 => 0,
                own if own == kind => first_of[own] + rng.below(parents / 2) as usize,
                other => first_of[other] + rng.below(parents) as usize,
            };
            let (bytes, delay) =
                ((weight * scale).max(1.0) as u64, Duration::from_millis(delay_ms));
            objects.push(Object { host, bytes, found_in, delay });
        }
    }
    objects
}

/// Draws from the standard normal distribution.
fn sample_normal(rng: &mut impl Rng) -> f64 {
    let (a, b) = (1.0 - rng.unit(), rng.unit());
    (-2.0 * a.ln()).sqrt() * (core::f64::consts::TAU * b).cos()
}

/// Total size of a page in bytes.
pub(crate) fn page_bytes(seed: u64, page: u32) -> u32 {
    objects(seed, page).iter().map(|object| object.bytes as u32).sum()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_page_has_the_objects_of_its_source() {
        let page = objects(7, 0);
        assert_eq!(page, objects(7, 0));
        assert_ne!(page, objects(7, 1));
        assert_eq!(page.len(), OBJECT_COUNT as usize);
        let mut from = 0;
        for (count, bytes, ..) in TYPES {
            let mine = &page[from..from + count as usize];
            let sum: u64 = mine.iter().map(|object| object.bytes).sum();
            assert!((sum as f64 - bytes).abs() < 100.0, "{sum} of {bytes}");
            from += count as usize;
        }
        for seed in 0..50 {
            for (number, object) in objects(seed, 3).iter().enumerate().skip(1) {
                assert!(object.found_in < number && object.host < HOST_COUNT && object.bytes > 0);
            }
        }
        assert!((1_900_000..1_910_000).contains(&page_bytes(7, 2)), "{}", page_bytes(7, 2));
    }
}
