//! Control socket, metrics and memory upkeep of a running program.

use std::path::PathBuf;
use std::sync::Arc;

use anyhow::Context;
use marline_proxy::memory_trim;
use tokio::task::JoinSet;

use crate::config::shared::RuntimeOptions;
use crate::{control, metrics_http, service};

/// What a running program shows of itself, as long as this lives.
pub(super) struct Watched {
    _control: Option<control::ControlServer>,
    _metrics: Option<metrics_http::MetricsServer>,
    _memory: JoinSet<()>,
}

/// Serves the control socket and, if wanted, metrics; looks after the memory that connections leave behind, and the
/// service manager's watchdog.
pub(super) async fn watched(
    runtime: &RuntimeOptions,
    handle: Arc<dyn control::Handle>,
) -> anyhow::Result<Watched> {
    let metrics = match runtime.metrics {
        None => None,
        Some(address) => {
            let server = metrics_http::serve(address, Arc::clone(&handle))
                .await
                .with_context(|| format!("cannot serve metrics on TCP {address}"))?;
            tracing::info!("metrics at http://{}/metrics", server.local_addr());
            Some(server)
        }
    };
    let control = serve_control(runtime.control.clone(), Arc::clone(&handle))?;
    let mut memory = JoinSet::new();
    memory.spawn(memory_trim::give_back());
    memory.spawn(service::give_signs_of_life(handle));
    Ok(Watched { _control: control, _metrics: metrics, _memory: memory })
}

/// A control socket that cannot be made is no reason not to run, unless it was asked for.
fn serve_control(
    wanted: Option<PathBuf>,
    handle: Arc<dyn control::Handle>,
) -> anyhow::Result<Option<control::ControlServer>> {
    let path = wanted.clone().unwrap_or_else(|| control::default_path(handle.role()));
    match control::serve(&path, handle) {
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
