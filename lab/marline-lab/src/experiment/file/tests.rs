use super::*;
use crate::workload::{Gap, Workload};

const GOOD: &str = "\
[[path]]
name = 'wifi'
link = 'rate=20M,delay=5ms'
[[path]]
name = 'lte'
link = 'rate=10M,delay=40ms,loss=1%'
[workload]
kind = 'bursts'
bytes = ['10kB', '20kB']
gap = '300ms'
count = 8
[[fault]]
path = 'wifi'
burst = 5
after = ['0ms', '8ms']
[[variant]]
name = 'default'
[[variant]]
name = 'both'
scheduler = 'redundant'
send_buffer = '200kB'
";

fn read(text: &str) -> ExperimentFile {
    ExperimentFile::from_toml("x.toml", text).unwrap_or_else(|error| panic!("{error:#}"))
}

fn refused(text: &str) -> String {
    format!("{:#}", ExperimentFile::from_toml("x.toml", text).expect_err("wrong"))
}

#[test]
fn a_file_becomes_an_experiment() {
    let file = read(GOOD);
    let gap = Gap { least_ms: 300.0, most_ms: 300.0 };
    let workload =
        Workload::RandomBursts { least_bytes: 10_000, most_bytes: 20_000, gap, count: 8 };
    assert_eq!(*file.experiment.workload(), workload);
    assert_eq!(file.experiment.faults[0].moment, crate::experiment::Moment::InBurst(5, 0.0, 8.0));
    assert_eq!(file.experiment.hosts().paths[1].client[0].to_string(), "10.0.2.2/24");
    let ipv6 = read(&GOOD.replace("[workload]", "family = 'ipv6'\n[workload]")).experiment.hosts();
    assert_eq!(ipv6.paths[1].server[0].to_string(), "fd00:2::1/64");
    let names = |stacks: &[Stack]| {
        let lanes = file.lanes(stacks).expect("lanes").into_iter();
        lanes.map(|lane| (lane.stack, lane.variant.name)).collect::<Vec<_>>()
    };
    let (default, both) = ("default".to_owned(), "both".to_owned());
    assert_eq!(names(&[Stack::Sim]), [(Stack::Sim, default), (Stack::Sim, both)]);
    // The kernel's buffers are not guessed.
    let error = format!("{:#}", file.lanes(&[Stack::Mptcp]).expect_err("buffers"));
    assert!(
        error.contains("variant `both` has its own buffers") && error.contains("SO_SNDBUF"),
        "{error}"
    );
    let unbounded = read(&GOOD.replace("send_buffer = '200kB'\n", ""));
    let lanes = unbounded.lanes(&[Stack::Tcp, Stack::Mptcp]).expect("lanes");
    let names: Vec<&str> = lanes.iter().map(|lane| lane.variant.name.as_str()).collect();
    assert_eq!(names, ["kernel wifi", "kernel lte", "kernel"]);
}

#[test]
fn a_dialogue_has_pieces_and_a_limit() {
    let workload = "kind = 'dialogue'\nrequest = 2500\nanswer = 750\npieces = [85, 500]\n\
                    unanswered = '22.5kB'\ngap = '333ms'\ncount = 240\n";
    let said = "kind = 'bursts'\nbytes = ['10kB', '20kB']\ngap = '300ms'\ncount = 8\n";
    let text = GOOD.replace(said, workload);
    let gap = Gap { least_ms: 333.0, most_ms: 333.0 };
    let (request_bytes, answer_bytes, pieces) = (2_500, 750, (85, 500));
    let expected = |pieces, unanswered_bytes| Workload::Dialogue {
        request_bytes,
        answer_bytes,
        pieces,
        unanswered_bytes,
        gap,
        count: 240,
    };
    assert_eq!(read(&text).experiment.workload(), &expected(pieces, 22_500));
    let plain = text.replace("pieces = [85, 500]\nunanswered = '22.5kB'\n", "");
    assert_eq!(read(&plain).experiment.workload(), &expected((2_500, 2_500), u32::MAX));
    for (from, to, wanted) in [
        (
            "[85, 500]",
            "[500, 85]",
            "x.toml:11:10: the values are reversed; give the smaller one first",
        ),
        ("'22.5kB'", "0", "0 bytes: must be 1"),
        ("'dialogue'", "'ask'", "kind = \"ask\" has no key `pieces`; it has request, answer"),
        ("answer = 750", "bytes = 750", "kind = \"dialogue\" has no key `bytes`"),
    ] {
        let error = refused(&text.replacen(from, to, 1));
        assert!(error.contains(wanted), "wanted {wanted}, got:\n{error}");
    }
}

