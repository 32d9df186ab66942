//! Control socket, metrics, dashboard, captures, traces and memory upkeep of a running program.
//!
//! Their addresses and directories may change while the program runs. Such a change is first prepared, which may
//! fail, and then applied as a whole.

use std::cell::RefCell;
use std::io;
use std::net::SocketAddr;
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use anyhow::Context;
use marline::advanced::SharedEventObserver;
use marline_proxy::memory_trim;
use tokio::net::TcpListener;
use tokio::task::JoinSet;

use crate::config::policies::Mode;
use crate::config::shared::{Recording, RuntimeOptions};
use crate::control::Handle;
use crate::dashboard::BoundDashboard;
use crate::metrics_http::MetricsServer;
use crate::succession::UpgradeResources;
use crate::{control, dashboard, metrics_http, service};

/// Views of a running program, served until this is dropped.
pub(super) struct ServedViews {
    handle: Arc<dyn Handle>,
    shown: RefCell<ViewState>,
    _memory: JoinSet<()>,
}

struct ViewState {
    control: Option<control::ControlServer>,
    /// True if the control socket is at a configured path.
    is_named: bool,
    /// Metrics server with its configured address.
    metrics: Option<(SocketAddr, MetricsServer)>,
    dashboard: Option<dashboard::RunningDashboard>,
    /// Current settings of captures and traces.
    recording: Recording,
    /// True if another process has taken over these views.
    is_handed_over: bool,
}

/// Listening sockets of the previous process, with the names from [`ServedViews::copies`].
pub(super) type InheritedSockets = Vec<(String, OwnedFd)>;

/// Change of one view.
enum Step<T> {
    Keep,
    End,
    Open(T),
}

/// A change whose addresses are bound. Dropping it frees them.
pub(super) struct Change {
    /// New control socket, which already answers while the previous one still does.
    control: Step<control::ControlServer>,
    is_named: bool,
    mode: Mode,
    metrics: Step<(SocketAddr, TcpListener)>,
    dashboard: Step<BoundDashboard>,
    recording: Recording,
    traces: Step<SharedEventObserver>,
}

fn control_name(path: &Path) -> String {
    format!("control {}", path.display())
}

fn metrics_name(address: SocketAddr) -> String {
    format!("metrics {address}")
}

fn dashboard_name(address: SocketAddr) -> String {
    format!("dashboard {address}")
}

fn take_inherited(inherited: &mut InheritedSockets, name: &str) -> Option<OwnedFd> {
    let at = inherited.iter().position(|(known, _)| known == name)?;
    Some(inherited.swap_remove(at).1)
}

/// Serves the control socket and, if configured, metrics and a dashboard. Also releases memory of ended connections
/// and serves the service manager's watchdog. Needs a runtime.
pub(super) fn with_watchers(
    runtime: &RuntimeOptions,
    handle: Arc<dyn Handle>,
) -> anyhow::Result<ServedViews> {
    with_inherited_watchers(runtime, handle, Vec::new())
}

/// Like [`with_watchers`], for a successor: sockets of the previous process are used if they are still configured.
pub(super) fn with_inherited_watchers(
    runtime: &RuntimeOptions,
    handle: Arc<dyn Handle>,
    mut inherited: InheritedSockets,
) -> anyhow::Result<ServedViews> {
    let metrics = match runtime.metrics {
        None => None,
        Some(address) => {
            let listening = take_inherited(&mut inherited, &metrics_name(address));
            let listener = metrics_socket(address, listening)?;
            Some((address, serve_metrics(listener, Arc::clone(&handle))?))
        }
    };
    let dashboard = match runtime.dashboard {
        None => None,
        Some(address) => {
            let token_file = runtime.dashboard_token_file.as_deref();
            let listening = take_inherited(&mut inherited, &dashboard_name(address));
            let opening = BoundDashboard::bind(address, token_file, listening)?;
            Some(opening.serve(Arc::clone(&handle))?)
        }
    };
    let is_named = runtime.control.is_some();
    let control = serve_control(runtime.control.clone(), Arc::clone(&handle), inherited)?;
    let mut memory = JoinSet::new();
    memory.spawn(memory_trim::release_after_floods());
    let alive = Arc::clone(&handle);
    memory.spawn(service::send_watchdog_keepalives(move || drop(alive.paths())));
    let recording = runtime.recording.clone();
    // Traces start here, because they use the same connection numbers as the other views.
    if let Some(traces) = recording.traces(handle.role(), handle.numbers())? {
        handle.observe_events(Some(&traces));
    }
    handle.set_mode(runtime.mode);
    let shown =
        ViewState { control, is_named, metrics, dashboard, recording, is_handed_over: false };
    Ok(ServedViews { handle, shown: RefCell::new(shown), _memory: memory })
}

