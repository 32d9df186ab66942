//! Commands to a running link.

use marline_link::DuplexConfig;

/// One or both directions.
#[derive(Copy, Clone, Debug, Default, PartialEq, Eq)]
pub enum Side {
    /// From the client.
    Up,
    /// To the client.
    Down,
    /// Both.
    #[default]
    Both,
}

impl Side {
    pub(crate) const fn has_up(self) -> bool {
        matches!(self, Side::Up | Side::Both)
    }

    pub(crate) const fn has_down(self) -> bool {
        matches!(self, Side::Down | Side::Both)
    }
}

/// A change of a running relay.
#[derive(Clone, Debug)]
pub enum LinkCommand {
    /// The link goes down: packets in transit and new ones are lost.
    Break(Side),
    /// The link comes up again.
    Restore(Side),
    /// New settings of the link.
    Set(Box<DuplexConfig>),
    /// Moves every flow to another port, as when a NAT loses its binding. Packets in flight to the old port are lost.
    Rebind,
}
