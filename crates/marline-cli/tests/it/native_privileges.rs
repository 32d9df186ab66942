//! Tests of the native carrier's privileges: CAP_NET_RAW at the start, none while running. Includes the sandbox of
//! the units in `packaging/`, as far as it works without systemd. Needs root.

use std::path::Path;

use super::support;
use super::support::native::{start_nginx, testbed};
use super::support::testbed::{Testbed, Until};
use marline_testkit::need;

const PACKAGING: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../../packaging");

/// Runs the following command as nobody, limited to these capabilities.
fn as_nobody(capabilities: &str) -> String {
    let set = if capabilities.is_empty() { "-all".into() } else { format!("-all,{capabilities}") };
    format!(
        "setpriv --reuid 65534 --regid 65534 --clear-groups --no-new-privs --inh-caps={set} \
         --ambient-caps={set} --bounding-set={set}"
    )
}

const SERVE: &str = "marline serve --listen 10.91.1.1:8000 --to 127.0.0.1:8080 \
                     --signal 10.91.2.1 --control ./run/control";

fn serve_fails(testbed: &Testbed, capabilities: &str, listen: &str) -> String {
    let nobody = as_nobody(capabilities);
    let command = format!("{nobody} marline serve --listen {listen} --to 127.0.0.1:8080");
    let output = testbed.command("server", &command, "20").output().unwrap();
    assert!(!output.status.success(), "{command} should fail");
    support::texts(&output).1
}

