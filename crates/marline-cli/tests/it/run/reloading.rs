//! Test of reloading the configuration while a program runs in the namespace.

use std::process::Stdio;
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process};

use super::{PATIENCE, Side, TARGET_V4, World, support, targets};

#[test]
fn a_signal_and_the_reload_command_reload_the_configuration() {
    let _others = support::among_others();
    let Some(world) = World::set("run-reload", &["curl"]) else { return };
    let file = world.dir().join("run.toml");
    let write = |text: &str| std::fs::write(&file, text).expect("a file");
    write("path = ['wifi']\nsocks5 = ['127.0.0.1:1080']\n");
    let options =
        format!("--config run.toml --invite-file invite --control run.sock --dns {TARGET_V4}");
    let inner = format!(
        "touch ready; while [ ! -e go ]; do sleep 0.05; done; \
         curl -sS --noproxy '' --fail http://{TARGET_V4}:{}/4321 | wc -c",
        targets::HTTP
    );
    let mut command = world.command_with(&options, "exec $run bash -c \"$inner\"");
    command.env("inner", inner).stdout(Stdio::piped()).stderr(Stdio::piped());
    let child = world.hosts.net.spawn(Side::Client, &mut command).expect("spawn");
    let begun = Instant::now();
    let wait_for = |what: &str, holds: &dyn Fn() -> bool| {
        while !holds() {
            assert!(begun.elapsed() < PATIENCE, "{what}");
            std::thread::sleep(Duration::from_millis(20));
        }
    };
    wait_for("the program does not begin", &|| world.dir().join("ready").exists());
    let status = || world.run("marline status --control run.sock");
    assert!(!status().contains("lte"));

    // A signal to the half that carries the traffic.
    let both = "path = ['wifi', 'lte']\ndrain = '3s'\n";
    write(both);
    let carrier = world.carriers().pop().expect("a carrier");
    let pid = carrier.file_name().and_then(|name| name.to_str()?.parse().ok());
    kill_process(pid.and_then(Pid::from_raw).expect("a number"), Signal::HUP).expect("a signal");
    wait_for("no second path after SIGHUP", &|| status().contains("lte"));

    // Settings that cannot change are named, and an error changes nothing.
    write(&format!("{both}max-connections = 7\ncarrier = 'udp'\nsocks5 = ['127.0.0.1:1081']\n"));
    let said = world.run("marline reload --control run.sock");
    for setting in ["max-connections (running: 16384, configured: 7)", "carrier (running: "] {
        assert!(said.contains(&format!("needs a restart: {setting}")), "{said}");
    }
    write("mode = 'psychic'\n");
    let output = world.output("marline reload --control run.sock");
    let (_, err) = support::texts(&output);
    assert!(!output.status.success() && err.contains("psychic"), "{err}");
    assert!(status().contains("lte"));

    // The new path works.
    world.hosts.net.command("wifi", "down").expect("WiFi dies");
    std::fs::write(world.dir().join("go"), "").expect("a file");
    let output = child.wait_with_output().expect("an end");
    let (out, err) = support::texts(&output);
    assert_eq!((out.trim(), output.status.code()), ("4321", Some(0)), "{err}");
    world.wait_for_nothing();
}
