//! Nothing comes out of a link that was not put into it: every segment delivered was sent, as often
//! at least, unless the link duplicated or damaged it.

use std::collections::BTreeMap;

use marline_time::Instant;

use crate::{Digest, LinkId, Observer, Packet, Sighting};

/// Watches all links of a world. Keeps a number per segment: for runs of up to some million packets.
#[derive(Debug, Default)]
pub struct Conservation {
    /// Sent less delivered, by link and content.
    balance: BTreeMap<(LinkId, u64), i64>,
    unknown: u64,
    allowed_unknown: u64,
    extra: u64,
    allowed_extra: u64,
}

impl Conservation {
    /// An oracle for links that neither duplicate nor damage.
    #[must_use]
    pub fn new() -> Self {
        Conservation::default()
    }

    /// The links report so many damaged and duplicated packets.
    pub const fn allow(&mut self, corrupted: u64, duplicated: u64) {
        self.allowed_unknown = corrupted;
        self.allowed_extra = duplicated;
    }
}

impl Observer for Conservation {
    fn on_packet(&mut self, _now: Instant, sighting: Sighting, packet: &Packet) {
        let mut digest = Digest::default();
        digest.bytes(&packet.segment);
        match sighting {
            Sighting::Sent { link: Some(link), .. } => {
                *self.balance.entry((link, digest.value())).or_default() += 1;
            }
            Sighting::Sent { link: None, .. } => {}
            Sighting::Delivered { link, .. } => {
                match self.balance.get_mut(&(link, digest.value())) {
                    None => self.unknown += 1,
                    Some(left) => {
                        *left -= 1;
                        self.extra += u64::from(*left < 0);
                    }
                }
            }
        }
    }

    fn verdict(&self) -> Result<(), String> {
        if self.unknown > self.allowed_unknown {
            let (unknown, allowed) = (self.unknown, self.allowed_unknown);
            return Err(format!("{unknown} segments came that nobody sent ({allowed} damaged)"));
        }
        if self.extra > self.allowed_extra {
            let (extra, allowed) = (self.extra, self.allowed_extra);
            return Err(format!("{extra} segments came again ({allowed} duplicated)"));
        }
        Ok(())
    }

    fn as_any(&self) -> &dyn core::any::Any {
        self
    }
}
