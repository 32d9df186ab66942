//! Plain stacks for the reproduction of studies, independent of the product's defaults.
//!
//! Published measurements are of a stack that sends each byte once, over CUBIC unless stated otherwise. Every
//! variant of a study starts from one of these and names the differences. [`Variant::new`] alone is Marline as
//! shipped, which changes with the product.

use marline::config::BufferTuning;
use marline_lab::experiment::Variant;

/// Largest buffers of Linux without settings: 4 MiB to send (`tcp_wmem`), 6 MiB to receive (`tcp_rmem`).
const BUFFERS: [u64; 2] = [4 << 20, 6 << 20];

/// Multipath TCP with [`marline::algos::reference_policies`], by name, and buffers that follow the windows.
pub(crate) fn mptcp(name: &str) -> Variant {
    let [send, receive] = BUFFERS.map(Some);
    let stack = Variant::new(name).scheduler("min-rtt").congestion("cubic").buffers(send, receive);
    Variant { buffer_tuning: BufferTuning::Windows, ..stack }
}

/// TCP on one path.
pub(crate) fn tcp(name: &str, path: &str) -> Variant {
    Variant { paths: vec![path.to_owned()], plain: true, ..mptcp(name) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn these_are_the_reference_policies() {
        let (named, set) = (mptcp("").policies().unwrap(), marline::algos::reference_policies());
        assert_eq!(named.scheduler.name(), set.scheduler.name());
        assert_eq!(named.path_manager.name(), set.path_manager.name());
        assert_eq!(named.congestion.name(), set.congestion.name());
        assert_eq!(named.recovery.name(), set.recovery.name());
    }
}
