//! Diagnosis of a system that refuses namespaces or interfaces: finds the setting responsible.

use std::io;

/// Step that the system refused.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub(super) enum Step {
    /// Creating the namespaces.
    Namespaces,
    /// Mapping the user's identity in them.
    Identity,
    /// Creating the interface.
    Interface,
    /// Setting up the interface, or the programs' view of the file system.
    Setup,
}

/// Describes the error and what would help. `read` returns the text of a file of /proc if it exists.
pub(super) fn explain_failure(
    step: Step,
    error: &io::Error,
    read: impl Fn(&str) -> Option<String>,
) -> String {
    let doing = match step {
        Step::Namespaces => "cannot create user, network and mount namespaces",
        Step::Identity => "cannot map the user into a user namespace",
        Step::Interface => "cannot create a TUN interface",
        Step::Setup => "cannot set up the namespace",
    };
    let is = |path: &str, value: &str| read(path).is_some_and(|text| text.trim() == value);
    let mut help = Vec::new();
    if is("/proc/sys/kernel/unprivileged_userns_clone", "0") {
        help.push(
            "only root may create user namespaces on this system: sudo sysctl kernel.unprivileged_userns_clone=1",
        );
    }
    if is("/proc/sys/user/max_user_namespaces", "0") {
        help.push("user namespaces are disabled on this system: sudo sysctl user.max_user_namespaces=10000");
    }
    if is("/proc/sys/user/max_net_namespaces", "0") {
        help.push("network namespaces are disabled on this system: sudo sysctl user.max_net_namespaces=10000");
    }
    if is("/proc/sys/kernel/apparmor_restrict_unprivileged_userns", "1") {
        help.push(
            "AppArmor allows them only to programs with a profile that has `userns`: give marline one \
             (docs/operate/run.md has it), or sudo sysctl kernel.apparmor_restrict_unprivileged_userns=0",
        );
    }
    let denied = matches!(error.raw_os_error(), Some(libc::EPERM | libc::EACCES));
    match (step, error.raw_os_error()) {
        (Step::Interface, Some(libc::ENOENT | libc::ENODEV | libc::ENXIO)) => {
            help = vec![
                "/dev/net/tun is missing: sudo modprobe tun, or give it to the container (--device /dev/net/tun)",
            ];
        }
        (Step::Interface, Some(libc::EACCES)) => {
            help = vec![
                "this user may not open /dev/net/tun (creating an interface needs another permission, so \
                 opening it is harmless): sudo chmod 0666 /dev/net/tun",
            ];
        }
        (Step::Namespaces, Some(libc::ENOSPC)) if help.is_empty() => {
            help.push(
                "the limit user.max_user_namespaces or user.max_net_namespaces has been reached",
            );
        }
        _ => {}
    }
    if help.is_empty() && denied {
        help.push(
            "a container or a sandbox may forbid it (its seccomp profile, SELinux): run marline outside, or as \
             root with CAP_SYS_ADMIN and CAP_NET_ADMIN",
        );
    }
    let mut text = format!("{doing}: {error}");
    for word in help {
        text.push_str("\n  ");
        text.push_str(word);
    }
    text
}

/// Reads a file of /proc.
pub(super) fn read(path: &str) -> Option<String> {
    std::fs::read_to_string(path).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn said(step: Step, errno: i32, files: &[(&str, &str)]) -> String {
        let error = io::Error::from_raw_os_error(errno);
        explain_failure(step, &error, |path| {
            files.iter().find(|(known, _)| *known == path).map(|(_, text)| format!("{text}\n"))
        })
    }

    #[test]
    fn the_forbidding_setting_is_named() {
        for (path, value, word) in [
            (
                "/proc/sys/kernel/unprivileged_userns_clone",
                "0",
                "kernel.unprivileged_userns_clone=1",
            ),
            ("/proc/sys/user/max_user_namespaces", "0", "user.max_user_namespaces="),
            (
                "/proc/sys/kernel/apparmor_restrict_unprivileged_userns",
                "1",
                "restrict_unprivileged_userns=0",
            ),
        ] {
            let text = said(Step::Namespaces, libc::EPERM, &[(path, value)]);
            assert!(text.contains(word), "{word} not in {text}");
            let text = said(Step::Namespaces, libc::EPERM, &[]);
            assert!(!text.contains(word) && text.contains("container"), "{text}");
        }
    }

    #[test]
    fn the_diagnosis_names_a_missing_or_closed_tun_device() {
        assert!(said(Step::Interface, libc::ENOENT, &[]).contains("modprobe tun"));
        assert!(said(Step::Interface, libc::EACCES, &[]).contains("chmod 0666"));
        // AppArmor lets a process create a user namespace, but then denies it every capability there.
        let switch = [("/proc/sys/kernel/apparmor_restrict_unprivileged_userns", "1")];
        assert!(said(Step::Interface, libc::EPERM, &switch).contains("AppArmor"));
    }
}
