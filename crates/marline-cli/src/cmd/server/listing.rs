//! List of a server's clients with their usage, from the files next to its configuration. The server need not run.

use std::path::Path;
use std::time::{Duration, SystemTime};

use marline_proxy::credentials::Store;
use marline_proxy::ledger;
use marline_proxy::quota::{PerClient, date, short_bytes};
use marline_proxy::server::allowances::{QuotaUse, moment, unix_s};
use serde::Serialize;

use crate::config::ClientQuota;
use crate::config::server::ServerOptions;
use crate::control::protocol::Quota;
use crate::control::views;
use crate::path_table::align;
use crate::times::format_ago;

/// List of clients.
#[derive(Debug, Serialize)]
pub(super) struct ClientList {
    clients: Vec<Client>,
}

#[derive(Debug, Serialize)]
struct Client {
    name: String,
    created_unix_s: u64,
    /// Absent if the client has never connected.
    #[serde(skip_serializing_if = "Option::is_none")]
    seen_unix_s: Option<u64>,
    connections: u64,
    to_targets: u64,
    from_targets: u64,
    /// Bytes in both directions in the quota's month, or without a quota in the calendar month.
    month_bytes: u64,
    #[serde(skip_serializing_if = "Option::is_none")]
    quota: Option<Quota>,
}

/// Reads the list.
///
/// # Errors
/// The credentials cannot be read. If only the usage file cannot be read, usage is shown as zero.
pub(super) fn list(file: &Path, options: ServerOptions) -> anyhow::Result<ClientList> {
    let options = options.into_effective(file);
    let quotas: Vec<ClientQuota> = options.quota.iter().map(|word| word.0.clone()).collect();
    let credentials = Store::in_file(options.credentials_file.unwrap_or_default()).load()?;
    let tallies = ledger::read(&options.state_file.unwrap_or_default()).unwrap_or_else(|error| {
        // Only the running server moves the file aside.
        eprintln!("marline: cannot read usage: {error:#}");
        ledger::Tallies::new()
    });
    let now_unix_s = unix_s();
    let clients = credentials.list().iter().map(|credential| {
        let quota = PerClient::find(&quotas, &credential.name);
        let tally = tallies.get(&*credential.name).cloned().unwrap_or_default();
        let tally = tally.counts_in_period(moment(quota, now_unix_s));
        Client {
            name: credential.name.to_string(),
            created_unix_s: credential.created_unix_s,
            seen_unix_s: Some(tally.seen_unix_s).filter(|seen| *seen > 0),
            connections: tally.connections,
            to_targets: tally.sent_bytes,
            from_targets: tally.received_bytes,
            month_bytes: tally.period_bytes,
            quota: quota.map(|quota| views::quota(&QuotaUse::new(*quota, &tally, now_unix_s))),
        }
    });
    Ok(ClientList { clients: clients.collect() })
}

impl ClientList {
    pub(super) fn to_json(&self) -> anyhow::Result<String> {
        Ok(serde_json::to_string(self)? + "\n")
    }

    pub(super) fn to_text(&self, now: SystemTime) -> String {
        let head = ["client", "created", "last seen", "to targets", "from targets", "this month"];
        let mut rows = vec![head.map(str::to_owned)];
        rows.extend(self.clients.iter().map(|client| {
            let seen = client.seen_unix_s.map(|seen| {
                let seen_at = SystemTime::UNIX_EPOCH + Duration::from_secs(seen);
                format_ago(now.duration_since(seen_at).unwrap_or_default())
            });
            [
                client.name.clone(),
                date(client.created_unix_s),
                seen.unwrap_or_else(|| "never".to_owned()),
                short_bytes(client.to_targets),
                short_bytes(client.from_targets),
                short_bytes(client.month_bytes),
            ]
        }));
        let mut text = align(&rows, &[0, 1]);
        for client in &self.clients {
            if let Some(quota) = &client.quota {
                text += &format!("{}: {}\n", client.name, quota.text());
            }
        }
        text
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_list_shows_creation_last_use_and_traffic_of_clients() {
        let client = |name: &str, seen_unix_s| Client {
            name: name.into(),
            created_unix_s: 1_790_000_000,
            seen_unix_s,
            connections: 3,
            to_targets: 1_234,
            from_targets: 45_600_000,
            month_bytes: 999,
            quota: None,
        };
        let mut laptop = client("laptop", Some(1_795_521_000));
        laptop.quota = Some(Quota {
            state: "soft".into(),
            text: "41.2GB of 50GB (82%) until 2026-12-01 UTC".into(),
            ..Quota::default()
        });
        let listed = ClientList { clients: vec![laptop, client("phone", None)] };
        let now = SystemTime::UNIX_EPOCH + Duration::from_secs(1_795_521_600);
        let expected = "\
client  created      last seen  to targets  from targets  this month
laptop  2026-09-21  10 min ago       1.2kB        45.6MB        999B
phone   2026-09-21       never       1.2kB        45.6MB        999B
laptop: 41.2GB of 50GB (82%) until 2026-12-01 UTC: beyond the soft limit
";
        assert_eq!(listed.to_text(now), expected);
        let json: serde_json::Value = serde_json::from_str(&listed.to_json().unwrap()).unwrap();
        assert_eq!(json["clients"][0]["seen_unix_s"], 1_795_521_000);
        assert_eq!(json["clients"][1].get("seen_unix_s"), None);
    }
}
