//! Tests of the simulator alone: it delivers exactly the packets that the links pass. Its cost per packet is printed
//! by the `speed` row of the `numbers` example.

use crate::cases;

#[test]
fn a_world_without_a_protocol_delivers_at_its_link_rate() {
    assert_eq!(cases::speed::run(10_000, "rate=200M,delay=1ms"), 10_000 - 8);
    let lossy = cases::speed::run(10_000, "rate=200M,delay=1ms,loss=10%");
    assert!((8_800..9_200).contains(&lossy), "{lossy}");
}