#[test]
fn file_errors_name_the_line_and_suggest_a_fix() {
    for (from, to, wanted) in [
        ("delay=5ms", "delya=5ms", "x.toml:3:18: `delya=5ms`: unknown key `delya`; known: rate"),
        ("delay=5ms", "delya=5ms", "did you mean `delay`?"),
        ("link = 'rate=20M", "lnik = 'rate=20M", "x.toml:3:1: unknown field `lnik`"),
        ("link = 'rate=20M", "lnik = 'rate=20M", "did you mean `link`?"),
        (
            "[workload]",
            "family = 'ipv5'\n[workload]",
            "x.toml:7:10: unknown variant `ipv5`, expected `ipv4` or `ipv6`",
        ),
        (
            "[workload]",
            "client = ['fd00::2/64']\nserver = ['fd00::1/64']\nfamily = 'ipv6'\n[workload]",
            "x.toml:9:10: the addresses in `client` and `server` determine the family",
        ),
        ("'redundant'", "'redundnat'", "x.toml:20:14: unknown scheduler `redundnat`"),
        ("'redundant'", "'redundnat'", "did you mean `redundant`?\n   20 | scheduler"),
        ("'bursts'", "'burst'", "x.toml:8:9: unknown workload `burst`"),
        ("path = 'wifi'", "path = 'wfii'", "x.toml:13:9: no path is named `wfii`"),
        (
            "gap = '300ms'",
            "gap = '300'",
            "x.toml:10:7: `300` is not a valid time; write a number and one",
        ),
        ("count = 8", "", "x.toml:7:1: `count` is missing, for example count = 200"),
        ("count = 8", "count = 5", "unknown burst 5: there are 5, counted from 0"),
        ("burst = 5", "", "x.toml:12:1: the time is missing; give one of: burst = 6"),
        (
            "['0ms', '8ms']",
            "['9ms', '8ms']",
            "x.toml:15:9: the times are reversed; give the earlier one first",
        ),
        (
            "name = 'both'",
            "name = 'default'",
            "x.toml:19:8: expected a name that no earlier variant has",
        ),
        ("name = 'lte'", "name = 'wifi'", "x.toml:5:9: two paths are named `wifi`"),
        ("'200kB'", "'200 potatoes'", "x.toml:21:15: 200 potatoes is not a number of bytes"),
        ("'200kB'", "'200kB'\nstacks = ['mtcp']", "did you mean `mptcp`?"),
        ("'200kB'", "0", "x.toml:21:15: 0 bytes: must be 1 to 1073741824"),
        (
            "'200kB'",
            "'200kB'\nmode = 'interactive'",
            "x.toml:20:13: mode = \"interactive\" sets this key itself",
        ),
        ("'200kB'", "'200kB'\nstacks = ['mptcp']", "to the kernel: only its congestion control"),
        (
            "kind = 'bursts'",
            "kind = 'bursts'\nlasts = '3s'",
            "x.toml:9:9: kind = \"bursts\" has no key `lasts`; it has bytes, gap",
        ),
        ("[workload]", "[worklod]", "unknown field `worklod`"),
        ("burst = 5", "burst = = 5", "x.toml:14:9"),
    ] {
        let text = GOOD.replacen(from, to, 1);
        assert_ne!(text, GOOD, "{from}");
        let error = refused(&text);
        assert!(error.contains(wanted), "wanted {wanted}, got:\n{error}");
    }
    // All mistakes are reported.
    let text = GOOD.replace("delay=5ms", "delya=5ms").replace("'redundant'", "'nothing'");
    let error = refused(&text);
    assert!(error.contains("delya") && error.contains("nothing"), "{error}");
}

