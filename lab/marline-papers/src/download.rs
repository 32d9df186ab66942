//! Bulk download over links that a link spec cannot describe, for papers about throughput.

use anyhow::Context as _;
use marline::policy::Role;
use marline_lab::experiment::{Variant, reinjected_bytes};
use marline_link::{DuplexConfig, DuplexSpec};
use marline_sim::{Amount, Bulk, Paths, PathsConfig, Report};
use marline_time::{Duration, Instant, SeedTree};

/// Named paths, in order, and the time for which the server sends.
#[derive(Clone, Debug)]
pub(super) struct Download {
    pub(super) paths: Vec<(&'static str, DuplexConfig)>,
    pub(super) length: Duration,
}

impl Download {
    /// Runs the download once and returns the client's report. With the same seed, paths with the same name have the
    /// same losses, regardless of the variant and the other paths.
    ///
    /// # Errors
    /// Unknown policy, unknown path in the variant, or a corrupted byte.
    pub(super) fn run(&self, variant: &Variant, seed: u64) -> anyhow::Result<Report> {
        Ok(self.run_counted(variant, seed)?.0)
    }

    /// Runs the download as [`Download::run`] does, and counts the bytes that were also sent on another path.
    ///
    /// # Errors
    /// The same as [`Download::run`].
    pub(super) fn run_counted(
        &self,
        variant: &Variant,
        seed: u64,
    ) -> anyhow::Result<(Report, u64)> {
        let wanted =
            |name: &str| variant.paths.is_empty() || variant.paths.iter().any(|p| p == name);
        let used: Vec<_> = self.paths.iter().filter(|(name, _)| wanted(name)).collect();
        anyhow::ensure!(
            !used.is_empty(),
            "variant `{}` uses none of the download's paths",
            variant.name
        );
        let links = used.iter().map(|(_, link)| link.clone()).collect();
        // The hosts of the paper ran kernels, which use the interface MTU as the path MTU.
        let mut scene = PathsConfig::new(links, variant.end(Role::Client)?).with_known_mtu();
        scene.server = variant.end(Role::Server)?;
        for (name, _) in &used {
            scene.backup.push(variant.path_spec(name)?.backup);
        }
        scene.names = used.iter().map(|(name, _)| (*name).to_owned()).collect();
        let mut paths = Paths::new(&scene, SeedTree::new(seed));
        variant.share_path_health(&mut paths)?;
        paths.listen(Box::new(|_| Box::new(Bulk::new(Amount::Endless, 1, 2))));
        paths.connect(0, Box::new(Bulk::new(Amount::Nothing, 2, 1))).context("cannot connect")?;
        paths.world.run_until(Instant::ZERO + self.length);
        let report = paths.client_report(0).context("the client has no connection")?;
        if let Some(byte) = report.wrong_at {
            anyhow::bail!("received data differs from sent data at byte {byte}");
        }
        Ok((report.clone(), reinjected_bytes(&paths)))
    }

    /// Mean throughput from a start time (zero: the first SYN) to the end, Mbit/s.
    ///
    /// # Errors
    /// The same as [`Download::run`].
    pub(super) fn mbit_per_s(
        &self,
        variant: &Variant,
        seed: u64,
        from: Duration,
    ) -> anyhow::Result<f64> {
        let report = self.run(variant, seed)?;
        let rate = report.goodput(Instant::ZERO + from, Instant::ZERO + self.length);
        Ok(rate.bits_per_s() as f64 / 1e6)
    }
}

/// Link of a description (docs/research/link.md), without traces.
///
/// # Errors
/// Not a valid description of a link.
pub(super) fn link(text: &str) -> anyhow::Result<DuplexConfig> {
    let spec: DuplexSpec = text.parse().with_context(|| format!("link `{text}`"))?;
    Ok(spec.resolve(&SeedTree::new(0), &mut |_| None)?)
}
