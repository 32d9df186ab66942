//! Tests of the commands that need no network: setup, credentials, configuration, errors.

use std::os::unix::fs::PermissionsExt;
use std::path::Path;

use super::support::{run, run_err, run_ok, texts, write_private};

fn init(dir: &Path) -> String {
    run_ok(dir, &["server", "--init", "--config", "server.toml", "--listen", "127.0.0.1:7777"])
}

#[test]
fn init_prints_one_word_and_makes_private_files() {
    let dir = tempfile::tempdir().unwrap();
    let word = init(dir.path());
    assert_eq!(word.split_whitespace().count(), 1, "{word}");
    assert!(word.starts_with("marline1"));
    for file in ["server.toml", "server.key", "server.clients"] {
        let mode = std::fs::metadata(dir.path().join(file)).unwrap().permissions().mode();
        assert_eq!(mode & 0o777, 0o600, "{file}");
    }
    let again = run_err(
        dir.path(),
        &["server", "--init", "--config", "server.toml", "--listen", "127.0.0.1:7777"],
    );
    assert!(again.contains("exists") && again.contains("credential add"), "{again}");
}

#[test]
fn init_demands_a_public_name_where_it_matters() {
    let dir = tempfile::tempdir().unwrap();
    let listen = ["server", "--init", "--config", "s.toml", "--listen", "0.0.0.0:7777"];
    let error = run_err(dir.path(), &listen);
    assert!(error.contains("--public HOST:PORT"), "{error}");
    let mut named = listen.to_vec();
    named.extend_from_slice(&["--public", "a.example:7777", "--public", "192.0.2.1:7777"]);
    assert!(run_ok(dir.path(), &named).starts_with("marline1"));
}

#[test]
fn credentials_are_added_listed_and_revoked() {
    let dir = tempfile::tempdir().unwrap();
    let first = init(dir.path());
    let command = |rest: &[&str]| {
        let mut args = vec!["server", "--config", "server.toml", "credential"];
        args.extend_from_slice(rest);
        args.iter().map(ToString::to_string).collect::<Vec<_>>()
    };
    let ok = |rest: &[&str]| {
        let args = command(rest);
        run_ok(dir.path(), &args.iter().map(String::as_str).collect::<Vec<_>>())
    };
    let second = ok(&["add", "phone"]);
    assert!(second.starts_with("marline1") && second != first);
    let list = ok(&["list"]);
    assert!(list.contains("first") && list.contains("phone"), "{list}");
    assert!(!list.contains("marline1"));
    ok(&["revoke", "phone"]);
    assert!(!ok(&["list"]).contains("phone"));
    let gone = command(&["revoke", "phone"]);
    let error = run_err(dir.path(), &gone.iter().map(String::as_str).collect::<Vec<_>>());
    assert!(error.contains("phone"), "{error}");
    // The stored file does not contain the invite.
    let stored = std::fs::read_to_string(dir.path().join("server.clients")).unwrap();
    assert!(!stored.contains(&first[20..60]));
}

#[test]
fn check_config_prints_effective_settings_without_secrets() {
    let dir = tempfile::tempdir().unwrap();
    let word = init(dir.path());
    write_private(&dir.path().join("invite"), &word);
    let file =
        "invite-file = \"invite\"\npath = [\"wlan0\", \"wwan0,backup\"]\nmode = \"handover\"\n";
    std::fs::write(dir.path().join("client.toml"), file).unwrap();
    let text = run_ok(
        dir.path(),
        &["check-config", "client", "--config", "client.toml", "--mode", "redundant"],
    );
    for line in [
        "path = [\"wlan0\", \"wwan0,backup\"]",
        "mode = \"redundant\"",
        "scheduler = \"auto,budget=unlimited\"",
        "linger = \"1h\"",
        "socks5 = [\"127.0.0.1:1080\"]",
    ] {
        assert!(text.contains(line), "{line} not in {text}");
    }
    let text = run_ok(dir.path(), &["check-config", "client", "--invite", word.trim()]);
    assert!(!text.contains(&word[8..50]) && text.contains("127.0.0.1:7777"), "{text}");
    let text = run_ok(dir.path(), &["check-config", "server", "--config", "server.toml"]);
    assert!(text.contains("listen = [\"127.0.0.1:7777\"]"), "{text}");
}

#[test]
fn wrong_configuration_names_file_line_and_key() {
    let dir = tempfile::tempdir().unwrap();
    std::fs::write(dir.path().join("c.toml"), "warm = 2\nsock5 = \"x\"\n").unwrap();
    let error = run_err(dir.path(), &["check-config", "client", "--config", "c.toml"]);
    for part in ["c.toml", "line 2", "sock5"] {
        assert!(error.contains(part), "{part} not in {error}");
    }
    let error = run_err(dir.path(), &["client", "--config", "missing.toml"]);
    assert!(error.contains("missing.toml"), "{error}");
}

