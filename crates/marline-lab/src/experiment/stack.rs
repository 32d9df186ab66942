//! Whose TCP it is.

use std::fmt;

use serde::{Deserialize, Serialize};

/// What runs an experiment.
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
    /// This machine's TCP twice, on two paths, everything sent on both and whatever comes first
    /// counts: what an ideal redundant sender reaches. For requests only.
    Duplicate,
}

impl Stack {
    /// All there are.
    pub const ALL: [Stack; 5] =
        [Stack::Sim, Stack::Live, Stack::Tcp, Stack::Mptcp, Stack::Duplicate];

    /// Its word in files, tables and on the command line.
    #[must_use]
    pub const fn word(self) -> &'static str {
        match self {
            Stack::Sim => "sim",
            Stack::Live => "live",
            Stack::Tcp => "tcp",
            Stack::Mptcp => "mptcp",
            Stack::Duplicate => "duplicate",
        }
    }

    /// Both ends are Marline's.
    #[must_use]
    pub const fn is_marline(self) -> bool {
        matches!(self, Stack::Sim | Stack::Live)
    }

    /// It needs namespaces, processes, and as much time as passes.
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
            anyhow::anyhow!("there is no stack `{word}`; there are {words}")
        })
    }
}
