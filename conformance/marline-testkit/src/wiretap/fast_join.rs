//! Checks of Fast JOIN in a capture: its HMACs, and that its data matches the stream.

use marline_wire::TcpSegment;
use marline_wire::mptcp::{
    DataAck, ExperimentalMessage, FastJoinForm, MpExperimental, WireDsn, WireMapping,
};

use super::{FrameRef, Wiretap};
use crate::keys;

impl<'a> Wiretap<'a> {
    /// Processes an option on a SYN or SYN/ACK.
    pub(super) fn fast_join(
        &mut self,
        flow: usize,
        side: usize,
        option: &MpExperimental,
        segment: &TcpSegment<'a>,
        at: FrameRef,
    ) {
        let Some(parsed) = ExperimentalMessage::parse(option) else { return };
        // The option's third byte.
        let message = 0xf0 | option.flags;
        match parsed {
            ExperimentalMessage::FastJoinSyn { form, address_id, token, point, hmac, .. } => {
                let known = self.tokens.get(&token).copied();
                self.findings.check("tokens of joins", known.is_some(), at);
                let Some((number, whose)) = known else { return };
                let opener = 1 - whose;
                let joined = &mut self.flows[flow];
                (joined.opener, joined.connection) = (opener, Some(number));
                joined.fast_syn = Some((form, hmac));
                let Some(full) = self.full_dsn(number, opener, form, point) else { return };
                let connection = &mut self.connections[number];
                let data = segment.payload;
                let syn = keys::FastJoinSyn {
                    own_key: connection.keys[opener],
                    other_key: connection.keys[1 - opener],
                    message,
                    address_id,
                    token,
                    point: full,
                    data,
                };
                // No run opens more than 255 joins.
                let right = syn.hmac() == hmac || syn.counted_hmac(hmac >> 56) == hmac;
                self.findings.check("HMACs of Fast JOINs", right, at);
                if form == FastJoinForm::Out {
                    let mapping = WireMapping {
                        dsn: WireDsn::Long(full),
                        ssn: 1,
                        length: data.len() as u16,
                        checksum: None,
                    };
                    let highest = &mut connection.highest[opener];
                    self.flows[flow].map(side, &mapping, false, highest, at);
                }
            }
            ExperimentalMessage::FastJoinSynAck { backup, point, hmac, .. } => {
                let joined = &self.flows[flow];
                let (Some((form, asked)), Some(number)) = (joined.fast_syn, joined.connection)
                else {
                    return;
                };
                let (opener, answerer) = (joined.opener, 1 - joined.opener);
                let point = match form {
                    // The received position in the opener's stream, and the position at which the listener's own
                    // stream continues.
                    FastJoinForm::Out => self.full_dsn(number, opener, form, point),
                    FastJoinForm::In => self.full_dsn(number, answerer, FastJoinForm::Out, point),
                };
                let Some(full) = point else { return };
                let connection = &self.connections[number];
                let (own_key, other_key) = (connection.keys[answerer], connection.keys[opener]);
                let flags = u8::from(backup);
                let right = keys::fast_ack_hmac(own_key, other_key, message, flags, full, asked);
                self.findings.check("HMACs of Fast JOINs", right == hmac, at);
            }
            _ => {}
        }
    }

    /// Extends a DSN of `who`, or a DATA_ACK sent by `who`, to 64 bits.
    fn full_dsn(&self, number: usize, who: usize, form: FastJoinForm, low: u32) -> Option<u64> {
        let highest = self.connections[number].highest;
        match form {
            FastJoinForm::Out => WireDsn::Short(low).unwrap_near(highest[who]),
            FastJoinForm::In => DataAck::Short(low).unwrap_near(highest[1 - who]),
        }
    }
}
