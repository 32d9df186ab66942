//! Checks of Fast JOIN in a capture: its HMACs, and that its data matches the stream.

use marline_wire::TcpSegment;
use marline_wire::mptcp::{DataAck, ExperimentalMessage, FastJoinForm, WireDsn, WireMapping};

use super::{FrameRef, Wiretap};
use crate::keys;

impl<'a> Wiretap<'a> {
    /// Processes one message on a SYN or SYN/ACK. `byte` is the low half of the option's third byte.
    pub(super) fn fast_join(
        &mut self,
        flow: usize,
        side: usize,
        (message, nibble): (&ExperimentalMessage, u8),
        segment: &TcpSegment<'a>,
        at: FrameRef,
    ) {
        let byte = 0xf0 | nibble;
        match *message {
            ExperimentalMessage::FastJoinSyn { form, address_id, token, point, hmac, .. } => {
                let known = self.tokens.get(&token).copied();
                self.findings.check("tokens of joins", known.is_some(), at);
                let Some((number, whose)) = known else { return };
                let opener = 1 - whose;
                let joined = &mut self.flows[flow];
                (joined.opener, joined.connection) = (opener, Some(number));
                joined.fast_syn = Some((form, hmac));
                let Some(full) = self.full(number, opener, form, point) else { return };
                let connection = &mut self.connections[number];
                let pair = (connection.keys[opener], connection.keys[1 - opener]);
                let data = segment.payload;
                let right = keys::fast_syn_hmac(pair, (byte, address_id), token, full, data);
                // No run opens more than a byte can count.
                let at_count = (full, hmac >> 56);
                let counted =
                    keys::counted_syn_hmac(pair, (byte, address_id), token, at_count, data);
                self.findings.check("HMACs of Fast JOINs", right == hmac || counted == hmac, at);
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
                    // What it has of the opener's stream; where its own goes on.
                    FastJoinForm::Out => self.full(number, opener, form, point),
                    FastJoinForm::In => self.full(number, answerer, FastJoinForm::Out, point),
                };
                let Some(full) = point else { return };
                let connection = &self.connections[number];
                let pair = (connection.keys[answerer], connection.keys[opener]);
                let right = keys::fast_ack_hmac(pair, (byte, u8::from(backup)), full, asked);
                self.findings.check("HMACs of Fast JOINs", right == hmac, at);
            }
            _ => {}
        }
    }

    /// All 64 bits of a DSN of `who`, or of a DATA_ACK that `who` sends.
    fn full(&self, number: usize, who: usize, form: FastJoinForm, low: u32) -> Option<u64> {
        let highest = self.connections[number].highest;
        match form {
            FastJoinForm::Out => WireDsn::Short(low).unwrap_near(highest[who]),
            FastJoinForm::In => DataAck::Short(low).unwrap_near(highest[1 - who]),
        }
    }
}
