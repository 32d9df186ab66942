//! Roots of a reproduction: derived from a master root, measured on all threads, stored on disk as they finish,
//! and increased while a row is undecided.
//!
//! A root is a 64-bit number drawn from the master root and the key, so that roots are not adjacent numbers and
//! two masters have no root in common. All parts of a key share the roots, so that comparisons across parts are
//! also paired. The result of a root is a line of `roots/MASTER/PART.jsonl` below the key's results. Another run
//! of the same build with the same master root continues from there.

use std::collections::BTreeMap;
use std::fs;
use std::io::Write as _;
use std::path::PathBuf;
use std::sync::{Mutex, PoisonError};

use anyhow::Context as _;
use marline_sim::digest;
use marline_time::{PcgRng, Rng, SeedTree};
use rustix::time::{ClockId, clock_gettime};
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

use crate::estimate::Samples;
use crate::judge::{Row, Verdict};
use crate::paper::{Context, Effort};

/// A row whose estimate exceeds the part's maximum number of roots by more than this factor gets no more roots.
const MAX_ROOT_FACTOR: u64 = 2;
/// Number of roots in a quick run.
const QUICK_ROOTS: usize = 2;

/// One replication.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub struct Root {
    /// Index, from 0.
    pub number: usize,
    /// Seed of all randomness in it.
    pub seed: u64,
}

impl Root {
    /// Randomness of the experiment itself (such as times of events), separate from that of the links and hosts,
    /// which use `seed`.
    #[must_use]
    pub fn rng(&self, name: &str) -> PcgRng {
        SeedTree::new(self.seed).branch("experiment").stream(name)
    }
}

/// A part of a key: measurements that share each root, and the number of roots.
#[derive(Copy, Clone, Debug)]
pub struct Part {
    /// Name of its file: letters, digits, `-`.
    pub name: &'static str,
    /// Initial number of roots. Rows are judged from [`MIN_ROOTS`](crate::MIN_ROOTS) on.
    pub least: usize,
    /// Maximum number of roots while rows are undecided.
    pub most: usize,
}

impl Part {
    /// A part with these limits on the number of roots.
    #[must_use]
    pub const fn new(name: &'static str, least: usize, most: usize) -> Part {
        Part { name, least, most }
    }

    /// A part with a fixed number of roots: either nothing is judged, or more roots would not decide anything. With
    /// fewer than [`MIN_ROOTS`](crate::MIN_ROOTS) it is shown only.
    #[must_use]
    pub const fn fixed(name: &'static str, roots: usize) -> Part {
        Part { name, least: roots, most: roots }
    }
}

/// The first `count` roots of a key. Seeds have 53 bits, which every file format represents exactly.
pub(crate) fn expand(master: u64, key: &str, count: usize) -> Vec<Root> {
    let mut rng = SeedTree::new(master).branch("papers").stream(key);
    (0..count).map(|number| Root { number, seed: rng.next_u64() >> 11 }).collect()
}

