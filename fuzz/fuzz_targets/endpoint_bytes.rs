//! Fuzz target for two endpoints with their applications, and a network, all controlled by the input.
#![no_main]

use libfuzzer_sys::fuzz_target;

fuzz_target!(|bytes: &[u8]| {
    let _ = marline_testkit::hostile::run(bytes);
});
