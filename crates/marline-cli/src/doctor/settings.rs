//! Check of the system settings that affect Marline.

use std::path::Path;
use std::process::Command;

use serde_json::Value;

use super::Finding;

/// Size of a receive buffer that holds a burst while Marline's thread is busy, in bytes.
const RECOMMENDED_BUFFER: u64 = 4 << 20;
/// Bit of CAP_NET_ADMIN.
const NET_ADMIN: u32 = 12;
/// Bit of CAP_SYS_ADMIN.
const SYS_ADMIN: u32 = 21;

pub(super) fn tun() -> Finding {
    const WHAT: &str = "TUN";
    let opened = std::fs::OpenOptions::new().read(true).write(true).open("/dev/net/tun");
    match opened {
        Ok(_) => Finding::passed(WHAT, "--carrier tun may use interfaces that belong to this user"),
        Err(error) => {
            Finding::note(WHAT, format!("--carrier tun cannot open /dev/net/tun: {error}"))
        }
    }
}

pub(super) fn examine() -> Vec<Finding> {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let admin = has(&status, NET_ADMIN);
    let mut findings = vec![buffers(setting("net/core/rmem_max"), admin), check_exact_guard(admin)];
    findings.extend(reverse_path(setting("net/ipv4/conf/all/rp_filter")));
    findings.push(firewall());
    let ip = Command::new("ip").arg("-V").output().is_ok();
    findings.push(lab(admin && has(&status, SYS_ADMIN), ip));
    findings
}

fn setting(name: &str) -> Option<u64> {
    std::fs::read_to_string(Path::new("/proc/sys").join(name)).ok()?.trim().parse().ok()
}

/// Returns true if `/proc/PID/status` lists the capability as effective.
fn has(status: &str, bit: u32) -> bool {
    let set = status.lines().find_map(|line| line.strip_prefix("CapEff:"));
    set.and_then(|set| u64::from_str_radix(set.trim(), 16).ok())
        .is_some_and(|set| set >> bit & 1 == 1)
}

fn buffers(rmem_max: Option<u64>, admin: bool) -> Finding {
    const WHAT: &str = "buffers";
    match rmem_max {
        _ if admin => Finding::passed(WHAT, "may exceed net.core.rmem_max (CAP_NET_ADMIN)"),
        Some(bytes) if bytes >= RECOMMENDED_BUFFER => {
            Finding::passed(WHAT, format!("net.core.rmem_max is {bytes}"))
        }
        Some(bytes) => Finding::note(
            WHAT,
            format!(
                "net.core.rmem_max is {bytes}: native TCP loses bursts above about 100 Mbit/s \
                 (sysctl -w net.core.rmem_max=8388608 net.core.wmem_max=8388608)"
            ),
        ),
        None => Finding::note(WHAT, "cannot read net.core.rmem_max"),
    }
}

fn check_exact_guard(admin: bool) -> Finding {
    const WHAT: &str = "guard filter";
    match admin {
        true => Finding::passed(WHAT, "exact (CAP_NET_ADMIN)"),
        false => Finding::passed(
            WHAT,
            "by TTL (no CAP_NET_ADMIN): a neighbor that sends with TTL 255 may see resets",
        ),
    }
}

/// Checks the requirements of `marline-lab` and `marline-lab link --between`.
fn lab(may: bool, ip: bool) -> Finding {
    const WHAT: &str = "lab";
    let device = Path::new("/dev/net/tun").exists();
    let needed = [
        (may, "root (CAP_NET_ADMIN and CAP_SYS_ADMIN)"),
        (ip, "the program `ip` (iproute2)"),
        (device, "/dev/net/tun"),
    ];
    let missing: Vec<&str> =
        needed.iter().filter(|(there, _)| !there).map(|(_, what)| *what).collect();
    match missing.is_empty() {
        true => Finding::passed(WHAT, "can create namespaces and links between them"),
        false => Finding::note(WHAT, format!("namespaces need {}", missing.join(", "))),
    }
}

fn reverse_path(rp_filter: Option<u64>) -> Option<Finding> {
    (rp_filter == Some(1)).then(|| {
        Finding::note(
            "rp_filter",
            "net.ipv4.conf.all.rp_filter is 1: the kernel drops packets that arrive on an \
             interface other than that of the return route (set 2 or 0 on machines with two \
            networks)",
        )
    })
}

