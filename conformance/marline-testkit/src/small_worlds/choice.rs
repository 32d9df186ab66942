//! Choices of the next event in a small world, and their text form.

use core::fmt;
use core::str::FromStr;

/// Next event of a world. Packets are identified by their index among packets in flight, in the order of sending.
#[derive(Copy, Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Choice {
    /// This packet arrives.
    Deliver(usize),
    /// No packet is in flight, and timers run until an endpoint does something.
    Wait,
    /// This packet is lost.
    Drop(usize),
    /// This packet arrives, and a copy of it is held back.
    Duplicate(usize),
    /// This packet is held back: time passes although it is in flight. It arrives when it is chosen.
    Hold(usize),
    /// This packet loses its MPTCP options.
    Strip(usize),
    /// From now on all packets sent on this path lose their MPTCP options.
    StripPath(usize),
    /// From now on all packets sent on this path that have MPTCP options are lost.
    BlockOptions(usize),
    /// Timers run until an endpoint does something, although packets are in flight.
    TimeOut,
    /// The client loses its address on this path: packets to this address and new packets from it are lost.
    LoseAddress(usize),
}

impl Choice {
    /// True if the choice counts as a fault.
    #[must_use]
    pub const fn is_fault(self) -> bool {
        !matches!(self, Choice::Deliver(_) | Choice::Wait)
    }

    /// True if the choice only changes when and how often packets arrive. It must not cause a connection to fail.
    #[must_use]
    pub const fn is_benign(self) -> bool {
        !matches!(
            self,
            Choice::Strip(_)
                | Choice::StripPath(_)
                | Choice::BlockOptions(_)
                | Choice::LoseAddress(_)
        )
    }

    /// The letter used in scripts, and the packet or path number.
    const fn parts(self) -> (char, Option<usize>) {
        match self {
            Choice::Deliver(n) => ('d', Some(n)),
            Choice::Wait => ('w', None),
            Choice::Drop(n) => ('l', Some(n)),
            Choice::Duplicate(n) => ('c', Some(n)),
            Choice::Hold(n) => ('h', Some(n)),
            Choice::Strip(n) => ('s', Some(n)),
            Choice::StripPath(n) => ('p', Some(n)),
            Choice::BlockOptions(n) => ('b', Some(n)),
            Choice::TimeOut => ('t', None),
            Choice::LoseAddress(n) => ('a', Some(n)),
        }
    }
}

impl fmt::Display for Choice {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (letter, number) = self.parts();
        write!(f, "{letter}")?;
        number.map_or(Ok(()), |number| write!(f, "{number}"))
    }
}

impl FromStr for Choice {
    type Err = String;

    fn from_str(word: &str) -> Result<Self, String> {
        let bad = || format!("`{word}` is not a choice");
        let mut letters = word.chars();
        let letter = letters.next().ok_or_else(bad)?;
        let number = || letters.as_str().parse::<usize>().map_err(|_| bad());
        match letter {
            'd' => Ok(Choice::Deliver(number()?)),
            'w' => Ok(Choice::Wait),
            'l' => Ok(Choice::Drop(number()?)),
            'c' => Ok(Choice::Duplicate(number()?)),
            'h' => Ok(Choice::Hold(number()?)),
            's' => Ok(Choice::Strip(number()?)),
            'p' => Ok(Choice::StripPath(number()?)),
            'b' => Ok(Choice::BlockOptions(number()?)),
            't' => Ok(Choice::TimeOut),
            'a' => Ok(Choice::LoseAddress(number()?)),
            _ => Err(bad()),
        }
    }
}

/// A list of choices in one line, readable by [`parse_script`].
#[must_use]
pub fn script_text(script: &[Choice]) -> String {
    script.iter().map(ToString::to_string).collect::<Vec<_>>().join(" ")
}

/// Parses the choices in a line.
///
/// # Errors
/// A word is not a choice.
pub fn parse_script(text: &str) -> Result<Vec<Choice>, String> {
    text.split_whitespace().map(str::parse).collect()
}