fn metrics_socket(address: SocketAddr, listening: Option<OwnedFd>) -> anyhow::Result<TcpListener> {
    let listener = match listening {
        Some(listening) => TcpListener::from_std(listening.into()),
        None => metrics_http::listen(address),
    };
    listener.with_context(|| format!("cannot serve metrics on TCP {address}"))
}

fn serve_metrics(listener: TcpListener, handle: Arc<dyn Handle>) -> io::Result<MetricsServer> {
    let server = metrics_http::serve_on(listener, handle)?;
    tracing::info!("serving metrics at http://{}/metrics", server.local_addr());
    Ok(server)
}

/// Serves the control socket. A failure is an error only if the socket's path was configured.
fn serve_control(
    wanted: Option<PathBuf>,
    handle: Arc<dyn Handle>,
    mut inherited: InheritedSockets,
) -> anyhow::Result<Option<control::ControlServer>> {
    let path = wanted.clone().unwrap_or_else(|| control::default_path(handle.role()));
    let served = match take_inherited(&mut inherited, &control_name(&path)) {
        Some(listening) => control::serve_inherited(&path, listening, handle),
        None => control::serve(&path, handle),
    };
    match served {
        Ok(server) => {
            tracing::info!("serving the control socket at {}", path.display());
            Ok(Some(server))
        }
        Err(error) if wanted.is_some() => {
            Err(error).with_context(|| format!("cannot serve control socket {}", path.display()))
        }
        Err(error) => {
            tracing::warn!(
                "no control socket; `marline status` and others cannot reach this process: {}: {error}",
                path.display()
            );
            Ok(None)
        }
    }
}

impl ServedViews {
    /// Binds changed addresses, and creates changed directories.
    ///
    /// # Errors
    /// An address is taken or not allowed, or a token cannot be read. Nothing has changed.
    pub(super) fn prepare(&self, runtime: &RuntimeOptions) -> anyhow::Result<Change> {
        let shown = self.shown.borrow();
        let (is_named, mode) = (runtime.control.is_some(), runtime.mode);
        if shown.is_handed_over {
            let (control, metrics, dashboard, traces) =
                (Step::Keep, Step::Keep, Step::Keep, Step::Keep);
            let recording = shown.recording.clone();
            return Ok(Change { control, is_named, mode, metrics, dashboard, recording, traces });
        }
        let metrics = match (runtime.metrics, &shown.metrics) {
            (None, _) => Step::End,
            (Some(wanted), Some((address, _))) if *address == wanted => Step::Keep,
            (Some(wanted), _) => Step::Open((wanted, metrics_socket(wanted, None)?)),
        };
        let token_file = runtime.dashboard_token_file.as_deref();
        let dashboard = match (runtime.dashboard, &shown.dashboard) {
            (None, _) => Step::End,
            (Some(wanted), None) => Step::Open(BoundDashboard::bind(wanted, token_file, None)?),
            (Some(wanted), Some(running)) => {
                running.bind_if_changed(wanted, token_file)?.map_or(Step::Keep, Step::Open)
            }
        };
        let control = self.prepare_control(runtime.control.as_deref(), &shown)?;
        let recording = runtime.recording.clone();
        let traces = match recording.qlog == shown.recording.qlog {
            true => Step::Keep,
            false => {
                let traces = recording.traces(self.handle.role(), self.handle.numbers())?;
                traces.map_or(Step::End, Step::Open)
            }
        };
        Ok(Change { control, is_named, mode, metrics, dashboard, recording, traces })
    }

