//! Test of reloading the configuration while the machine's traffic goes through the tunnel.

use marline_lab::scenario::Side;
use rustix::process::Signal;

use super::endings::signal;
use super::{TARGET_V4, World, hear, page, support};

#[test]
fn a_signal_and_the_reload_command_reload_the_configuration() {
    let _others = support::among_others();
    let Some(mut world) = World::set("up-reload", &[]) else { return };
    let file = world.dir().join("up.toml");
    let write = |text: &str| std::fs::write(&file, text).expect("a file");
    write("path = ['wifi']\n");
    let (lines, pid) = world.start("--config up.toml --control up.sock");
    hear(&lines, "goes through the server");
    let status = |world: &World| world.run("marline status --control up.sock");
    assert!(!status(&world).contains("lte"));

    // Another path, which then carries everything alone, and metrics.
    let both = "path = ['wifi', 'lte']\nmetrics = '127.0.0.1:9102'\n";
    write(both);
    signal(pid, Signal::HUP);
    hear(&lines, "SIGHUP: configuration reloaded; changed: metrics, path");
    assert!(status(&world).contains("lte"));
    assert!(world.run("curl -sS --fail http://127.0.0.1:9102/metrics").contains("role=\"client\""));
    world.hosts.net.command("wifi", "down").expect("WiFi dies");
    assert!(world.fetches(&page(TARGET_V4, 1_000)));
    world.hosts.net.command("wifi", "up").expect("WiFi is back");

    // The routing does not change, and this is reported.
    write(&format!("{both}[up]\nbypass = ['192.0.2.0/24']\n"));
    let said = world.run("marline reload --control up.sock");
    assert!(said.contains("needs a restart: up (running: nothing, configured: "), "{said}");
    assert!(!world.run("ip rule show").contains("192.0.2.0/24"));
    // An error changes nothing at all.
    for (wrong, says) in [
        ("path = ['wifi']\nmode = 'psychic'\n", "psychic"),
        ("path = ['wifi']\n[up]\nonly = ['192.0.2.0/24']\nblock = ['a.example']\n", "a.example"),
        ("path = ['wifi']\nmetrics = '192.0.2.1:9102'\n", "cannot serve metrics"),
    ] {
        write(wrong);
        let output = world.output("marline reload --control up.sock");
        let (_, err) = support::texts(&output);
        assert!(!output.status.success() && err.contains(says), "{err}");
        assert!(status(&world).contains("lte"), "{wrong}");
    }
    assert!(world.fetches(&page(TARGET_V4, 1_000)));
    assert_eq!(world.run("marline down"), "stopped");
    world.hosts.shell(Side::Client, "! ip link show marline0 2> /dev/null");
}
