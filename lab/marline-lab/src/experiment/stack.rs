//! TCP stacks under test.

use std::fmt;

use serde::{Deserialize, Serialize};

use crate::scenario::Side;

/// A stack that runs an experiment.
#[derive(Copy, Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Stack {
    /// Marline in virtual time.
    Sim,
    /// Marline's processes over emulated links.
    Live,
    /// This machine's TCP over the same links, on one path.
    Tcp,
    /// This machine's Multipath TCP over the same links.
    Mptcp,
    /// This machine's TCP on two paths, with all data sent on both. The first arrival counts, as with an ideal
    /// redundant sender. Only for requests.
    Duplicate,
    /// Marline at the client, this machine's Multipath TCP at the server.
    #[serde(rename = "to-kernel")]
    ToKernel,
    /// This machine's Multipath TCP at the client, Marline at the server.
    #[serde(rename = "from-kernel")]
    FromKernel,
}

impl Stack {
    /// All stacks.
    pub const ALL: [Stack; 7] = [
        Stack::Sim,
        Stack::Live,
        Stack::Tcp,
        Stack::Mptcp,
        Stack::Duplicate,
        Stack::ToKernel,
        Stack::FromKernel,
    ];

    /// Name in files, tables and on the command line.
    #[must_use]
    pub const fn word(self) -> &'static str {
        match self {
            Stack::Sim => "sim",
            Stack::Live => "live",
            Stack::Tcp => "tcp",
            Stack::Mptcp => "mptcp",
            Stack::Duplicate => "duplicate",
            Stack::ToKernel => "to-kernel",
            Stack::FromKernel => "from-kernel",
        }
    }

    /// Returns true if at least one end is Marline's, so that Marline's policies apply.
    #[must_use]
    pub const fn is_marline(self) -> bool {
        matches!(self, Stack::Sim | Stack::Live | Stack::ToKernel | Stack::FromKernel)
    }

    /// The stack at one end.
    #[must_use]
    pub const fn at(self, side: Side) -> Stack {
        match (self, side) {
            (Stack::ToKernel, Side::Client) | (Stack::FromKernel, Side::Server) => Stack::Live,
            (Stack::ToKernel, Side::Server) | (Stack::FromKernel, Side::Client) => Stack::Mptcp,
            (other, _) => other,
        }
    }

    /// Returns true if the stack runs in real time, with namespaces and processes.
    #[must_use]
    pub const fn is_real_time(self) -> bool {
        !matches!(self, Stack::Sim)
    }
}

impl fmt::Display for Stack {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.word())
    }
}

impl std::str::FromStr for Stack {
    type Err = anyhow::Error;

    fn from_str(word: &str) -> anyhow::Result<Stack> {
        Stack::ALL.into_iter().find(|stack| stack.word() == word).ok_or_else(|| {
            let words = Stack::ALL.map(Stack::word).join(", ");
            anyhow::anyhow!("unknown stack `{word}`; known: {words}")
        })
    }
}