    fn prepare_control(
        &self,
        wanted: Option<&Path>,
        shown: &ViewState,
    ) -> anyhow::Result<Step<control::ControlServer>> {
        let role = self.handle.role();
        let path = wanted.map_or_else(|| control::default_path(role), Path::to_path_buf);
        match &shown.control {
            Some(control) if control.path() == path => Ok(Step::Keep),
            // The default socket could not be created at the start.
            None if wanted.is_none() => Ok(Step::Keep),
            _ => {
                let served = control::serve(&path, Arc::clone(&self.handle));
                served
                    .map(Step::Open)
                    .with_context(|| format!("cannot serve control socket {}", path.display()))
            }
        }
    }

    /// Applies the change. Connections to the old control socket are served until they end.
    pub(super) fn commit(&self, change: Change) {
        let mut shown = self.shown.borrow_mut();
        let Change { control, is_named, mode, metrics, dashboard, recording, traces } = change;
        shown.is_named = is_named;
        self.handle.set_mode(mode);
        if let Step::Open(control) = control {
            tracing::info!("serving the control socket at {}", control.path().display());
            shown.control = Some(control);
        }
        let metrics = self.commit_metrics(&mut shown, metrics).map_err(anyhow::Error::from);
        let dashboard = self.commit_dashboard(&mut shown, dashboard);
        let captures = self.commit_captures(&shown, &recording);
        match traces {
            Step::Keep => {}
            Step::End => self.handle.observe_events(None),
            Step::Open(traces) => self.handle.observe_events(Some(&traces)),
        }
        shown.recording = recording;
        // An error is possible only for an invalid socket, or a directory that was removed a moment ago.
        for error in [metrics, dashboard, captures].into_iter().filter_map(Result::err) {
            tracing::error!("reload failed; keeping current configuration: {error:#}");
        }
    }

    fn commit_metrics(
        &self,
        shown: &mut ViewState,
        step: Step<(SocketAddr, TcpListener)>,
    ) -> io::Result<()> {
        match step {
            Step::Keep => {}
            Step::End => shown.metrics = None,
            Step::Open((address, listener)) => match &mut shown.metrics {
                Some((before, server)) => {
                    server.move_to(listener)?;
                    *before = address;
                    tracing::info!("serving metrics at http://{}/metrics", server.local_addr());
                }
                None => {
                    let server = serve_metrics(listener, Arc::clone(&self.handle))?;
                    shown.metrics = Some((address, server));
                }
            },
        }
        Ok(())
    }

    fn commit_captures(&self, shown: &ViewState, wanted: &Recording) -> anyhow::Result<()> {
        if !wanted.captures_differ(&shown.recording) {
            return Ok(());
        }
        let captured = self.handle.capture(wanted.pcap.as_deref(), wanted.pcap_secrets);
        captured.context("cannot start captures")
    }

    fn commit_dashboard(
        &self,
        shown: &mut ViewState,
        step: Step<BoundDashboard>,
    ) -> anyhow::Result<()> {
        match step {
            Step::Keep => {}
            Step::End => shown.dashboard = None,
            Step::Open(opening) => match &mut shown.dashboard {
                Some(running) => running.change(opening)?,
                None => shown.dashboard = Some(opening.serve(Arc::clone(&self.handle))?),
            },
        }
        Ok(())
    }
}

impl UpgradeResources for ServedViews {
    /// Duplicates the descriptors of the sockets at configured addresses.
    fn copies(&self) -> io::Result<InheritedSockets> {
        let shown = self.shown.borrow();
        let mut copies = InheritedSockets::new();
        if let Some(control) = shown.control.as_ref().filter(|_| shown.is_named) {
            copies.push((control_name(control.path()), control.copy()?));
        }
        if let Some((_, metrics)) = &shown.metrics {
            copies.push((metrics_name(metrics.local_addr()), metrics.copy()?));
        }
        if let Some(dashboard) = &shown.dashboard {
            copies.push((dashboard_name(dashboard.local_addr()), dashboard.copy()?));
        }
        Ok(copies)
    }

    fn release_sockets(&self) {
        let mut shown = self.shown.borrow_mut();
        let ViewState { control, is_named, metrics, dashboard, is_handed_over, .. } = &mut *shown;
        (*metrics, *dashboard, *is_handed_over) = (None, None, true);
        match control {
            Some(control) if *is_named => control.stop_accepting(),
            Some(control) => control.rename_socket_aside(),
            None => {}
        }
    }
}
