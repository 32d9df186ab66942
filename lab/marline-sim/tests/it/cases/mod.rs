//! Cases behind the table of figures, shared by the tests (small variants) and
//! `examples/numbers.rs` (in full).

#![allow(dead_code, reason = "each test binary uses its own part")]
#![allow(unreachable_pub, reason = "a module of test binaries")]

pub mod anchors;
pub mod bulk;
pub mod bursts;
pub mod crowd;
pub mod dead_download;
pub mod death;
pub mod oracle;
pub mod pairs;
pub mod rows;
pub mod sleep;
pub mod speed;
pub mod worlds;

use std::path::Path;

use marline_algos::Registry;
use marline_core::{ConnectionConfig, SubflowInfo};
use marline_link::{DuplexConfig, DuplexSpec};
use marline_sim::{Paths, PathsConfig};
use marline_time::SeedTree;

/// Loss recovery of the studies' Linux 3.14.
pub const LINUX_314: &str = "rfc6675,pto=linux-3.10,fack=on,early-retransmit=on";

/// Connections with this scheduler and the reference's other policies.
pub fn connection(scheduler: &str) -> ConnectionConfig {
    let registry = Registry::default();
    let mut policies = marline_algos::reference_policies();
    policies.scheduler = registry.scheduler(scheduler).expect("a built-in scheduler");
    ConnectionConfig::new(policies)
}

/// A link of this description without traces.
pub fn link(text: &str) -> DuplexConfig {
    traced_link(text, &SeedTree::new(1), None)
}

/// Two hosts with these links between them and equal configurations.
pub fn scene(links: &[&str], connection: ConnectionConfig, seed: u64) -> Paths {
    let links = links.iter().map(|text| link(text)).collect();
    Paths::new(&PathsConfig::new(links, connection), SeedTree::new(seed))
}

/// Like the above, but with maximum-size segments from the start, so that tests can count segments.
pub fn scene_of_full_segments(links: &[&str], connection: ConnectionConfig, seed: u64) -> Paths {
    let links = links.iter().map(|text| link(text)).collect();
    Paths::new(&PathsConfig::new(links, connection).with_known_mtu(), SeedTree::new(seed))
}

/// The subflows of the server's only connection.
pub fn at_server(paths: &Paths) -> Vec<SubflowInfo> {
    let host = paths.world.node(paths.server);
    let (id, _) = host.connections().next().expect("one connection");
    host.endpoint().info(id).expect("it is open").subflows
}

/// A link of this description; traces are searched for in `dir` and its folders.
///
/// # Panics
/// If the description or a trace cannot be used.
pub fn traced_link(text: &str, seeds: &SeedTree, dir: Option<&Path>) -> DuplexConfig {
    let spec: DuplexSpec = text.parse().unwrap_or_else(|error| panic!("{text}: {error}"));
    let read = &mut |file: &str| dir.and_then(|dir| find(dir, file));
    spec.resolve(seeds, read).unwrap_or_else(|error| panic!("{text}: {error}"))
}

fn find(dir: &Path, file: &str) -> Option<Vec<u8>> {
    let folders = std::fs::read_dir(dir).ok()?.filter_map(|entry| Some(entry.ok()?.path()));
    let places = std::iter::once(dir.to_path_buf()).chain(folders.filter(|path| path.is_dir()));
    let mut places: Vec<_> = places.collect();
    places.sort();
    places.iter().find_map(|place| std::fs::read(place.join(file)).ok())
}

/// Runs `job` for each item on as many threads as the machine has; results in the items' order.
pub fn parallel<T: Sync, R: Send>(items: &[T], job: impl Fn(&T) -> R + Sync) -> Vec<R> {
    let threads = std::thread::available_parallelism().map_or(1, usize::from).min(items.len());
    let next = std::sync::atomic::AtomicUsize::new(0);
    let mut results: Vec<(usize, R)> = std::thread::scope(|scope| {
        let worker = || {
            let mut done = Vec::new();
            loop {
                let index = next.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
                let Some(item) = items.get(index) else { return done };
                done.push((index, job(item)));
            }
        };
        let workers: Vec<_> = (0..threads.max(1)).map(|_| scope.spawn(worker)).collect();
        let finished = workers.into_iter().flat_map(|worker| match worker.join() {
            Ok(done) => done,
            Err(panic) => std::panic::resume_unwind(panic),
        });
        finished.collect()
    });
    results.sort_by_key(|(index, _)| *index);
    results.into_iter().map(|(_, result)| result).collect()
}
