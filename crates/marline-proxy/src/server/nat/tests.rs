//! Tests of mappings.

use std::time::Duration;

use super::*;
use crate::server::admission::Quota;

#[test]
fn a_mapping_lasts_five_minutes_and_half_a_minute_while_it_is_for_dns_alone() {
    let place = Quota::new(1, 1).take_permit(Arc::from("laptop")).unwrap();
    let start = Instant::now();
    let after = |seconds| start + Duration::from_secs(seconds);
    let mut mapping = Mapping::new(start, MappedPorts::default(), place);
    mapping.sends(start, "192.0.2.1:53".parse().unwrap());
    assert!(!mapping.is_idle(after(29)) && mapping.is_idle(after(30)));
    mapping.sends(after(20), "192.0.2.2:53".parse().unwrap());
    assert!(!mapping.is_idle(after(49)) && mapping.is_idle(after(50)));
    mapping.sends(after(49), "192.0.2.1:443".parse().unwrap());
    assert!(!mapping.is_idle(after(348)) && mapping.is_idle(after(349)));
    mapping.sends(after(300), "192.0.2.1:53".parse().unwrap());
    assert!(!mapping.is_idle(after(599)), "a mapping used for more than DNS has the longer limit");
    mapping.on_answer(after(550));
    assert!(!mapping.is_idle(after(849)) && mapping.is_idle(after(850)));
}

#[test]
fn mapped_ipv6_addresses_compare_as_ipv4() {
    let mapped: Target = "[::ffff:192.0.2.1]:53".parse().unwrap();
    assert_eq!(address_of(&mapped), Some("192.0.2.1:53".parse().unwrap()));
    assert_eq!(address_of(&"example.org:53".parse().unwrap()), None);
}
