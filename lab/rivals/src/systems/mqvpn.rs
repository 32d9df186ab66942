//! mqvpn with its defaults: all traffic of the client uses its tunnel.

use super::{Programs, Transports};
use crate::protocol::PORT;
use crate::world::{LTE, SERVER, Side, TARGET, WIFI, World};

const PORT_QUIC: u16 = 4433;

/// Starts both ends.
pub(super) fn start(world: &mut World, programs: &Programs) -> anyhow::Result<Transports> {
    let made = rcgen::generate_simple_self_signed(vec!["rivals".into()])?;
    std::fs::write(world.dir.join("mqvpn.crt"), made.cert.pem())?;
    std::fs::write(world.dir.join("mqvpn.key"), made.signing_key.serialize_pem())?;
    let mqvpn = programs.mqvpn.as_str();
    let key = world.run(Side::Server, &[mqvpn, "--genkey"])?.trim().to_owned();
    let listen = format!("0.0.0.0:{PORT_QUIC}");
    let server = [mqvpn, "--mode", "server", "--listen", &listen, "--subnet", "10.7.0.0/24"];
    let server =
        [&server[..], &["--cert", "mqvpn.crt", "--key", "mqvpn.key", "--auth-key", &key]].concat();
    world.start(Side::Server, "mqvpn-server", &server)?;
    std::thread::sleep(std::time::Duration::from_millis(500));
    let to = format!("{SERVER}:{PORT_QUIC}");
    let client = [mqvpn, "--mode", "client", "--server", &to, "--auth-key", &key, "--insecure"];
    let client = [&client[..], &["--path", WIFI.0, "--path", LTE.0]].concat();
    world.start(Side::Client, "mqvpn-client", &client)?;
    let reaches = |world: &World| {
        world.run(Side::Client, &["ping", "-c1", "-W1", "-I", "mqvpn0", TARGET]).is_ok()
    };
    world.await_true("mqvpn's tunnel", reaches)?;
    let way = format!("tcp,to={TARGET}:{PORT}");
    Ok(Transports { stream: way.clone(), datagrams: Some(way) })
}
