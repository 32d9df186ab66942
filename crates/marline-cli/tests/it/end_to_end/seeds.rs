//! The client's commands of docs/research/README.md, word for word, with loopback addresses for the interfaces.

use super::*;

const PAGE: &str = include_str!("../../../../../docs/research/README.md");
/// Interfaces of the page, and the addresses that stand for them here.
const PATHS: [(&str, &str); 2] = [("wlan0", "127.0.0.1"), ("wwan0", "127.0.0.2")];

/// Text between backticks that begins with this command.
fn commands(page: &'static str, begin: &str) -> Vec<&'static str> {
    page.split('`').skip(1).step_by(2).filter(|text| text.starts_with(begin)).collect()
}

#[test]
fn every_seed_system_carries_a_download_by_the_words_of_the_page() {
    let _others = support::among_others();
    let Some(_) = need::program("curl") else { return };
    let dir = tempfile::tempdir().unwrap();
    let server = start_server(dir.path(), &["--allow", "127.0.0.0/8"]);
    let target = http_target();
    let commands = commands(PAGE, "marline client ");
    assert_eq!(commands.len(), 5, "{commands:?}");
    for command in commands {
        let address = |word: &str| {
            let (name, rest) = word.split_once(',').map_or((word, None), |(n, r)| (n, Some(r)));
            let path = PATHS.iter().find(|path| path.0 == name)?;
            let rest = rest.map_or_else(String::new, |rest| format!(",{rest}"));
            Some(format!("{}={}{rest}", path.1, server.address))
        };
        let words = command.split_whitespace().skip(2);
        let flags: Vec<String> =
            words.map(|word| address(word).unwrap_or_else(|| word.to_owned())).collect();
        let flags: Vec<&str> = flags.iter().map(String::as_str).collect();
        let (_client, socks) = start_client(dir.path(), &server.invite_file, &flags);
        let url = format!("http://localhost:{}/300000", target.port());
        let output = curl(socks, 30).arg(&url).output().unwrap();
        assert!(output.status.success(), "{command}: {}", texts(&output).1);
        let mut expected = vec![0; 300_000];
        pattern(0, &mut expected);
        assert!(output.stdout == expected, "{command}: wrong bytes");
    }
}
