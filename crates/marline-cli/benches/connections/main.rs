//! Connection setup benchmark, alternating with direct TCP in the same run: `cargo bench -p marline-cli --bench
//! connections` (needs nginx and ab, and for the second part root and `ip`).
//!
//! `requests`: HTTP without keep-alive over loopback, through a forward and directly, in requests per second.
//!
//! `burst`: 500 concurrent SOCKS CONNECTs over two emulated paths of 30 ms in each direction. Measures the time until
//! the target's first byte, in round trips beyond those of direct TCP, first alone and then with 10,000 SYNs per second
//! from other hosts. A word after `--` selects one part.

mod burst;
mod requests;
mod spread;
#[path = "../../tests/it/support/mod.rs"]
mod support;

fn main() {
    support::be_the_labs_program_if_asked();
    // `cargo bench` adds a flag.
    let words: Vec<String> = std::env::args().skip(1).filter(|w| !w.starts_with("--")).collect();
    let wanted = |part: &str| words.is_empty() || words.iter().any(|word| word == part);
    if wanted("requests") {
        requests::measure();
    }
    if wanted("burst") {
        burst::measure();
    }
}
