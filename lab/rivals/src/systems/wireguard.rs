//! WireGuard in user space, behind our duplicator.

use super::{Programs, Transports};
use crate::duplicator;
use crate::protocol::PORT;
use crate::world::{Side, TARGET, World};

/// Starts both ends.
pub(super) fn start(world: &mut World, programs: &Programs) -> anyhow::Result<Transports> {
    for side in ["server", "client"] {
        world.run(
            Side::Client,
            &["sh", "-c", &format!("wg genkey > {side}.key; wg pubkey < {side}.key > {side}.pub")],
        )?;
    }
    for (side, name, peer) in
        [(Side::Server, "server", "client"), (Side::Client, "client", "server")]
    {
        let duplicator = format!("duplicator-{name}");
        world.start(side, &duplicator, &[&programs.rivals, &duplicator])?;
        world.await_printed(&duplicator, "ready")?;
        let log = format!("wireguard-{name}");
        world.start(side, &log, &["sh", "-c", &script(side, name, peer)])?;
        world.await_printed(&log, "ready")?;
    }
    let way = format!("tcp,to={TARGET}:{PORT}");
    Ok(Transports { stream: way.clone(), datagrams: Some(way) })
}

/// Replaces the shell with wireguard-go, and configures it once it responds.
fn script(side: Side, name: &str, peer: &str) -> String {
    let (address, routes, endpoint) = match side {
        Side::Server => ("10.8.0.1/24", String::new(), String::new()),
        Side::Client => {
            let endpoint = format!("endpoint 127.0.0.1:{}", duplicator::PORT);
            ("10.8.0.2/24", format!("ip route add {TARGET}/32 dev wg0"), endpoint)
        }
    };
    let port = duplicator::PORT_WIREGUARD;
    format!(
        "mkdir -p /var/run/wireguard && mount -t tmpfs tmpfs /var/run/wireguard || exit
         (until wg show wg0 > /dev/null 2>&1; do sleep 0.05; done
          wg set wg0 listen-port {port} private-key {name}.key
          wg set wg0 peer \"$(cat {peer}.pub)\" {endpoint} allowed-ips 0.0.0.0/0
          ip address add {address} dev wg0
          ip link set wg0 up
          {routes}
          echo ready) &
         exec wireguard-go -f wg0"
    )
}
