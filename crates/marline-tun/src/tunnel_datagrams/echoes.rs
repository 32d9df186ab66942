//! Echo requests of the programs through a server, and their results as ICMP messages.

use std::net::IpAddr;
use std::sync::Weak;
use std::time::Duration;

use marline_proxy::client::echo_sources::{EchoSource, EchoSources};
use marline_proxy::client::udp_tunnel::echo::{EchoAnswer, EchoInbox, EchoRequest};
use tokio::time::interval;

use crate::addresses::Addresses;
use crate::datagram::{DatagramOutcome, DatagramWriter, Echo};
use crate::icmp::{self, EchoFailure, EchoNumbers};

/// Interval between searches for idle identifiers.
const SWEEP_INTERVAL: Duration = Duration::from_secs(5);

/// Sends a program's request.
pub(super) fn send(
    sources: &EchoSources,
    addresses: Addresses,
    echo: &Echo<'_>,
    answers: &DatagramWriter,
) -> DatagramOutcome {
    let Echo { source, destination: to, identifier, sequence, hops, payload } = *echo;
    let serve = |inbox| {
        let answers = ReplyWriter { writer: answers.clone(), addresses, to: source, identifier };
        drop(tokio::spawn(answers.deliver(inbox)));
    };
    let request = EchoRequest { to, hops, sequence };
    match sources.send(EchoSource { address: source, identifier }, request, payload, serve) {
        Ok(()) => DatagramOutcome::Carried,
        Err(too_big) => DatagramOutcome::TooBig(too_big.most),
    }
}

/// Ends idle identifiers while the sources exist.
pub(super) async fn sweep(sources: Weak<EchoSources>) {
    let mut look = interval(SWEEP_INTERVAL);
    loop {
        look.tick().await;
        let Some(sources) = sources.upgrade() else { return };
        sources.sweep();
    }
}

/// Passes on the replies for a program's identifier until it ends.
struct ReplyWriter {
    writer: DatagramWriter,
    addresses: Addresses,
    to: IpAddr,
    identifier: u16,
}

impl ReplyWriter {
    async fn deliver(self, mut inbox: EchoInbox) {
        let mut packet = Vec::new();
        while let Some(answer) = inbox.recv().await {
            self.write(&answer, &mut packet);
            if !packet.is_empty()
                && let Err(error) = self.writer.write(&packet)
            {
                // The reply is lost for lack of buffer space, as on any link.
                tracing::debug!("echo reply dropped: {error}");
            }
        }
    }

    fn write(&self, answer: &EchoAnswer, packet: &mut Vec<u8>) {
        packet.clear();
        match answer {
            EchoAnswer::Replied { from, sequence, payload } => {
                let echo = EchoNumbers { identifier: self.identifier, sequence: *sequence };
                icmp::write_echo_answer(*from, self.to, echo, payload, packet);
            }
            EchoAnswer::Failed { to, sequence, error } => {
                let echo = EchoNumbers { identifier: self.identifier, sequence: *sequence };
                let why = EchoFailure { icmp: error.icmp, mtu: error.mtu };
                // Errors from the server itself are sent by the gateway.
                let by = error.by.unwrap_or_else(|| self.addresses.gateway_for(self.to));
                let one_family = to.is_ipv4() == self.to.is_ipv4();
                if one_family && why.is_known(to.is_ipv6()) {
                    icmp::write_echo_failure(by, self.to, *to, echo, why, packet);
                }
            }
        }
    }
}