impl Context<'_> {
    /// Measures a part on its roots.
    ///
    /// # Errors
    /// A run failed, or its result cannot be stored.
    pub fn sample<T>(
        &self,
        part: Part,
        measure: impl Fn(&Root) -> anyhow::Result<T> + Sync,
    ) -> anyhow::Result<Samples<T>>
    where
        T: Serialize + DeserializeOwned + Send,
    {
        self.sample_count(part, self.first(part), &measure)
    }

    /// Measures a part and judges it. While a row is undecided and more roots would decide it, roots are added up
    /// to the maximum of the part.
    ///
    /// # Errors
    /// A run failed, its result cannot be stored, or `rows` failed.
    pub fn judge_part<T>(
        &self,
        part: Part,
        measure: impl Fn(&Root) -> anyhow::Result<T> + Sync,
        rows: impl Fn(&Samples<T>) -> anyhow::Result<Vec<Row>>,
    ) -> anyhow::Result<(Samples<T>, Vec<Row>)>
    where
        T: Serialize + DeserializeOwned + Send,
    {
        let mut count = self.first(part);
        loop {
            let samples = self.sample_count(part, count, &measure)?;
            let rows = rows(&samples)?;
            match (self.effort, next_root_count(&rows, count, part.most)) {
                (Effort::Full, Some(more)) => count = more,
                _ => return Ok((samples, rows)),
            }
        }
    }

    /// The first roots of this key, for real-time keys, which store their own runs.
    #[must_use]
    pub fn roots(&self, count: usize) -> Vec<Root> {
        expand(self.master, self.key, count)
    }

    fn first(&self, part: Part) -> usize {
        match self.effort {
            Effort::Full => part.least,
            Effort::Quick => QUICK_ROOTS,
            Effort::Roots(count) => count,
        }
    }

    fn sample_count<T>(
        &self,
        part: Part,
        count: usize,
        measure: &(impl Fn(&Root) -> anyhow::Result<T> + Sync),
    ) -> anyhow::Result<Samples<T>>
    where
        T: Serialize + DeserializeOwned + Send,
    {
        let ledger = Ledger::open(self, part.name)?;
        let roots = expand(self.master, self.key, count);
        let missing: Vec<Root> =
            roots.iter().copied().filter(|root| !ledger.kept.contains_key(&root.seed)).collect();
        let file = Mutex::new(ledger.file);
        let made = self.parallel(part.name, &missing, |root| {
            let before = thread_seconds();
            let (sample, runs) = digest::digest_of_runs(|| measure(root));
            let sample = serde_json::value::to_raw_value(&sample?)?;
            let line = Line {
                root: root.seed,
                cpu_s: thread_seconds() - before,
                digest: runs.value(),
                sample,
            };
            let read: T = line.read(part.name)?;
            let text = serde_json::to_string(&line)? + "\n";
            // Writes a whole line at once. A line that an interruption cut off is dropped when it is read.
            file.lock().unwrap_or_else(PoisonError::into_inner).write_all(text.as_bytes())?;
            Ok((root.seed, (read, line.digest)))
        })?;
        let mut made: BTreeMap<u64, (T, u64)> = made.into_iter().collect();
        let mut all = Vec::with_capacity(count);
        for root in &roots {
            let (sample, runs, cpu_s) = match (made.remove(&root.seed), ledger.kept.get(&root.seed))
            {
                (Some((sample, runs)), _) => (sample, runs, 0.0),
                (None, Some(line)) => (line.read(part.name)?, line.digest, line.cpu_s),
                (None, None) => anyhow::bail!("{}: a root is missing", part.name),
            };
            digest::run_ended(runs);
            self.record_cost(part.name, root.seed, cpu_s);
            all.push(sample);
        }
        Ok(Samples::new(all, self.master))
    }
}

/// Number of roots to continue with. `None`: everything is decided, or more roots would not help.
fn next_root_count(rows: &[Row], count: usize, most: usize) -> Option<usize> {
    let undecided = rows.iter().filter(|row| row.verdict == Verdict::Inconclusive);
    let hope = MAX_ROOT_FACTOR * most as u64;
    let wanted = undecided.filter_map(|row| row.needed).filter(|needed| *needed <= hope).max()?;
    let more = (wanted + wanted / 4).clamp(count as u64 * 3 / 2, count as u64 * 4) as usize;
    (count < most).then(|| more.min(most))
}

/// Stored result of a root.
#[derive(Serialize, Deserialize)]
struct Line {
    root: u64,
    cpu_s: f64,
    digest: u64,
    sample: Box<serde_json::value::RawValue>,
}

impl Line {
    fn read<T: DeserializeOwned>(&self, part: &str) -> anyhow::Result<T> {
        serde_json::from_str(self.sample.get()).with_context(|| {
            format!(
                "{part}: root {}: cannot parse the sample (it must hold only finite numbers)",
                self.root
            )
        })
    }
}

/// First line of a file. It identifies the run to which the other lines belong.
#[derive(PartialEq, Eq, Serialize, Deserialize)]
struct Head {
    program: String,
    master: u64,
}

/// File of the results of a part.
struct Ledger {
    kept: BTreeMap<u64, Line>,
    file: fs::File,
}

impl Ledger {
    fn open(context: &Context<'_>, part: &str) -> anyhow::Result<Ledger> {
        let directory = directory(context);
        let path = directory.join(format!("{part}.jsonl"));
        let named = || path.display().to_string();
        fs::create_dir_all(&directory).with_context(named)?;
        let head = Head { program: context.program.to_owned(), master: context.master };
        let text = fs::read_to_string(&path).unwrap_or_default();
        let (kept, whole) = Ledger::stored_lines(&text, &head);
        let mut file =
            fs::OpenOptions::new().create(true).append(true).open(&path).with_context(named)?;
        file.set_len(whole as u64).with_context(named)?;
        if whole == 0 {
            let head = serde_json::to_string(&head)? + "\n";
            file.write_all(head.as_bytes()).with_context(named)?;
        }
        Ok(Ledger { kept, file })
    }

