//! Connection setup benchmark, alternating with direct TCP in the same run: `cargo bench -p
//! marline-cli --bench connections` (needs nginx and ab; the second part root and `ip`).
//!
//! `requests`: HTTP without keep-alive over loopback, through a forward and straight; requests per second.
//!
//! `burst`: 500 SOCKS CONNECTs at once over two emulated paths of 30 ms each way; how long until the target's
//! first byte is there, in round trips more than direct TCP needs. Then again beside 10,000 SYNs a second of
//! strangers. A word after `--` chooses one part.

mod burst;
mod requests;
mod spread;
#[path = "../../tests/it/support/mod.rs"]
mod support;

fn main() {
    support::be_the_labs_program_if_asked();
    // `cargo bench` adds one.
    let words: Vec<String> = std::env::args().skip(1).filter(|w| !w.starts_with("--")).collect();
    let wanted = |part: &str| words.is_empty() || words.iter().any(|word| word == part);
    if wanted("requests") {
        requests::measure();
    }
    if wanted("burst") {
        burst::measure();
    }
}
