//! Opening of a client's network with its counters and views, shared by `client`, `run` and `up`.

use std::sync::{Arc, OnceLock};

use marline::Client;
use marline_proxy::client::current::Current;
use marline_proxy::client::dialer::Dialer;
use marline_proxy::client::open_targets::OpenTargets;
use marline_proxy::client::tunnel::Tunnel;
use marline_proxy::client::udp_tunnel::UdpTunnel;
use marline_proxy::deadlines::Deadlines;
use marline_proxy::server::allowances::unix_s;
use tokio::task::JoinSet;

use crate::config::client::ClientPlan;
use crate::control::{ClientHandle, Labels};
use crate::memory;
use crate::mobile_data::MobileDataNotice;
use crate::path_quotas::PathQuotas;
use crate::radio_signal::SignalReader;
use crate::reload::ReloadSender;

/// Time for closing connections to notify the peer at the end of the process.
pub(super) const CLOSING_TIME: marline::time::Duration = marline::time::Duration::from_secs(2);

/// Tunnel through a server.
pub(super) type CurrentTunnel = Arc<Current<Tunnel<Dialer>>>;

/// A client's network, opened.
pub(super) struct OpenedClient {
    pub(super) client: Client,
    pub(super) udp: Arc<UdpTunnel>,
    pub(super) quotas: PathQuotas,
    pub(super) deadlines: Deadlines,
    signals: SignalReader,
    mobile_data: MobileDataNotice,
    pub(super) handle: Arc<ClientHandle>,
    way: Arc<OnceLock<CurrentTunnel>>,
    _quota_tasks: JoinSet<()>,
}

impl OpenedClient {
    /// Opens the network. `reloads` sends reload requests.
    pub(super) async fn open(
        plan: &ClientPlan,
        reloads: Option<ReloadSender>,
    ) -> anyhow::Result<OpenedClient> {
        let quotas = PathQuotas::new(plan.path_quotas.clone(), plan.state_file.clone());
        let mut network = plan.network.clone();
        let client = network.observer(quotas.observer()).bind().await?;
        memory::set_limit(plan.runtime.memory);
        client.set_memory_account(memory::process_account());
        // A path whose quota is used up must not carry even the first connection.
        quotas.add_counts(&client, unix_s());
        let mut keeping = JoinSet::new();
        let (kept, of) = (quotas.clone(), client.clone());
        keeping.spawn(async move { kept.update_until_dropped(&of).await });
        let signals = SignalReader::new(plan.wifi_signal);
        let (reader, of) = (signals.clone(), client.clone());
        keeping.spawn(async move { reader.watch_signals(&of).await });
        let mobile_data = MobileDataNotice::new(plan);
        mobile_data.check_paths(&client, &quotas);
        let (notice, of, limits) = (mobile_data.clone(), client.clone(), quotas.clone());
        keeping.spawn(async move { notice.watch_paths(&of, &limits).await });
        let (udp, way) =
            (UdpTunnel::with_account(memory::process_account().clone()), Arc::default());
        let udp = Arc::new(udp);
        let handle = ClientHandle {
            client: client.clone(),
            udp: Arc::clone(&udp),
            quotas: quotas.clone(),
            way: Arc::clone(&way),
            reloads,
            targets: OpenTargets::default(),
            labels: Labels::default(),
        };
        let handle = Arc::new(handle);
        let deadlines = Deadlines::default();
        deadlines.change(plan.deadlines.clone());
        Ok(OpenedClient {
            client,
            udp,
            quotas,
            deadlines,
            signals,
            mobile_data,
            handle,
            way,
            _quota_tasks: keeping,
        })
    }

    /// Sets the tunnel from which the server's rejection is read.
    pub(super) fn set_server_tunnel(&self, way: &CurrentTunnel) {
        let _ = self.way.set(Arc::clone(way));
    }

    /// Applies other paths, quotas and settings for new connections. Only the paths may be invalid.
    ///
    /// # Errors
    /// A path names a TUN interface that is not configured. Nothing has changed.
    pub(super) fn change(&self, plan: &ClientPlan) -> anyhow::Result<()> {
        self.client.set_paths(&plan.paths)?;
        self.client.set_transport(plan.network.get_transport());
        memory::set_limit(plan.runtime.memory);
        self.deadlines.change(plan.deadlines.clone());
        self.signals.change(plan.wifi_signal);
        self.quotas.change(plan.path_quotas.clone());
        self.quotas.add_counts(&self.client, unix_s());
        self.mobile_data.change(plan);
        self.mobile_data.check_paths(&self.client, &self.quotas);
        Ok(())
    }

    /// Waits until closing streams have sent their last messages, and saves the counts.
    pub(super) async fn close(&self) {
        self.client.drained(CLOSING_TIME).await;
        self.quotas.close(&self.client).await;
    }
}
