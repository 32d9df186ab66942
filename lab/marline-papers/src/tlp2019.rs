//! Reproduction of tail loss probes on the traffic of cloud applications (Yedugundla et al., CLOSER
//! 2019).
//!
//! WLAN dies during a burst, or the next burst starts after it has died. The measure is the time until the client has
//! the whole burst. TLP-STD detects the failure by a probe on the dead path and a retransmission timeout after it.
//! TLP-MP also sends the probed segment over 4G. Each statement of the paper has one judged row: about the failure of
//! WLAN (`statements.rs`, measured by `failure.rs`), ordinary tail losses (`tail_loss.rs`), and the probes themselves
//! (`tail.rs`, `separate_traces.rs`, `mid_burst.rs`). The grids show all scenes, also with windows that restart after
//! pauses, other stacks and rates; `diagrams.rs` draws simulated packets.

mod campaign;
mod contestants;
mod diagrams;
mod failure;
mod mid_burst;
mod published;
mod run;
mod separate_traces;
mod single_burst;
mod statements;
mod tail;
mod tail_loss;
mod traffic;
mod watch;

use crate::file::PaperFile;
use crate::paper::{Context, Paper};
use crate::table::{Reproduction, Table};
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
        let mut rows = tail::reproduce(context, &file, &mut all)?;
        rows.push(separate_traces::reproduce(context, &file, &mut all)?);
        rows.push(mid_burst::reproduce(context, &mut all)?);
        let title = "Probes and fast retransmits (99 % intervals)";
        all.tables.push(Table::new("probes", title, rows));
        diagrams::draw(&mut all)?;
        all.notes = NOTES.iter().map(|note| (*note).to_owned()).collect();
        Ok(all)
    }
}

/// Conclusions from the results.
const NOTES: [&str; 3] = [
    "A lone packet: the probe waits for 1.5 SRTT + 200 ms, which is later than the timer and therefore cut to it; \
     TLP-STD then spends a second timeout. It is slower than no probes at all, and TLP-MP saves only that timeout. \
     Without the allowance for a delayed ACK both are several times faster.",
    "Several packets: TLP-MP gains when the silent path is given up once the copy is answered, a \
     timeout minus one 4G RTT. If the rest waits for the timer (the other reading of the \
     paper) it gains next to nothing.",
    "A tail that is lost once on a working path is repaired by the probe on that path: TLP-MP gains nothing and costs \
     one packet.",
];

#[cfg(test)]
mod tests;