#[test]
fn one_capability_suffices_and_is_dropped_after_startup() {
    let _others = support::among_others();
    let dir = tempfile::tempdir().unwrap();
    let Some(mut testbed) = testbed(dir.path(), &["curl", "nginx", "setpriv"]) else { return };
    // The testbed's directory is accessible to root only.
    testbed.run("server", &format!("chmod a+rx {0} {0}/bin", dir.path().display()));
    start_nginx(&mut testbed, "", "127.0.0.1:8080", 8080);
    testbed.run("server", "mkdir run && chown nobody run");
    let command = format!("{} {SERVE}", as_nobody("+net_raw"));
    testbed.start("server", &command, Until::Says("listening on"));
    let text = testbed.run(
        "client",
        "mptcpize run curl -sS --fail -o large http://10.91.1.1:8000/large
        curl -sS --fail -o sums http://10.91.1.1:8000/sums
        sha256sum --check --ignore-missing sums",
    );
    assert!(text.contains("large: OK"), "{text}");
    assert!(testbed.counter("client", "MPTcpExtMPJoinSynAckRx") >= 1);
    let text = testbed.run(
        "server",
        "pid=$(pgrep --ns $$ --nslist net -u nobody -f '^marline serve')
        cat /proc/$pid/task/*/status | grep -E '^(Cap(Prm|Eff|Inh|Amb)|NoNewPrivs)' | sort -u",
    );
    let none = "0000000000000000";
    let expected = format!(
        "CapAmb:\t{none}\nCapEff:\t{none}\nCapInh:\t{none}\nCapPrm:\t{none}\nNoNewPrivs:\t1\n"
    );
    assert_eq!(text, expected, "every thread is without capabilities");
}

#[test]
fn a_missing_privilege_is_reported_with_its_remedy() {
    let _others = support::among_others();
    let dir = tempfile::tempdir().unwrap();
    let Some(testbed) = testbed(dir.path(), &["setpriv"]) else { return };
    testbed.run("server", &format!("chmod a+rx {0} {0}/*", dir.path().display()));
    let error = serve_fails(&testbed, "", "10.91.1.1:8000");
    for part in ["CAP_NET_RAW", "setcap cap_net_raw+ep", "AmbientCapabilities=CAP_NET_RAW"] {
        assert!(error.contains(part), "{part} not in {error}");
    }
    let error = serve_fails(&testbed, "+net_raw", "10.91.1.1:80");
    assert!(error.contains("CAP_NET_BIND_SERVICE") && error.contains(":80"), "{error}");
    let error = serve_fails(&testbed, "+net_raw", "192.0.2.1:8000");
    assert!(error.contains("no such address"), "{error}");
}

#[test]
fn files_may_carry_the_capability() {
    let _others = support::among_others();
    let dir = tempfile::tempdir().unwrap();
    let Some(mut testbed) = testbed(dir.path(), &["setpriv", "setcap"]) else { return };
    let marked = testbed.command("server", "setcap cap_net_raw+ep ../bin/marline", "10").status();
    if !marked.unwrap().success() {
        return need::skip("this file system stores no capabilities");
    }
    testbed.run(
        "server",
        &format!("chmod a+rx {0} {0}/bin; mkdir run; chown nobody run", dir.path().display()),
    );
    // Without --no-new-privs, which would disable the file's capabilities.
    let nobody = "setpriv --reuid 65534 --regid 65534 --clear-groups --inh-caps=-all";
    testbed.start("server", &format!("{nobody} {SERVE}"), Until::Says("listening on"));
}

#[test]
fn a_prepared_tun_interface_needs_no_capability() {
    let _others = support::among_others();
    let dir = tempfile::tempdir().unwrap();
    let Some(mut testbed) = testbed(dir.path(), &["curl", "nginx", "setpriv"]) else { return };
    if !Path::new("/dev/net/tun").exists() {
        return need::skip("/dev/net/tun is missing");
    }
    testbed.run("server", &format!("chmod a+rx {0} {0}/bin", dir.path().display()));
    start_nginx(&mut testbed, "", "127.0.0.1:8080", 8080);
    testbed.run(
        "server",
        "# As udev makes it: everyone may open it. What one may do with it is another matter.
        mkdir dev; mount -t tmpfs -o dev,mode=755 none dev
        mknod -m 666 dev/tun c 10 200; mount --bind dev/tun /dev/net/tun
        ip tuntap add mode tun name tun0 user nobody
        ip addr add 10.91.9.1/24 dev tun0
        ip link set tun0 up
        sysctl -qw net.ipv4.ip_forward=1
        mkdir run; chown nobody run",
    );
    let nobody = as_nobody("");
    let serve = "marline serve --carrier tun --tun tun0=10.91.9.2 --listen 10.91.9.2:80 \
                 --to 127.0.0.1:8080 --control ./run/control";
    testbed.start("server", &format!("{nobody} {serve}"), Until::Says("listening on"));
    for wrapper in ["mptcpize run", ""] {
        let text = testbed.run(
            "client",
            &format!(
                "{wrapper} curl -sS --fail -o large http://10.91.9.2/large
                curl -sS --fail -o sums http://10.91.9.2/sums
                sha256sum --check --ignore-missing sums"
            ),
        );
        assert!(text.contains("large: OK"), "{text}");
    }
    assert!(testbed.counter("client", "MPTcpExtMPCapableSYNACKRX") >= 1);
    let wrong = serve.replace("tun0", "tun7");
    let output = testbed.command("server", &format!("{nobody} {wrong}"), "20").output().unwrap();
    assert!(support::texts(&output).1.contains("ip tuntap add"), "{output:?}");
}

/// Returns the verdict on `what`, and its text.
fn verdict(testbed: &Testbed, wrapper: &str, what: &str) -> (String, String) {
    let command = format!("{wrapper} marline doctor --json");
    let output = testbed.command("server", &command, "30").output().unwrap();
    let (text, error) = support::texts(&output);
    let report: serde_json::Value = serde_json::from_str(&text).expect(&error);
    let found =
        report["findings"].as_array().unwrap().iter().find(|finding| finding["what"] == what);
    let found = found.unwrap_or_else(|| panic!("nothing on {what} in {text}"));
    let word = |key: &str| found[key].as_str().unwrap().to_owned();
    (word("verdict"), word("text"))
}

#[test]
fn the_doctor_reports_working_and_failing_carriers() {
    let _others = support::among_others();
    let dir = tempfile::tempdir().unwrap();
    let Some(testbed) = testbed(dir.path(), &["setpriv", "nft"]) else { return };
    testbed.run("server", &format!("chmod a+rx {0} {0}/bin", dir.path().display()));
    for what in ["raw sockets", "guard", "native TCP", "native MPTCP", "UDP sockets"] {
        for wrapper in [String::new(), as_nobody("+net_raw")] {
            let (verdict, text) = verdict(&testbed, &wrapper, what);
            assert_eq!(verdict, "works", "{what} {wrapper}: {text}");
        }
    }
    let (without, text) = verdict(&testbed, &as_nobody(""), "raw sockets");
    assert!(without == "fails" && text.contains("CAP_NET_RAW"), "{text}");
    testbed.run(
        "server",
        "nft add table inet t
        nft add chain inet t strict '{ type filter hook input priority 0; policy drop; }'",
    );
    assert_eq!(verdict(&testbed, "", "native TCP").0, "fails");
    let (firewall, text) = verdict(&testbed, "", "firewall");
    assert!(firewall == "note" && text.contains("t strict"), "{text}");
}

/// Returns systemd's rating of a unit, from 0 (not exposed) to 10 (fully exposed).
fn exposure(unit: &Path) -> f64 {
    let mut command = std::process::Command::new("systemd-analyze");
    let output = command.args(["security", "--offline=true"]).arg(unit).output().unwrap();
    let (text, error) = support::texts(&output);
    let line = text.lines().rev().find(|line| line.contains("Overall exposure level"));
    let line = line.unwrap_or_else(|| panic!("no judgment of {}: {error}", unit.display()));
    let number = line.split(':').nth(1).and_then(|rest| rest.split_whitespace().next());
    number.and_then(|number| number.parse().ok()).unwrap_or_else(|| panic!("{line}"))
}

#[test]
fn units_are_valid_and_expose_little() {
    let _others = support::among_others();
    let Some(_) = need::program("systemd-analyze") else { return };
    let dir = tempfile::tempdir().unwrap();
    let program = dir.path().join("marline");
    std::fs::copy(env!("CARGO_BIN_EXE_marline"), &program).unwrap();
    let mut units = 0;
    for file in std::fs::read_dir(PACKAGING).unwrap().map(|entry| entry.unwrap().path()) {
        if file.extension().is_none_or(|end| end != "service") {
            continue;
        }
        // The program is not installed here.
        let text = std::fs::read_to_string(&file).unwrap();
        let text = text.replace("=marline ", &format!("={} ", program.display()));
        let unit = dir.path().join(file.file_name().unwrap());
        std::fs::write(&unit, text).unwrap();
        let mut command = std::process::Command::new("systemd-analyze");
        let output = command.args(["verify", "--man=no"]).arg(&unit).output().unwrap();
        let (out, err) = support::texts(&output);
        let complaint = out + &err;
        let ours = unit.file_name().unwrap().to_str().unwrap();
        assert!(output.status.success() && !complaint.contains(ours), "{ours}: {complaint}");
        let level = exposure(&unit);
        eprintln!("{ours}: exposure {level}");
        // The unit for the whole machine runs as root with CAP_NET_ADMIN, has a device, and changes a kernel
        // setting.
        let is_of_machine =
            ["marline-up", "marline-lockdown"].iter().any(|name| ours.starts_with(name));
        let most = if is_of_machine { 2.6 } else { 2.0 };
        assert!(level <= most, "{ours}: exposure {level}");
        units += 1;
    }
    assert_eq!(units, 5);
    let person =
        std::fs::read_to_string(format!("{PACKAGING}/user/marline-client.service")).unwrap();
    let unit = dir.path().join("marline-client.service");
    std::fs::write(&unit, person.replace("=marline ", &format!("={} ", program.display())))
        .unwrap();
    let mut command = std::process::Command::new("systemd-analyze");
    command.args(["--user", "verify", "--man=no"]).arg(&unit).env("XDG_RUNTIME_DIR", dir.path());
    let output = command.output().unwrap();
    let (out, err) = support::texts(&output);
    let complaint = out + &err;
    assert!(output.status.success() && !complaint.contains("marline"), "user unit: {complaint}");
}
