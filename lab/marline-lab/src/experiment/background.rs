//! Competing traffic on a path: plain TCP connections that send as fast as they can.

use std::time::Duration;

use marline_sim::{Amount, App, Bulk, Paths};

use super::{Load, START, Variant};
use crate::workload::Workload;

/// Block size in bytes of a connection in real time.
const BLOCK_BYTES: u32 = 65_536;

/// A competing connection.
#[derive(Clone, Debug, PartialEq)]
pub struct BackgroundConnection {
    /// Path whose link the connection shares.
    pub path: String,
    /// Congestion control spec. On live stacks, the name of the kernel's module.
    pub congestion: String,
    /// True if the client's side sends.
    pub is_up: bool,
    /// Start, counted from the start of the run's workloads.
    pub from: Duration,
    /// End. `None`: at the end of the last workload.
    pub until: Option<Duration>,
}

impl BackgroundConnection {
    /// The connection's variant: TCP on its path.
    pub(super) fn variant(&self) -> Variant {
        Variant::single_path("background", &self.path).congestion(&self.congestion)
    }

    /// The connection as a workload, for a run of this duration.
    pub(super) fn load(&self, lasts: Duration) -> Load {
        let time = self.until.unwrap_or(lasts).saturating_sub(self.from);
        let (bytes, lasts_ms) = (BLOCK_BYTES, time.as_millis() as u64);
        let workload = match self.is_up {
            true => Workload::Upload { bytes, lasts_ms },
            false => Workload::Blocks { bytes, lasts_ms },
        };
        Load { from: self.from, ..Load::new(workload) }
    }

    /// Adds the connection to a virtual-time run of this duration, on the path with this number.
    ///
    /// # Errors
    /// The congestion control is unknown.
    pub(super) fn begin(
        &self,
        paths: &mut Paths,
        number: usize,
        lasts: Duration,
    ) -> anyhow::Result<()> {
        let until = START + self.until.unwrap_or(lasts);
        let end = |sends, seeds: (u64, u64)| -> Box<dyn App> {
            let amount = if sends { Amount::Until(until) } else { Amount::Nothing };
            Box::new(Bulk::new(amount, seeds.0, seeds.1))
        };
        let apps = [end(self.is_up, (21, 22)), end(!self.is_up, (22, 21))];
        paths.add_competing_connection_at(
            START + self.from,
            number,
            self.variant().connection()?,
            apps,
        );
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use crate::experiment::file::ExperimentFile;
    use crate::experiment::{Experiment, Outcome, Variant, simulate};
    use crate::runs::Record;

    const LOADED: &str = "[[path]]\nname = 'wifi'\nlink = 'rate=20M,delay=10ms'\n\
                          [[path]]\nname = 'lte'\nlink = 'rate=10M,delay=40ms'\n\
                          [workload]\nkind = 'bulk'\nlasts = '8s'\n";

    fn read(background: &str) -> Experiment {
        let text = format!("{LOADED}{background}");
        let file = ExperimentFile::from_toml("x.toml", &text);
        file.unwrap_or_else(|error| panic!("{error:#}")).experiment
    }

    fn run(experiment: &Experiment) -> (Outcome, Record) {
        let outcome = simulate(experiment, &Variant::single_path("wifi", "wifi"), 3).expect("run");
        assert_eq!(
            outcome,
            simulate(experiment, &Variant::single_path("wifi", "wifi"), 3).expect("run")
        );
        let record = Record::from_outcome(experiment, &outcome).expect("a record");
        (outcome, record)
    }

    #[test]
    fn background_connections_take_their_share_and_are_counted_separately() {
        let (alone, free) = run(&read(""));
        for congestion in ["cubic", "bbr"] {
            let flow = format!("[[background]]\npath = 'wifi'\ncongestion = '{congestion}'\n");
            let (outcome, shared) = run(&read(&flow));
            let share = shared.goodput_mbit_per_s / free.goodput_mbit_per_s;
            assert!((0.2..0.95).contains(&share), "{congestion}: {share}");
            // The connection's own bytes are the bytes read plus overhead. The radio sends for no other connection.
            let own = shared.paths[0].down_bytes as f64;
            let read = shared.goodput_mbit_per_s * 1e6;
            assert!((1.0..1.15).contains(&(own / read)), "{congestion}: {own} of {read}");
            let joules =
                |outcome: &Outcome| outcome.paths[0].radio.expect("WiFi").energy.traffic_j();
            assert!(joules(&outcome) < 0.97 * joules(&alone), "{congestion}");
        }
        // On another path, in the other direction, or later, they take little.
        let elsewhere = "[[background]]\npath = 'lte'\n";
        assert_eq!(run(&read(elsewhere)).1, free);
        let late = "[[background]]\npath = 'wifi'\nfrom = '6s'\nuntil = '7s'\n";
        let (_, record) = run(&read(late));
        assert!(record.goodput_mbit_per_s > 0.8 * free.goodput_mbit_per_s);
        assert!(record.goodput_mbit_per_s < 0.97 * free.goodput_mbit_per_s);
    }

    #[test]
    fn invalid_background_connections_are_reported_with_their_position() {
        for (flow, wanted) in [
            ("path = 'umts'", "x.toml:11:9: no path is named `umts`; known: wifi, lte"),
            ("path = 'lte'\ncongestion = 'bbrr'", "unknown congestion control `bbrr`"),
            ("path = 'lte'\ndirection = 'left'", "unknown variant `left`"),
            ("path = 'lte'\nfrom = '2s'\nuntil = '1s'", "x.toml:13:9: must be later than `from`"),
        ] {
            let text = format!("{LOADED}[[background]]\n{flow}\n");
            let error = ExperimentFile::from_toml("x.toml", &text).expect_err("wrong");
            let error = format!("{error:#}");
            assert!(error.contains(wanted), "wanted {wanted}, got:\n{error}");
        }
    }
}
