//! Control socket, metrics, dashboard and memory upkeep of a running program.

use std::io;
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use anyhow::Context;
use marline_proxy::memory_trim;
use tokio::net::TcpListener;
use tokio::task::JoinSet;

use crate::config::shared::RuntimeOptions;
use crate::succession::Aside;
use crate::{control, dashboard, metrics_http, service};

/// What a running program shows of itself, as long as this lives.
pub(super) struct Watched {
    control: Option<control::ControlServer>,
    /// The control socket is where it was asked for.
    is_named: bool,
    metrics: Option<metrics_http::MetricsServer>,
    dashboard: Option<dashboard::Running>,
    _memory: JoinSet<()>,
}

/// Listening sockets of the process before, by what [`Watched::copies`] calls them.
pub(super) type Inherited = Vec<(String, OwnedFd)>;

fn control_name(path: &Path) -> String {
    format!("control {}", path.display())
}

fn metrics_name(address: std::net::SocketAddr) -> String {
    format!("metrics {address}")
}

fn dashboard_name(address: std::net::SocketAddr) -> String {
    format!("dashboard {address}")
}

fn take(inherited: &mut Inherited, name: &str) -> Option<OwnedFd> {
    let at = inherited.iter().position(|(known, _)| known == name)?;
    Some(inherited.swap_remove(at).1)
}

/// Serves the control socket and, if wanted, metrics and a dashboard; looks after the memory that connections leave
/// behind, and the service manager's watchdog.
pub(super) async fn watched(
    runtime: &RuntimeOptions,
    handle: Arc<dyn control::Handle>,
) -> anyhow::Result<Watched> {
    watched_again(runtime, handle, Vec::new()).await
}

/// The same in the place of another process, whose sockets are used where they are wanted still.
pub(super) async fn watched_again(
    runtime: &RuntimeOptions,
    handle: Arc<dyn control::Handle>,
    mut inherited: Inherited,
) -> anyhow::Result<Watched> {
    let metrics = match runtime.metrics {
        None => None,
        Some(address) => {
            let server = match take(&mut inherited, &metrics_name(address)) {
                Some(listening) => inherited_metrics(listening, Arc::clone(&handle)),
                None => metrics_http::serve(address, Arc::clone(&handle)).await,
            };
            let server =
                server.with_context(|| format!("cannot serve metrics on TCP {address}"))?;
            tracing::info!("metrics at http://{}/metrics", server.local_addr());
            Some(server)
        }
    };
    let dashboard = match runtime.dashboard {
        None => None,
        Some(address) => {
            let token_file = runtime.dashboard_token_file.as_deref();
            let listening = take(&mut inherited, &dashboard_name(address));
            Some(dashboard::start(address, token_file, listening, Arc::clone(&handle)).await?)
        }
    };
    let is_named = runtime.control.is_some();
    let control = serve_control(runtime.control.clone(), Arc::clone(&handle), inherited)?;
    let mut memory = JoinSet::new();
    memory.spawn(memory_trim::give_back());
    memory.spawn(service::give_signs_of_life(move || drop(handle.paths())));
    Ok(Watched { control, is_named, metrics, dashboard, _memory: memory })
}

fn inherited_metrics(
    listening: OwnedFd,
    handle: Arc<dyn control::Handle>,
) -> io::Result<metrics_http::MetricsServer> {
    let listener = std::net::TcpListener::from(listening);
    metrics_http::serve_on(TcpListener::from_std(listener)?, handle)
}

/// A control socket that cannot be made is no reason not to run, unless it was asked for.
fn serve_control(
    wanted: Option<PathBuf>,
    handle: Arc<dyn control::Handle>,
    mut inherited: Inherited,
) -> anyhow::Result<Option<control::ControlServer>> {
    let path = wanted.clone().unwrap_or_else(|| control::default_path(handle.role()));
    let served = match take(&mut inherited, &control_name(&path)) {
        Some(listening) => control::serve_inherited(&path, listening, handle),
        None => control::serve(&path, handle),
    };
    match served {
        Ok(server) => {
            tracing::info!("control socket {}", path.display());
            Ok(Some(server))
        }
        Err(error) if wanted.is_some() => {
            Err(error).with_context(|| format!("control socket {}", path.display()))
        }
        Err(error) => {
            tracing::warn!("no control socket {}: {error}", path.display());
            Ok(None)
        }
    }
}

impl Aside for Watched {
    /// Those at addresses that somebody chose.
    fn copies(&self) -> io::Result<Inherited> {
        let mut copies = Inherited::new();
        if let Some(control) = self.control.as_ref().filter(|_| self.is_named) {
            copies.push((control_name(control.path()), control.copy()?));
        }
        if let Some(metrics) = &self.metrics {
            copies.push((metrics_name(metrics.local_addr()), metrics.copy()?));
        }
        if let Some(dashboard) = &self.dashboard {
            copies.push((dashboard_name(dashboard.local_addr()), dashboard.copy()?));
        }
        Ok(copies)
    }

    fn leave(&mut self) {
        self.metrics = None;
        self.dashboard = None;
        match &mut self.control {
            Some(control) if self.is_named => control.leave(),
            Some(control) => control.step_aside(),
            None => {}
        }
    }
}
