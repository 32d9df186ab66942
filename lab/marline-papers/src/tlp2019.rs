//! Reproduction of tail loss probes on the traffic of cloud applications (Yedugundla et al., CLOSER
//! 2019).
//!
//! WLAN dies during a burst, or the next burst starts after it has died. The measure is the time until the client has
//! the whole burst. TLP-STD detects the failure by a probe on the dead path and a retransmission timeout after it.
//! TLP-MP also sends the probed segment over 4G. The judged parts are the failure of WLAN (`failure.rs`), ordinary
//! tail losses (`ordinary.rs`) and losses in the middle of a burst (`middle.rs`), each with windows that persist over
//! pauses and with windows that restart. Other parts are shown only: other stacks and rates (`shown.rs`), the length
//! of the lost tail (`tail.rs`), and timing diagrams of simulated packets (`diagrams.rs`).

mod campaign;
mod contestants;
mod diagrams;
mod failure;
mod mid_burst;
mod published;
mod run;
mod shown;
mod single_burst;
mod tail;
mod tail_loss;
mod traffic;
mod watch;

use crate::file::PaperFile;
use crate::paper::{Context, Paper};
use crate::table::Reproduction;
use published::Published;

const TEXT: &str = include_str!("../papers/tlp2019.toml");

/// Reproduction of the 2019 paper on tail loss probes.
pub(super) struct Tlp;

impl Paper for Tlp {
    fn key(&self) -> &'static str {
        "tlp2019"
    }

    fn text(&self) -> &'static str {
        TEXT
    }

    fn run(&self, context: &Context<'_>) -> anyhow::Result<Reproduction> {
        let file = PaperFile::<Published>::parse(TEXT)?;
        let mut all = Reproduction::default();
        failure::reproduce(context, &file, &mut all)?;
        tail_loss::reproduce(context, &file, &mut all)?;
        mid_burst::reproduce(context, &file, &mut all)?;
        shown::reproduce(context, &mut all)?;
        tail::reproduce(context, &mut all)?;
        diagrams::draw(&mut all)?;
        all.notes = NOTES.iter().map(|note| (*note).to_owned()).collect();
        Ok(all)
    }
}

/// Conclusions from the results.
const NOTES: [&str; 4] = [
    "A lone packet: the probe waits for 1.5 SRTT + 200 ms, which is later than the timer and therefore cut to it; \
     TLP-STD then spends a second timeout. It is slower than no probes at all, and TLP-MP saves only that timeout. \
     Without the allowance for a delayed ACK both are several times faster.",
    "Several packets: TLP-MP gains when the silent path is given up once the copy is answered, a \
     timeout minus one 4G RTT. If the rest waits for the timer (the other reading of the \
     paper) it gains next to nothing.",
    "A tail that is lost once on a working path is repaired by the probe on that path: TLP-MP gains nothing and costs \
     one packet.",
    "With windows that restart after a pause, which is Linux's default, TLP-MP gains nothing \
     on Maps, nor on Netflix unless a burst is well under way: 4G's window is full when the probe \
     is sent, so the copy cannot be sent.",
];

#[cfg(test)]
mod tests;
