//! The user who started this process with `sudo`.

use std::path::PathBuf;

/// A user, as the password file describes it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct SudoCaller {
    pub(crate) uid: u32,
    pub(crate) gid: u32,
    pub(crate) home: PathBuf,
}

impl SudoCaller {
    /// Finds the caller. Returns `None` if this process does not run as root, if it was not started with `sudo`, or if
    /// the password file does not contain the user.
    pub(crate) fn find() -> Option<SudoCaller> {
        let uid = std::env::var("SUDO_UID").ok()?.parse().ok().filter(|uid| *uid != 0)?;
        if !rustix::process::geteuid().is_root() {
            return None;
        }
        SudoCaller::find_in_file(&std::fs::read_to_string("/etc/passwd").ok()?, uid)
    }

    fn find_in_file(passwd: &str, uid: u32) -> Option<SudoCaller> {
        passwd.lines().find_map(|line| {
            let fields: Vec<&str> = line.split(':').collect();
            let [_, _, number, gid, _, home, _] = fields[..] else { return None };
            let gid = gid.parse().ok()?;
            (number.parse() == Ok(uid)).then(|| SudoCaller { uid, gid, home: home.into() })
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_caller_has_the_home_and_group_of_the_password_file() {
        let passwd =
            "root:x:0:0:root:/root:/bin/bash\nbroken:x\nme:x:1000:1001:Me,,,:/srv/me:/bin/sh\n";
        let me = SudoCaller::find_in_file(passwd, 1_000).unwrap();
        assert_eq!((me.uid, me.gid, me.home), (1_000, 1_001, PathBuf::from("/srv/me")));
        assert!(SudoCaller::find_in_file(passwd, 1_001).is_none());
    }
}
