//! Shim programs placed before the system's in a script's `PATH`: settings that a script makes with them are meant for
//! the stack under test.
//!
//! `ip mptcp` and `sysctl` write the files that the adapter mirrors, `nstat` and `ss` read the files that the
//! adapter writes, `tc` records whether the queue paces, and `ethtool` does nothing (no packet passes a device).
//! Everything else is passed to the system's program.

use std::fs;
use std::io;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

/// `ip`: handles only the object `mptcp` and `tcp_metrics flush`. Ids count from 1 in the order of addition, as in the
/// kernel.
const IP: &str = r#"#!/bin/sh
shims=$(dirname "$0")
system=$(PATH=$(printf %s "$PATH" | sed "s|^$shims:||") command -v ip)
case "$1" in -4|-6) [ "$2" = mptcp ] && shift ;; esac
if [ "$1 $2" = "tcp_metrics flush" ]; then printf x >> "$MARLINE_STATE/flushes"; exit 0; fi
[ "$1" = mptcp ] || exec "$system" "$@"
endpoints=$MARLINE_STATE/endpoints
limits=$MARLINE_STATE/limits
object=$2
verb=$3
shift; shift; shift
case "$object $verb" in
"endpoint flush") : > "$endpoints" ;;
"endpoint add")
    address=$1; shift; flags= id=
    while [ $# -gt 0 ]; do
        case "$1" in
        id) id=$2; shift ;;
        dev|port) shift ;;
        *) flags="$flags $1" ;;
        esac
        shift
    done
    if [ -z "$id" ]; then
        id=1
        while grep -q " $id\( \|\$\)" "$endpoints" 2>/dev/null; do id=$((id + 1)); done
    fi
    echo "$address $id$flags" >> "$endpoints" ;;
"endpoint delete"|"endpoint del")
    [ "$1" = id ] && shift
    grep -v "^[^ ]* $1\( \|\$\)" "$endpoints" > "$endpoints.new"
    mv "$endpoints.new" "$endpoints" ;;
"endpoint show") cat "$endpoints" 2>/dev/null ;;
"limits set")
    accepted=0 subflows=2
    while [ $# -gt 1 ]; do
        case "$1" in
        add_addr_accepted) accepted=$2 ;;
        subflow*) subflows=$2 ;;
        esac
        shift; shift
    done
    echo "$subflows $accepted" > "$limits" ;;
"limits show") cat "$limits" 2>/dev/null ;;
esac
exit 0
"#;

/// `sysctl`: the congestion controls permitted in a namespace depend on the machine, but ours do not.
const SYSCTL: &str = r#"#!/bin/sh
shims=$(dirname "$0")
system=$(PATH=$(printf %s "$PATH" | sed "s|^$shims:||"):/sbin:/usr/sbin command -v sysctl)
case "$*" in
*net.ipv4.tcp_congestion_control=*)
    for word in "$@"; do
        case "$word" in
        net.ipv4.tcp_congestion_control=*) echo "${word#*=}" > "$MARLINE_STATE/congestion" ;;
        -*) ;;
        *) "$system" -q "$word" || exit $? ;;
        esac
    done
    exit 0 ;;
esac
exec "$system" "$@"
"#;

/// `nstat`: the adapter counts from the script's start, so no history is needed.
const NSTAT: &str = "#!/bin/sh
case \"$*\" in *j*) ;; *) exit 0 ;; esac
cat \"$MARLINE_STATE/counters.json\" 2>/dev/null || echo '{\"kernel\":{}}'
";

/// `ss`: only Multipath TCP sockets are requested (`-M`), which are ours.
const SS: &str = "#!/bin/sh
shims=$(dirname \"$0\")
system=$(PATH=$(printf %s \"$PATH\" | sed \"s|^$shims:||\") command -v ss)
case \"$*\" in *M*) cat \"$MARLINE_STATE/sockets\" 2>/dev/null; exit 0 ;; esac
exec \"$system\" \"$@\"
";

/// `tc`: only one property of the device's queue matters, which is whether `fq` paces sockets on request.
const TC: &str = r#"#!/bin/sh
case "$*" in
*"root fq"*) : > "$MARLINE_STATE/paced" ;;
*"root "*) rm -f "$MARLINE_STATE/paced" ;;
esac
exit 0
"#;

const NO_OPERATION_SHIM: &str = "#!/bin/sh\nexit 0\n";

/// A temporary directory, which is removed when this value is dropped.
#[derive(Debug)]
pub(crate) struct ScratchDir {
    root: PathBuf,
}

impl ScratchDir {
    /// Creates the directory, with the programs in it.
    pub(crate) fn create() -> io::Result<Self> {
        let root = std::env::temp_dir().join(format!("marline-packetdrill-{}", std::process::id()));
        let scratch = ScratchDir { root };
        fs::create_dir_all(scratch.programs())?;
        for (name, text) in [
            ("ip", IP),
            ("sysctl", SYSCTL),
            ("nstat", NSTAT),
            ("ss", SS),
            ("tc", TC),
            ("ethtool", NO_OPERATION_SHIM),
        ] {
            let path = scratch.programs().join(name);
            fs::write(&path, text)?;
            fs::set_permissions(&path, fs::Permissions::from_mode(0o755))?;
        }
        Ok(scratch)
    }

    /// Path of the programs.
    pub(crate) fn programs(&self) -> PathBuf {
        self.root.join("programs")
    }

    /// An empty directory for the state of one script, and the file for its output.
    pub(crate) fn for_script(&self, name: &str) -> io::Result<(PathBuf, PathBuf)> {
        let base = self.root.join(name.replace('/', "-"));
        let state = base.join("state");
        fs::create_dir_all(&state)?;
        fs::write(state.join("endpoints"), "")?;
        Ok((state, base.join("log")))
    }
}

impl Drop for ScratchDir {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(Path::new(&self.root));
    }
}
