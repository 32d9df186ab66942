//! Progress of DATA_ACKs: how far the peer has our data.

use marline_policy::Dsn;

use super::closing::Closing;
use super::sender::Sender;

/// First DSN that is not DATA_ACKed, including our DATA_FIN.
pub(super) fn acked_end(sender: &Sender, closing: &Closing) -> Dsn {
    let una = sender.una();
    if closing.fin_acked() { una.plus(1) } else { una }
}

/// One past the highest DSN sent, including our DATA_FIN.
pub(super) fn sent_end(sender: &Sender, closing: &Closing) -> Dsn {
    if closing.fin_sent() { sender.written().plus(1) } else { sender.sent() }
}
