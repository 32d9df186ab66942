use marline_proxy::secret::Secret;

use super::*;

fn invite(server: &str) -> Invite {
    let token = Secret::random().expect("random bytes");
    Invite::new(vec![server.parse().expect("a server")], [7; 32], token).expect("an invite")
}

fn uid() -> u32 {
    rustix::process::geteuid().as_raw()
}

/// Places of a user, with a home and a machine's directory below `dir`.
fn of_user(dir: &Path) -> InvitePlaces {
    InvitePlaces::for_user(uid(), Some(&dir.join("config")), &dir.join("machine"))
}

fn write(path: &Path, text: &str, mode: u32) {
    fs::create_dir_all(path.parent().expect("a directory")).expect("a directory");
    fs::write(path, text).expect("a file");
    fs::set_permissions(path, Permissions::from_mode(mode)).expect("a mode");
}

#[test]
fn a_stored_invite_is_private_and_found() {
    let dir = tempfile::tempdir().unwrap();
    let (places, first) = (of_user(dir.path()), invite("a.example:1"));
    assert_eq!(places.store(&first, false).unwrap(), StoreOutcome::New);
    let path = dir.path().join("config/marline/invite");
    let mode = |path: &Path| fs::metadata(path).unwrap().mode() & 0o777;
    assert_eq!((mode(&path), mode(path.parent().unwrap())), (0o600, 0o700));
    assert_eq!(places.find().unwrap(), FoundInvite { invite: first.clone(), path });
    assert_eq!(places.store(&first, false).unwrap(), StoreOutcome::Unchanged);
}

#[test]
fn another_invite_is_replaced_only_on_request_and_no_message_has_a_secret() {
    let dir = tempfile::tempdir().unwrap();
    let places = of_user(dir.path());
    let (first, second) = (invite("a.example:1"), invite("b.example:2"));
    places.store(&first, false).unwrap();
    let error = places.store(&second, false).unwrap_err().to_string();
    assert!(error.contains("a.example:1") && error.contains("--replace"), "{error}");
    assert!(!error.contains("marline1"), "{error}");
    assert_eq!(places.find().unwrap().invite, first);
    assert_eq!(places.store(&second, true).unwrap(), StoreOutcome::Replaced);
    assert_eq!(places.find().unwrap().invite, second);
}

#[test]
fn a_users_own_invite_comes_before_the_machines() {
    let dir = tempfile::tempdir().unwrap();
    let places = of_user(dir.path());
    let (own, machines) = (invite("own.example:1"), invite("machine.example:2"));
    // The machine's invite may be readable for a group.
    write(&dir.path().join("machine/invite"), &machines.to_word(), 0o640);
    assert_eq!(places.find().unwrap().invite, machines);
    places.store(&own, false).unwrap();
    assert_eq!(places.find().unwrap().invite, own);
}

#[test]
fn root_prefers_the_machines_invite_and_else_takes_the_callers() {
    let dir = tempfile::tempdir().unwrap();
    let caller = SudoCaller { uid: uid(), gid: 0, home: dir.path().join("home") };
    let places = InvitePlaces::for_root(&dir.path().join("machine"), Some(&caller));
    let (own, machines) = (invite("own.example:1"), invite("machine.example:2"));
    let callers = dir.path().join("home/.config/marline/invite");
    write(&callers, &own.to_word(), 0o600);
    assert_eq!(places.find().unwrap(), FoundInvite { invite: own, path: callers.clone() });
    // A file of another user is not the caller's, regardless of its name.
    let stranger = SudoCaller { uid: uid() + 1, ..caller.clone() };
    let theirs = InvitePlaces::for_root(&dir.path().join("machine"), Some(&stranger));
    let error = theirs.find().unwrap_err().to_string();
    assert!(error.contains("belongs to user"), "{error}");
    assert_eq!(places.store(&machines, false).unwrap(), StoreOutcome::New);
    assert_eq!(places.find().unwrap().invite, machines);
}

#[test]
fn an_invite_that_cannot_be_used_is_an_error_and_not_passed_over() {
    let dir = tempfile::tempdir().unwrap();
    let places = of_user(dir.path());
    let own = dir.path().join("config/marline/invite");
    let machines = invite("machine.example:2").to_word();
    write(&dir.path().join("machine/invite"), &machines, 0o600);
    let good = invite("own.example:1").to_word();
    for (text, mode, says) in [
        (&*good, 0o644, "others can read it"),
        ("marline1aa", 0o600, "cut short"),
        ("", 0o600, "invite"),
    ] {
        write(&own, text, mode);
        let error = format!("{:#}", places.find().unwrap_err());
        assert!(error.contains(says) && error.contains("config/marline/invite"), "{error}");
    }
    fs::remove_file(&own).unwrap();
    let fifo = std::process::Command::new("mkfifo").args(["-m", "600"]).arg(&own).status();
    if fifo.is_ok_and(|status| status.success()) {
        let error = places.find().unwrap_err().to_string();
        assert!(error.contains("not a regular file"), "{error}");
    }
}

#[test]
fn a_missing_invite_error_names_the_command_to_type() {
    let dir = tempfile::tempdir().unwrap();
    let error = of_user(dir.path()).find().unwrap_err().to_string();
    assert!(error.contains("marline join") && error.contains("config/marline/invite"), "{error}");
    let homeless = InvitePlaces::for_user(uid(), None, &dir.path().join("machine"));
    let error = homeless.store(&invite("a.example:1"), false).unwrap_err().to_string();
    assert!(error.contains("HOME"), "{error}");
}

/// Runs `work` on a thread without the capabilities that override file permissions.
fn without_override(work: impl FnOnce() + Send) {
    use rustix::thread::{CapabilitySet, capabilities, set_capabilities};
    std::thread::scope(|scope| {
        let ended = scope.spawn(|| {
            let mut sets = capabilities(None).unwrap();
            let rights = CapabilitySet::DAC_OVERRIDE | CapabilitySet::DAC_READ_SEARCH;
            for set in [&mut sets.effective, &mut sets.permitted, &mut sets.inheritable] {
                set.remove(rights);
            }
            set_capabilities(None, sets).unwrap();
            work();
        });
        ended.join().unwrap();
    });
}

#[test]
fn an_invite_that_is_out_of_reach_later_stays_in_use() {
    let dir = tempfile::tempdir().unwrap();
    let places = of_user(dir.path());
    let first = invite("a.example:1");
    places.store(&first, false).unwrap();
    let last = LastInvite::default();
    let read = || last.clone().read_or_reuse(|| places.find());
    assert_eq!(read().unwrap(), first);
    let path = dir.path().join("config/marline/invite");
    fs::set_permissions(&path, Permissions::from_mode(0o000)).unwrap();
    without_override(|| {
        assert!(is_denied(&places.find().unwrap_err()), "the test's premise");
        assert_eq!(read().unwrap(), first);
        assert!(LastInvite::default().read_or_reuse(|| places.find()).is_err());
    });
    // Any other error is reported.
    fs::remove_file(&path).unwrap();
    assert!(read().is_err());
    let second = invite("b.example:2");
    places.store(&second, false).unwrap();
    assert_eq!(read().unwrap(), second);
}