#[test]
fn a_sweep_is_every_combination() {
    let sweep = "[sweep]\n'path.lte.delay' = ['10ms', '20ms']\n'path.lte.up.loss' = ['0', '5%']\n\
                 'variant.*.send_buffer' = { from = '100kB', to = '1600kB', steps = 3, \
                 scale = 'log' }\n'workload.count' = { from = 6, to = 8, steps = 2 }\n";
    let file = read(&format!("{GOOD}{sweep}"));
    let points = file.points().expect("points");
    assert_eq!(points.len(), 2 * 2 * 3 * 2);
    let words = |number: usize| {
        let values = points[number].values.iter().map(|(_, value)| value.as_str());
        values.collect::<Vec<_>>().join(" ")
    };
    assert_eq!((words(0), words(1)), ("10ms 0 100kB 6".to_owned(), "10ms 0 100kB 8".to_owned()));
    assert_eq!((words(3), words(23)), ("10ms 0 400kB 8".to_owned(), "20ms 5% 1600kB 8".to_owned()));
    let last = &points[23].file;
    let link = last.experiment.scenario.paths[1].spec().expect("link");
    assert_eq!((link.up.delay.as_millis(), link.up.loss, link.down.loss), (20, 0.05, 0.01));
    let buffers = last.contestants.iter().map(|each| each.variant.send_buffer);
    assert!(buffers.eq([Some(1_600_000); 2]));
    for (line, wanted) in [
        ("'path.umts.delay' = ['1ms']", "x.toml:23:21: no path is named `umts`; known: wifi"),
        ("'path.lte.delya' = ['1ms']", "did you mean `delay`?"),
        ("'variant.both.scheduler' = ['min-rtt', 'fast']", "unknown scheduler `fast`"),
        ("'color' = ['red']", "unknown field `color`"),
        ("'fault.3.burst' = [1]", "`fault.3.burst`: no such fault"),
        ("'workload.count' = { from = 1, to = 2 }", "steps"),
        ("'path.lte.delay' = { from = '1ms', to = '2s', steps = 2 }", "need the same unit"),
        ("'path.lte.delay' = []", "0 values"),
    ] {
        let error = refused(&format!("{GOOD}[sweep]\n{line}\n"));
        assert!(error.contains(wanted), "wanted {wanted}, got:\n{error}");
    }
}

#[test]
fn the_experiments_of_the_repository_are_understood() {
    let scenarios = FilePath::new(env!("CARGO_MANIFEST_DIR")).join("../../scenarios");
    let mut read = 0;
    let names = [
        "echo-loss",
        "maps-wifi-dies",
        "blocks-wifi-3g",
        "small-buffer",
        "handover-backup",
        "voice-assistant",
    ];
    for name in names {
        let file = ExperimentFile::open(&scenarios.join(format!("{name}.toml")));
        let file = file.unwrap_or_else(|error| panic!("{error:#}"));
        let stacks = [Stack::Sim, Stack::Live, Stack::Tcp, Stack::Mptcp];
        assert!(file.lanes(&stacks).expect("lanes").len() >= 5, "{name}");
        read += 1;
    }
    assert_eq!(read, names.len());
}

#[test]
fn the_grids_of_the_repository_are_understood() {
    let grids = FilePath::new(env!("CARGO_MANIFEST_DIR")).join("../../scenarios/grids");
    let files = std::fs::read_dir(&grids).expect("grids").count();
    let grids = crate::scenes::read_directory(&grids).unwrap_or_else(|error| panic!("{error:#}"));
    assert_eq!(grids.len(), files, "each has checks");
    for grid in &grids {
        assert!(grid.points().expect("points").len() >= 6);
    }
}

#[test]
fn a_scenario_alone_is_refused_as_well() {
    let dir = std::env::temp_dir().join(format!("marline-hosts-{}", std::process::id()));
    std::fs::create_dir_all(&dir).expect("make");
    let file = dir.join("net.toml");
    let text = "[[path]]\nname = 'wifi'\nlink = 'rate=20M'\nclient = ['10.0.1.2/24']\n\
                server = ['10.0.1.1/24']\n[[event]]\nat = '1s'\npath = 'wifi'\n\
                command = 'down'\n";
    std::fs::write(&file, text).expect("write");
    assert_eq!(hosts(&file).expect("a scenario").events.len(), 1);
    std::fs::write(&file, text.replace("path = 'wifi'\n", "path = 'wfii'\n")).expect("write");
    let error = format!("{:#}", hosts(&file).expect_err("no such path"));
    assert!(error.contains("net.toml:8:9: no path is named `wfii`; known: wifi"), "{error}");
    std::fs::write(&file, format!("{text}[workload]\nkind = 'bulk'\nlasts = '1s'\n"))
        .expect("write");
    assert_eq!(hosts(&file).expect("an experiment").paths[0].name, "wifi");
    std::fs::remove_dir_all(&dir).expect("clean up");
}