#[test]
fn damaged_invites_say_how() {
    let dir = tempfile::tempdir().unwrap();
    let word = init(dir.path());
    let word = word.trim();
    for (invite, says) in [
        ("hello", "not a valid invite"),
        (&word[..word.len() - 5], "cut short"),
        (&word.replace("marline1", "marline7"), "version"),
    ] {
        let output = run(dir.path(), &["client", "--invite", invite]);
        let (_, error) = texts(&output);
        assert!(!output.status.success() && error.contains(says), "{says} not in {error}");
        assert!(!error.contains(&word[12..40]), "the invite is in {error}");
    }
    // The invite is not in errors about a misplaced invite either, nor in quotations from an invalid file.
    for (file, arguments) in [
        ("", &["client", word][..]),
        ("", &["client", "--invite-file", word]),
        ("", &["client", "--path", word]),
        (&format!("invite = {word}\n"), &["client", "--config", "c.toml"]),
        (
            &format!("invite = \"{}\"\n", &word[3..]),
            &["check-config", "client", "--config", "c.toml"],
        ),
        (
            &format!("scheduler = \"{word}\"\ninvite = \"{word}\"\n"),
            &["client", "--config", "c.toml"],
        ),
    ] {
        write_private(&dir.path().join("c.toml"), file);
        let error = run_err(dir.path(), arguments);
        assert!(!error.contains(&word[12..40]) && error.contains("(hidden)"), "{error}");
    }
    let public = dir.path().join("public-invite");
    std::fs::write(&public, word).unwrap();
    std::fs::set_permissions(&public, std::fs::Permissions::from_mode(0o644)).unwrap();
    let error = run_err(dir.path(), &["client", "--invite-file", "public-invite"]);
    assert!(error.contains("chmod 600"), "{error}");
}

#[test]
fn a_taken_port_and_an_open_port_are_refused_before_anything_else() {
    let dir = tempfile::tempdir().unwrap();
    write_private(&dir.path().join("invite"), &init(dir.path()));
    let taken = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let address = taken.local_addr().unwrap().to_string();
    let error = run_err(dir.path(), &["client", "--invite-file", "invite", "--socks5", &address]);
    assert!(error.contains(&address), "{error}");
    let error =
        run_err(dir.path(), &["client", "--invite-file", "invite", "--socks5", "0.0.0.0:1080"]);
    assert!(error.contains("--share"), "{error}");
}

#[test]
fn a_server_that_is_not_set_up_says_how() {
    let dir = tempfile::tempdir().unwrap();
    let error = run_err(dir.path(), &["server", "--config", "nothing.toml"]);
    assert!(error.contains("--init"), "{error}");
}

#[test]
fn every_subcommand_is_consistent() {
    use clap::CommandFactory as _;
    marline_cli::Cli::command().debug_assert();
}

#[test]
fn completions_and_manual_pages_know_every_subcommand() {
    use clap::CommandFactory as _;
    let dir = tempfile::tempdir().unwrap();
    let command = marline_cli::Cli::command();
    let shown = command.get_subcommands().filter(|command| !command.is_hide_set());
    let names: Vec<&str> = shown.map(clap::Command::get_name).collect();
    assert!(names.len() > 15, "{names:?}");
    for shell in ["bash", "zsh", "fish", "elvish", "powershell"] {
        let script = run_ok(dir.path(), &["completions", shell]);
        for name in &names {
            assert!(script.contains(name), "{shell}: no {name}");
        }
    }
    run_ok(dir.path(), &["man", "pages/man1"]);
    for name in &names {
        let page = dir.path().join(format!("pages/man1/marline-{name}.1"));
        assert!(page.is_file(), "{}", page.display());
    }
    assert!(dir.path().join("pages/man1/marline-server-credential-add.1").is_file());
    let page = run_ok(dir.path(), &["man"]);
    assert!(page.contains(".TH marline 1"), "{page}");
    std::fs::write(dir.path().join("file"), "").unwrap();
    assert!(run_err(dir.path(), &["man", "file/man1"]).contains("file/man1"));
}

#[test]
fn a_qr_code_is_shown_only_when_asked_for_and_follows_the_invite() {
    let dir = tempfile::tempdir().unwrap();
    let plain = init(dir.path());
    assert!(!plain.contains('█'), "{plain}");
    let add = |rest: &[&str]| {
        let start = ["server", "--config", "server.toml", "credential", "add"];
        run_ok(dir.path(), &[&start, rest].concat())
    };
    let both = add(&["phone", "--qr"]);
    let mut lines = both.lines();
    assert!(lines.next().is_some_and(|word| word.starts_with("marline1")), "{both}");
    assert!(lines.clone().count() > 15 && lines.all(|line| line.ends_with("\x1b[0m")), "{both}");
    // With a file, the word is only in the file.
    let code = add(&["tablet", "--qr", "--invite-out", "tablet"]);
    assert!(code.contains('█') && !code.contains("marline1"), "{code}");
    let word = std::fs::read_to_string(dir.path().join("tablet")).unwrap();
    assert!(word.starts_with("marline1"), "{word}");
    assert!(run_err(dir.path(), &["server", "--qr"]).contains("--init"));
}
