use super::*;

const WIFI: &str = "[[path]]\nname = 'wifi'\nlink = 'rate=8M,delay=10ms,queue=80ms'\n\
                    client = ['10.0.1.2/24']\nserver = ['10.0.1.1/24']\n";

fn refused(text: &str) -> String {
    format!("{:#}", Scenario::from_toml(text).expect_err("wrong"))
}

#[test]
fn a_path_is_enough() {
    let scenario = Scenario::from_toml(WIFI).expect("a scenario");
    assert_eq!(scenario.seed, 1);
    assert!(scenario.client.mptcp.enabled);
    assert_eq!(scenario.paths[0].spec().expect("link").down.delay.as_millis(), 10);
    assert_eq!(scenario.path_number("wifi").expect("known"), 0);
}

#[test]
fn endpoints_and_events_are_understood() {
    let text = format!(
        "{WIFI}[client.mptcp]\nchecksum = true\nendpoints = [{{ address = '10.0.1.2', \
         path = 'wifi', flags = ['subflow', 'backup'] }}]\n[[event]]\nat = '7.5s'\n\
         path = 'wifi'\ncommand = 'down uplink'\n"
    );
    let scenario = Scenario::from_toml(&text).expect("a scenario");
    let flags = &scenario.client.mptcp.endpoints[0].flags;
    assert_eq!(flags, &[EndpointFlag::Subflow, EndpointFlag::Backup]);
    let (at, _) = scenario.events[0].parse().expect("an event");
    assert_eq!(at, Duration::from_millis(7_500));
}

#[test]
fn scenario_errors_name_the_cause() {
    for (text, word) in [
        ("".to_owned(), "path"),
        (format!("{WIFI}color = 'red'"), "color"),
        (format!("{WIFI}{WIFI}"), "two paths"),
        (WIFI.replace("'wifi'", "'a name with blanks'"), "interface"),
        (WIFI.replace("rate=8M", "rate=fast"), "rate=fast"),
        (WIFI.replace("10.0.1.2/24", "10.0.1"), "client"),
        (WIFI.replace("['10.0.1.1/24']", "[]"), "no address"),
        (format!("{WIFI}mtu = 100"), "mtu"),
        (format!("{WIFI}[client.mptcp]\nsubflows = 9"), "at most 8"),
        // Settings of the whole machine, in any spelling.
        (format!("{WIFI}[client.sysctl]\n'kernel.panic' = '0'"), "`kernel.panic`: only keys"),
        (format!("{WIFI}[server.sysctl]\n'net.../vm/swappiness' = '9'"), "belong to a host"),
        (
            format!(
                "{WIFI}[server.mptcp]\nendpoints = [{{ address = '10.0.9.9', flags = ['signal'] }}]"
            ),
            "10.0.9.9",
        ),
        (format!("{WIFI}[[event]]\nat = '1s'\npath = 'lte'\ncommand = 'down'"), "lte"),
        (format!("{WIFI}[[event]]\nat = 'soon'\npath = 'wifi'\ncommand = 'down'"), "soon"),
    ] {
        let said = refused(&text);
        assert!(said.contains(word), "{text}\n{said}");
    }
}

#[test]
fn repository_scenarios_parse() {
    let folder = FilePath::new(env!("CARGO_MANIFEST_DIR")).join("../../scenarios");
    let mut names = Vec::new();
    for entry in std::fs::read_dir(folder).expect("scenarios").flatten() {
        // Experiments have separate tests. The folder `grids` contains nothing else.
        if entry.path().is_dir() {
            continue;
        }
        let text = std::fs::read_to_string(entry.path()).expect("text");
        if text.contains("\n[workload]") || text.contains("\n[[workload]]") {
            continue;
        }
        let scenario =
            Scenario::from_file(&entry.path()).unwrap_or_else(|error| panic!("{error:#}"));
        assert!(scenario.paths.len() > 1);
        names.push(entry.file_name().to_string_lossy().into_owned());
    }
    names.sort();
    assert_eq!(names, ["backup.toml", "dual-stack.toml", "four-paths.toml", "wifi-lte.toml"]);
}

/// The repository's documentation.
fn docs(name: &str) -> String {
    let file = FilePath::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/research").join(name);
    std::fs::read_to_string(file).expect(name)
}

#[test]
fn the_documented_file_can_be_read_and_its_defaults_are_the_defaults() {
    let text = docs("lab.md");
    let (_, rest) = text.split_once("```toml\nseed = 7").expect("a block");
    let (block, _) = rest.split_once("```").expect("its end");
    let scenario = Scenario::from_toml(block).expect("documented");
    let (said, default) = (&scenario.client.mptcp, Mptcp::default());
    assert_eq!((said.enabled, said.checksum), (default.enabled, default.checksum));
    let limits = |of: &Mptcp| (of.subflows, of.add_addr_accepted);
    assert_eq!(limits(said), limits(&default));
}

#[test]
fn every_documented_item_of_a_link_can_be_read() {
    let text = docs("link.md");
    let mut items = 0;
    for row in text.lines().filter(|line| line.starts_with("| `") && line.contains('=')) {
        let first = row.split('|').nth(1).expect("a cell");
        for item in first.split('`').skip(1).step_by(2).filter(|item| !item.starts_with("set ")) {
            item.parse::<DuplexSpec>().unwrap_or_else(|error| panic!("{item}: {error}"));
            items += 1;
        }
    }
    assert!(items > 25, "the table is not where it was");
}
