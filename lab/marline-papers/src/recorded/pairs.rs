//! Pairs of recorded links.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use anyhow::Context as _;
use marline_link::trace::{ArrivalTrace, Opportunities, PingTrace};
use marline_link::{DuplexSpec, RateSpec, Steps};
use marline_time::{Rate, Rng};

use super::setup::Setup;

/// Packet headers on the train without Ethernet: IPv4, and TCP with timestamps and DSS.
const TRAIN_HEADER_BYTES: u32 = 72;
/// Window of the rate measurement on the train.
const TRAIN_WINDOW: Duration = Duration::from_millis(500);

/// Two recorded links that can start anywhere in their recordings.
#[derive(Clone, Debug)]
pub(crate) struct Pair {
    /// Name in tables.
    pub(crate) name: String,
    /// Names of the paths.
    pub(crate) paths: [String; 2],
    recordings: [RecordedLink; 2],
    /// True if both were recorded at the same time. Both then start at the same position.
    is_simultaneous: bool,
}

/// A recording that can be used as a link.
#[derive(Clone, Debug)]
enum RecordedLink {
    /// Description around the start time, and the length of the recording.
    Text { before: String, after: String, period: Duration },
    /// Rates, and the description of all other properties.
    Rates { steps: Arc<Steps<Rate>>, link: Box<DuplexSpec> },
}

impl RecordedLink {
    fn period(&self) -> Duration {
        match self {
            RecordedLink::Text { period, .. } => *period,
            RecordedLink::Rates { steps, .. } => steps.period().unwrap_or_default(),
        }
    }

    /// Description of the link that starts after this share of the recording.
    fn description_from(&self, share: f64) -> anyhow::Result<String> {
        let start = self.period().mul_f64(share);
        Ok(match self {
            RecordedLink::Text { before, after, .. } => {
                format!("{before}@{}ms{after}", start.as_millis())
            }
            RecordedLink::Rates { steps, link } => {
                let mut spec = DuplexSpec::clone(link);
                spec.down.rate =
                    RateSpec::Steps(steps.with_start(start).map_err(anyhow::Error::msg)?);
                spec.to_string()
            }
        })
    }
}

impl Pair {
    /// Descriptions of both links from a position in the recordings that `rng` draws. Recordings repeat when they end.
    pub(crate) fn links(&self, rng: &mut impl Rng) -> anyhow::Result<[String; 2]> {
        let first = rng.unit();
        let second = if self.is_simultaneous { first } else { rng.unit() };
        Ok([
            self.recordings[0].description_from(first)?,
            self.recordings[1].description_from(second)?,
        ])
    }
}

/// Every pair in a directory of traces.
pub(crate) fn pairs(directory: &Path, setup: &Setup) -> anyhow::Result<Vec<Pair>> {
    let mut pairs = Vec::new();
    let mut files = Vec::new();
    list(directory, &mut files)?;
    for file in &files {
        let name = file.file_name().and_then(|name| name.to_str()).unwrap_or_default();
        if let Some(session) = name.strip_suffix(".csv").filter(|_| !name.contains(".arrivals")) {
            pairs.extend(of_pings(file, session, setup)?);
        }
    }
    pairs.extend(of_recordings(&files, setup)?);
    pairs.extend(train_pairs(&files, setup)?);
    Ok(pairs)
}

fn list(directory: &Path, files: &mut Vec<PathBuf>) -> anyhow::Result<()> {
    let entries = std::fs::read_dir(directory).with_context(|| directory.display().to_string())?;
    let mut here: Vec<_> = entries.flatten().map(|entry| entry.path()).collect();
    here.sort();
    for path in here {
        if path.is_dir() {
            list(&path, files)?;
        } else {
            files.push(path);
        }
    }
    Ok(())
}

/// All pairs of the carriers in one session of pings.
fn of_pings(file: &Path, session: &str, setup: &Setup) -> anyhow::Result<Vec<Pair>> {
    let bytes = std::fs::read(file).with_context(|| file.display().to_string())?;
    // The file is another table, without pings.
    let Ok(carriers) = PingTrace::parse_all(session, &bytes) else { return Ok(Vec::new()) };
    let carriers: Vec<(String, PingTrace)> = carriers.into_iter().collect();
    let recorded = |name: &str, trace: &PingTrace| RecordedLink::Text {
        before: format!("{},ping={session}:{name}", setup.ping_link),
        after: String::new(),
        period: trace.period(),
    };
    Ok(all_pairs(&carriers)
        .map(|((a, trace_a), (b, trace_b))| Pair {
            name: format!("{session} {a} + {b}"),
            paths: [a.clone(), b.clone()],
            recordings: [recorded(a, trace_a), recorded(b, trace_b)],
            is_simultaneous: true,
        })
        .collect())
}

fn all_pairs<T>(items: &[T]) -> impl Iterator<Item = (&T, &T)> {
    let pairs = |(index, first)| items[index + 1..].iter().map(move |second| (first, second));
    items.iter().enumerate().flat_map(pairs)
}