    /// Lines of a file with this head, and the length of its complete lines in bytes.
    fn stored_lines(text: &str, head: &Head) -> (BTreeMap<u64, Line>, usize) {
        let mut kept = BTreeMap::new();
        let mut whole = 0;
        for (number, line) in text.split_inclusive('\n').enumerate() {
            if !line.ends_with('\n') {
                break;
            }
            match number {
                0 if serde_json::from_str::<Head>(line).is_ok_and(|of| of == *head) => {}
                0 => break,
                _ => match serde_json::from_str::<Line>(line) {
                    Ok(line) => drop(kept.insert(line.root, line)),
                    Err(_) => break,
                },
            }
            whole += line.len();
        }
        (kept, whole)
    }
}

/// Directory of the roots of a key. Each master root has its own, as do quick runs, which are shorter.
fn directory(context: &Context<'_>) -> PathBuf {
    let name = match context.effort {
        Effort::Quick => format!("{}-quick", context.master),
        Effort::Full | Effort::Roots(_) => context.master.to_string(),
    };
    context.results.join("roots").join(name)
}

/// Removes the stored roots of a key for this master root.
///
/// # Errors
/// The directory cannot be removed.
pub fn remove_stored(context: &Context<'_>) -> anyhow::Result<()> {
    let directory = directory(context);
    match directory.exists() {
        true => fs::remove_dir_all(&directory).with_context(|| directory.display().to_string()),
        false => Ok(()),
    }
}

fn thread_seconds() -> f64 {
    let spent = clock_gettime(ClockId::ThreadCPUTime);
    spent.tv_sec as f64 + spent.tv_nsec as f64 / 1e9
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::estimate::{Estimate, RequiredRange};

    #[test]
    fn seeds_of_different_masters_are_distinct_and_far_apart() {
        let seeds: Vec<Vec<u64>> = [1, 2, 3]
            .map(|master| expand(master, "key", 300).iter().map(|root| root.seed).collect())
            .to_vec();
        let mut all: Vec<u64> = seeds.concat();
        all.extend(expand(1, "other", 300).iter().map(|root| root.seed));
        all.sort_unstable();
        assert!(all.windows(2).all(|pair| pair[1] - pair[0] > 1_000));
        // More roots extend the same sequence.
        assert_eq!(expand(1, "key", 10)[..], expand(1, "key", 300)[..10]);
    }

    #[test]
    fn more_roots_are_run_if_they_can_decide_a_row() {
        let row = |value: f64, half: f64| {
            let estimate = Estimate { value, low: value - half, high: value + half, roots: 20 };
            Row::new("x")
                .estimate(&estimate, "ms")
                .require_range(RequiredRange::at_most(10.0), "at most 10 ms")
        };
        assert_eq!(next_root_count(&[row(8.0, 1.0), row(12.0, 1.0)], 20, 100), None);
        // 45 roots would decide it, and a quarter more are run.
        assert_eq!(next_root_count(&[row(8.0, 3.0), row(8.0, 1.0)], 20, 100), Some(56));
        assert_eq!(next_root_count(&[row(8.0, 3.0)], 20, 40), Some(40));
        assert_eq!(next_root_count(&[row(8.0, 3.0)], 40, 40), None);
        assert_eq!(next_root_count(&[row(9.9, 3.0)], 20, 100), None);
    }

    #[test]
    fn a_file_that_was_cut_off_is_read_up_to_the_last_whole_line() {
        let head = || Head { program: "p".into(), master: 1 };
        let first = serde_json::to_string(&head()).unwrap();
        let line =
            |root| format!("{{\"root\":{root},\"cpu_s\":0.5,\"digest\":7,\"sample\":[1.5]}}\n");
        let text = format!("{first}\n{}{}{{\"root\":9,\"cpu", line(1), line(2));
        let (kept, whole) = Ledger::stored_lines(&text, &head());
        assert_eq!(kept.keys().copied().collect::<Vec<_>>(), [1, 2]);
        assert!(text[whole..].starts_with("{\"root\":9"));
        assert_eq!(kept[&1].read::<Vec<f64>>("x").unwrap(), [1.5]);
        let other = Head { master: 2, ..head() };
        assert_eq!(Ledger::stored_lines(&text, &other).1, 0);
    }
}
