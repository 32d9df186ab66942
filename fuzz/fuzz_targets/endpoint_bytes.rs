//! Two endpoints, two applications and a network that does what the input says.
#![no_main]

use libfuzzer_sys::fuzz_target;

fuzz_target!(|bytes: &[u8]| {
    let _ = marline_testkit::hostile::run(bytes);
});