/// Checks for input chains that drop by default. The user has to determine which ports they let through.
fn firewall() -> Finding {
    const WHAT: &str = "firewall";
    let listed = Command::new("nft").args(["--json", "list", "chains"]).output();
    let chains = match listed {
        Ok(output) if output.status.success() => output.stdout,
        Ok(_) => {
            return Finding::note(WHAT, "firewall rules were not checked: listing them needs root");
        }
        Err(_) => {
            return Finding::note(WHAT, "firewall rules were not checked: nft is not installed");
        }
    };
    match serde_json::from_slice::<Value>(&chains) {
        Ok(listing) => judge_input_rules(WHAT, &find_dropping_chains(&listing)),
        Err(error) => Finding::note(WHAT, format!("cannot parse the output of nft: {error}")),
    }
}

fn judge_input_rules(what: &'static str, dropping: &[String]) -> Finding {
    if dropping.is_empty() {
        return Finding::passed(what, "no nftables chain drops input by default");
    }
    Finding::note(
        what,
        format!(
            "input is dropped by default ({}): accept Marline's ports there, as raw sockets do not see dropped \
             packets (docs/operate/deploy.md section 6)",
            dropping.join(", ")
        ),
    )
}

/// Returns the chains of the input or prerouting hook that drop by default.
fn find_dropping_chains(listing: &Value) -> Vec<String> {
    let word = |chain: &Value, key: &str| chain[key].as_str().unwrap_or_default().to_owned();
    let entries = listing["nftables"].as_array().map_or(&[][..], Vec::as_slice);
    let chains = entries.iter().filter_map(|entry| entry.get("chain"));
    chains
        .filter(|chain| {
            let hook = word(chain, "hook");
            word(chain, "policy") == "drop" && (hook == "input" || hook == "prerouting")
        })
        .map(|chain| format!("{} {}", word(chain, "table"), word(chain, "name")))
        .collect()
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::doctor::FindingStatus;

    #[test]
    fn missing_lab_requirements_are_named() {
        let ip_and_rights = lab(false, false);
        assert_eq!(ip_and_rights.status, FindingStatus::Note);
        assert!(ip_and_rights.text.contains("CAP_SYS_ADMIN"), "{ip_and_rights:?}");
        assert!(ip_and_rights.text.contains("`ip`"), "{ip_and_rights:?}");
    }

    #[test]
    fn chains_that_drop_input_are_named() {
        let chain = |name: &str, hook: &str, policy: &str| {
            json!({"chain": {"family": "inet", "table": "t", "name": name, "hook": hook,
                             "policy": policy}})
        };
        let listing = json!({"nftables": [
            {"metainfo": {"version": "1.0.6"}},
            chain("in", "input", "drop"),
            chain("out", "output", "drop"),
            chain("open", "input", "accept"),
            {"chain": {"family": "inet", "table": "t", "name": "helper"}},
        ]});
        assert_eq!(find_dropping_chains(&listing), ["t in"]);
        assert_eq!(
            judge_input_rules("firewall", &find_dropping_chains(&listing)).status,
            FindingStatus::Note
        );
        assert_eq!(
            judge_input_rules("firewall", &find_dropping_chains(&json!({}))).status,
            FindingStatus::Works
        );
    }

    #[test]
    fn small_buffers_and_strict_filters_are_noted() {
        assert_eq!(buffers(Some(212_992), true).status, FindingStatus::Works);
        let small = buffers(Some(212_992), false);
        assert!(small.status == FindingStatus::Note && small.text.contains("rmem_max=8388608"));
        assert_eq!(buffers(Some(8 << 20), false).status, FindingStatus::Works);
        assert!(reverse_path(Some(1)).is_some_and(|f| f.text.contains("rp_filter")));
        assert_eq!(reverse_path(Some(2)), None);
    }

    #[test]
    fn capabilities_are_read_from_the_status() {
        let status = |set: &str| format!("Name:\tx\nCapPrm:\t0000000000003000\nCapEff:\t{set}\n");
        assert!(has(&status("0000000000003000"), NET_ADMIN));
        assert!(!has(&status("0000000000002000"), NET_ADMIN));
        assert!(!has("", NET_ADMIN));
    }
}
