//! Conservation check: every segment that a link delivers was sent at least as often, unless the link duplicated or
//! damaged it.

use std::collections::BTreeMap;

use marline_time::Instant;

use marline_sim::{Digest, LinkId, ObservationPoint, Observer, Packet};

/// Watches all links of a world. Stores a number per segment: for runs of up to a few million packets.
#[derive(Debug, Default)]
pub struct Conservation {
    /// Sent minus delivered, by link and content.
    balance: BTreeMap<(LinkId, u64), i64>,
    unknown: u64,
}

impl Conservation {
    /// Creates a check of a world without packets so far.
    #[must_use]
    pub fn new() -> Self {
        Conservation::default()
    }

    /// Checks the balance, given the links' counts of damaged and duplicated packets.
    ///
    /// # Errors
    /// If the balance is wrong; the text is for a failure message.
    pub fn check(&self, corrupted: u64, duplicated: u64) -> Result<(), String> {
        let unknown = self.unknown;
        // Checked at the end, because the same segment may be sent again after its duplicate arrived.
        let extra: i64 = self.balance.values().map(|balance| (-balance).max(0)).sum();
        if unknown > corrupted {
            return Err(format!(
                "{unknown} segments arrived that were never sent ({corrupted} damaged)"
            ));
        }
        if extra > duplicated as i64 {
            return Err(format!("{extra} segments arrived twice ({duplicated} duplicated)"));
        }
        Ok(())
    }
}

impl Observer for Conservation {
    fn on_packet(&mut self, _now: Instant, sighting: ObservationPoint, packet: &Packet) {
        let mut digest = Digest::default();
        digest.bytes(&packet.segment);
        match sighting {
            ObservationPoint::Sent { link: Some(link), .. } => {
                *self.balance.entry((link, digest.value())).or_default() += 1;
            }
            ObservationPoint::Sent { link: None, .. } => {}
            ObservationPoint::Delivered { link, .. } => {
                match self.balance.get_mut(&(link, digest.value())) {
                    None => self.unknown += 1,
                    Some(left) => *left -= 1,
                }
            }
        }
    }

    fn as_any(&self) -> &dyn core::any::Any {
        self
    }
}