fn of_recordings(files: &[PathBuf], setup: &Setup) -> anyhow::Result<Vec<Pair>> {
    let find = |name: &str, ending: &str| {
        let plain = format!("{name}{ending}");
        let packed = format!("{plain}.gz");
        files.iter().find(|file| file.ends_with(&plain) || file.ends_with(&packed))
    };
    let mut known = Vec::new();
    for one in &setup.recording {
        let (Some(_), Some(down)) = (find(&one.trace, ".up"), find(&one.trace, ".down")) else {
            continue;
        };
        let named = || down.display().to_string();
        let bytes = std::fs::read(down).with_context(named)?;
        let recorded = RecordedLink::Text {
            before: format!("trace={}", one.trace),
            after: format!(",{}", one.link),
            period: Opportunities::parse(&named(), &bytes)?.period(),
        };
        let short = one.trace.trim_end_matches("-driving").to_lowercase();
        known.push((short.trim_end_matches("-short").to_owned(), recorded));
    }
    let pair =
        |((a, first), (b, second)): (&(String, RecordedLink), &(String, RecordedLink))| Pair {
            name: format!("{a} + {b}"),
            paths: [a.clone(), b.clone()],
            recordings: [first.clone(), second.clone()],
            is_simultaneous: false,
        };
    Ok(all_pairs(&known).map(pair).collect())
}

/// Pairs of arrivals that were captured at the same time. Their file names are equal up to the carrier.
fn train_pairs(files: &[PathBuf], setup: &Setup) -> anyhow::Result<Vec<Pair>> {
    let mut sets: BTreeMap<String, Vec<(String, &Path)>> = BTreeMap::new();
    for file in files {
        let name = file.file_name().and_then(|name| name.to_str()).unwrap_or_default();
        let Some(stem) = name.strip_suffix(".arrivals.csv.gz") else { continue };
        // elephant_TIME_CONGESTION_CARRIER_INTERFACE
        let words: Vec<&str> = stem.split('_').collect();
        if let [kind, time, congestion, carrier, _] = words[..] {
            let set = format!("{kind}-{time}-{congestion}");
            sets.entry(set).or_default().push((carrier.to_lowercase(), file));
        }
    }
    let mut pairs = Vec::new();
    for members in sets.values() {
        for ((a, file_a), (b, file_b)) in all_pairs(members) {
            pairs.push(Pair {
                name: format!("train {a} + {b}"),
                paths: [a.clone(), b.clone()],
                recordings: [train_link(file_a, setup)?, train_link(file_b, setup)?],
                is_simultaneous: true,
            });
        }
    }
    Ok(pairs)
}

fn train_link(file: &Path, setup: &Setup) -> anyhow::Result<RecordedLink> {
    let named = || file.display().to_string();
    let bytes = std::fs::read(file).with_context(named)?;
    let trace = ArrivalTrace::parse(&named(), &bytes)?;
    let steps = trace.rate_steps(TRAIN_WINDOW, TRAIN_HEADER_BYTES).map_err(anyhow::Error::msg)?;
    let link: DuplexSpec = setup.train_link.parse().with_context(|| "train_link")?;
    Ok(RecordedLink::Rates { steps, link: Box::new(link) })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::file::PaperFile;

    #[test]
    fn pairs_are_found_by_file_contents() {
        let directory = tempfile::tempdir().unwrap();
        let write = |name: &str, text: &str| {
            std::fs::create_dir_all(directory.path().join("set")).unwrap();
            std::fs::write(directory.path().join("set").join(name), text).unwrap();
        };
        let rows = |carrier: &str| format!("{carrier},1,0,50\n{carrier},2,200,60\n");
        let head = "carrier,seq,t_send_ms,rtt_ms\n";
        write("s1.csv", &format!("{head}{}{}{}", rows("a"), rows("b"), rows("c")));
        write("index.csv", "session,carriers\ns1,3\n");
        for name in ["ATT-LTE-driving", "Verizon-LTE-short"] {
            write(&format!("{name}.up"), "1\n2\n");
            write(&format!("{name}.down"), "1\n2\n");
        }
        // The other direction is missing.
        write("TMobile-LTE-short.down", "1\n2\n");
        let file = PaperFile::<Setup>::parse(super::super::setup::TEXT).unwrap();
        let pairs = pairs(directory.path(), &file.published).unwrap();
        let names: Vec<&str> = pairs.iter().map(|pair| pair.name.as_str()).collect();
        assert_eq!(names, ["s1 a + b", "s1 a + c", "s1 b + c", "att-lte + verizon-lte"]);
        let mut rng = marline_time::SeedTree::new(1).stream("places");
        let [first, second] = pairs[0].links(&mut rng).unwrap();
        let place = first.rsplit_once('@').unwrap().1;
        assert!(first.starts_with("down.rate=20M,up.rate=10M,queue=200ms,ping=s1:a@"), "{first}");
        // Both were recorded at the same time and start at the same position.
        assert!(second.ends_with(&format!("ping=s1:b@{place}")), "{first} {second}");
        let [first, _] = pairs[3].links(&mut rng).unwrap();
        assert!(first.starts_with("trace=ATT-LTE-driving@"), "{first}");
        assert!(first.ends_with("ms,delay=20ms,queue=500ms"), "{first}");
        let elsewhere = pairs[0].links(&mut rng).unwrap();
        assert_ne!(elsewhere, pairs[0].links(&mut rng).unwrap());
    }
}
