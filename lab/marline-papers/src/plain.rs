//! Plain stacks: what studies are repeated with, whatever Marline ships.
//!
//! A published measurement is of a stack that sends each byte once, over CUBIC where nothing else is
//! said. Every variant of a study begins with one of these and names what is different; [`Variant::new`]
//! alone is Marline as it is shipped, which changes with the product.

use marline_lab::experiment::Variant;

/// Multipath TCP with [`marline::reference_policies`], by name.
pub(crate) fn mptcp(name: &str) -> Variant {
    Variant::new(name).scheduler("min-rtt").congestion("cubic")
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
        let (named, set) = (mptcp("").policies().unwrap(), marline::reference_policies());
        assert_eq!(named.scheduler.name(), set.scheduler.name());
        assert_eq!(named.path_manager.name(), set.path_manager.name());
        assert_eq!(named.congestion.name(), set.congestion.name());
        assert_eq!(named.recovery.name(), set.recovery.name());
    }
}
