use std::path::Path;

use marline_proxy::invite::Invite;
use marline_proxy::private_file;
use marline_proxy::secret::Secret;
use marline_proxy::serve::HeaderVersion;

use super::client::{ClientOptions, ClientPlan, Route};
use super::policies::{Mode, Side};
use super::serve::ServeOptions;
use super::server::ServerOptions;
use super::*;
use crate::native::{CarrierChoice, CarrierPlan};

fn invite() -> Invite {
    let servers = vec!["server.example:7777".parse().unwrap()];
    Invite::new(servers, [1; 32], Secret::from_bytes([2; 32])).unwrap()
}

fn error_of<T>(result: anyhow::Result<T>) -> String {
    format!("{:#}", result.err().unwrap())
}

#[test]
fn spans() {
    for (text, millis) in
        [("500ms", 500), ("20s", 20_000), ("10m", 600_000), ("1h", 3_600_000), ("2d", 172_800_000)]
    {
        let span: DurationValue = text.parse().unwrap();
        assert_eq!(span.0.as_millis(), millis);
        assert_eq!(span.to_string(), text);
    }
    for (text, shown) in [("15min", "15m"), ("0h", "0s"), ("3650d", "3650d")] {
        assert_eq!(text.parse::<DurationValue>().unwrap().to_string(), shown);
    }
    for bad in [
        "",
        "5",
        "s",
        "1.5s",
        "-1s",
        "5 s",
        "99999999999999999999s",
        "9999999999999999999d",
        "3651d",
    ] {
        assert!(bad.parse::<DurationValue>().is_err(), "{bad}");
    }
}

#[test]
fn forwards() {
    for (text, shown) in [
        ("8080:example.org:80", "127.0.0.1:8080:example.org:80"),
        ("localhost:8080:192.0.2.1:80", "127.0.0.1:8080:192.0.2.1:80"),
        ("*:22:[2001:db8::1]:22", "0.0.0.0:22:[2001:db8::1]:22"),
        ("[::1]:22:host:22", "[::1]:22:host:22"),
    ] {
        assert_eq!(text.parse::<Forward>().unwrap().to_string(), shown);
    }
    for bad in ["", "80", "80:host", "80:host:0", "x:host:80", "a:b:c:d:e", "1:2001:db8::1:80"] {
        assert!(bad.parse::<Forward>().is_err(), "{bad}");
    }
}

#[test]
fn file_keys_are_named_like_flags_and_flags_win() {
    let file: ClientOptions = parse(
        r#"
        invite-file = "invite"
        path = ["wlan0", "wwan0,backup", "127.0.0.1=127.0.0.1:7001"]
        socks5 = ["127.0.0.1:9999"]
        local-forward = ["8080:example.org:80"]
        mode = "redundant"
        linger = "10m"
        warm = 3
        pcap-secrets = true
        "#,
    )
    .unwrap();
    assert_eq!(file.path.len(), 3);
    let flags = ClientOptions {
        socks5: vec!["127.0.0.1:1".parse().unwrap()],
        mode: Some(Mode::Handover),
        ..ClientOptions::default()
    };
    let both = flags.with_defaults(file).into_effective();
    assert_eq!(both.socks5, ["127.0.0.1:1".parse().unwrap()]);
    assert_eq!(both.mode, Some(Mode::Handover));
    assert_eq!(both.scheduler.as_deref(), Some("auto"));
    assert_eq!(both.path_manager.as_deref(), Some("backup"));
    assert_eq!(both.warm, Some(3));
    assert!(both.pcap_secrets);
    assert_eq!(both.linger, Some("10m".parse().unwrap()));
}

#[test]
fn check_config_output_parses_as_configuration() {
    let options = ClientOptions { mode: Some(Mode::Redundant), ..ClientOptions::default() };
    let printed = toml::to_string(&options.into_effective()).unwrap();
    let again: ClientOptions = parse(&printed).unwrap();
    assert_eq!(toml::to_string(&again.into_effective()).unwrap(), printed);
    assert!(printed.contains("scheduler = \"auto,budget=unlimited\""), "{printed}");
    assert!(printed.contains("socks5 = [\"127.0.0.1:1080\"]"), "{printed}");
}

#[test]
fn a_printed_configuration_shows_no_secret() {
    let word = invite().to_word();
    let options: ClientOptions = parse(&format!("invite = \"{word}\"")).unwrap();
    for shown in [toml::to_string(&options).unwrap(), format!("{options:?}")] {
        assert!(!shown.contains(&word[8..40]), "{shown}");
        assert!(shown.contains("server.example:7777"), "{shown}");
    }
}

#[test]
fn errors_name_the_place() {
    for (text, says) in [
        ("\nsock5 = []\n", &["line 2", "sock5"][..]),
        ("path = [\"wlan0\", \"wwan0,primary\"]", &["line 1", "backup"]),
        ("linger = \"soon\"", &["line 1", "soon", "10m"]),
        ("mode = \"fast\"", &["line 1", "fast", "interactive"]),
        ("socks5 = [\"localhost\"]", &["line 1"]),
        ("local-forward = [\"80:host\"]", &["line 1", "80:host"]),
        ("invite = \"marline1abc\"", &["line 1", "cut short"]),
        ("warm = -1", &["line 1"]),
        ("\npath-health = \"delphi\"", &["line 2", "delphi", "prompt", "multimob"]),
        ("path-health = \"prompt,loss=0.4\"", &["line 1", "loss=25%"]),
        ("warm = ", &["line 1"]),
        ("deadline = [\"22\"]", &["line 1", "the time is missing", "22=80ms"]),
        ("deadline = [\"0=80ms\"]", &["line 1", "1 to 65535"]),
        ("deadline = [\"30-20=80ms\"]", &["line 1", "1 to 65535"]),
        ("deadline = [\"22=0ms\"]", &["line 1", "between 1ms and 10s"]),
        ("deadline = [\"22=soon\"]", &["line 1", "soon", "500ms"]),
    ] {
        let error = error_of(parse::<ClientOptions>(text));
        assert!(says.iter().all(|part| error.contains(part)), "{text:?}: {error}");
    }
    for (text, says) in [
        ("allow = [\"10.1.2.3/8\"]", &["line 1", "10.0.0.0/8"][..]),
        ("public = [\"host\"]", &["line 1", "HOST:PORT"]),
        ("listen = [\"7777\"]", &["line 1"]),
        ("token = \"x\"", &["line 1", "token"]),
    ] {
        let error = error_of(parse::<ServerOptions>(text));
        assert!(says.iter().all(|part| error.contains(part)), "{text:?}: {error}");
    }
}

fn with_invite() -> ClientOptions {
    ClientOptions { invite: Some(StringValue(InviteWord(invite()))), ..ClientOptions::default() }
}

#[test]
fn plans_refuse_inconsistent_options() {
    assert!(error_of(ClientOptions::default().plan()).contains("--invite-file"));
    let open = ClientOptions { socks5: vec!["0.0.0.0:1080".parse().unwrap()], ..with_invite() };
    assert!(error_of(open.clone().plan()).contains("--share"));
    ClientOptions { share: true, ..open }.plan().unwrap();
    let forward = vec!["*:80:host:80".parse().unwrap()];
    let open = ClientOptions { local_forward: forward, ..with_invite() };
    assert!(error_of(open.plan()).contains("--share"));
    let name = ClientOptions { scheduler: Some("psychic".into()), ..with_invite() };
    let error = error_of(name.plan());
    assert!(error.contains("psychic") && error.contains("min-rtt"), "{error}");
    let long = ClientOptions { keepalive: Some("30s".parse().unwrap()), ..with_invite() };
    assert!(error_of(long.plan()).contains("20s"));
    let busy = ClientOptions { busy_poll: Some(10_001), ..with_invite() };
    assert!(error_of(busy.plan()).contains("10000"));
    let warm = ClientOptions { warm: Some(33), ..with_invite() };
    assert!(error_of(warm.plan()).contains("32"));
}

#[test]
fn udp_is_carried_over_the_udp_carrier_alone_by_the_policy_that_was_chosen() {
    let forward = |text: &str| vec![text.parse().unwrap()];
    let by_default = with_invite().plan().unwrap();
    assert_eq!(by_default.datagrams.unwrap().policy.name(), "auto");
    let options = ClientOptions {
        udp_forward: forward("5353:9.9.9.9:53"),
        datagram_policy: Some("min-rtt".into()),
        ..with_invite()
    };
    let plan = options.clone().plan().unwrap();
    assert_eq!(plan.datagrams.unwrap().policy.name(), "min-rtt");
    assert!(plan.socks5.is_empty(), "a forward is enough");
    let native = ClientOptions { carrier: Some(CarrierChoice::Raw), ..options.clone() };
    assert!(error_of(native.clone().plan()).contains("--carrier auto, udp or tcp"));
    let native = ClientOptions { udp_forward: Vec::new(), ..native }.plan().unwrap();
    assert!(native.datagrams.is_none());
    let open = ClientOptions { udp_forward: forward("*:53:host:53"), ..options.clone() };
    assert!(error_of(open.plan()).contains("--share"));
    let unknown = ClientOptions { datagram_policy: Some("psychic".into()), ..options };
    let error = error_of(unknown.plan());
    assert!(error.contains("psychic") && error.contains("duplicate"), "{error}");
    let server = ServerOptions {
        listen: vec!["127.0.0.1:7777".parse().unwrap()],
        datagram_policy: Some("duplicate".into()),
        ..ServerOptions::default()
    };
    let plan = server.plan(Path::new("server.toml")).unwrap();
    assert_eq!(plan.datagrams.policy.name(), "duplicate");
}

#[test]
fn a_mode_budgets_datagrams_as_it_does_streams() {
    let of = |mode, chosen: Option<&str>| {
        let datagram_policy = chosen.map(str::to_owned);
        let client = ClientOptions { mode: Some(mode), datagram_policy, ..with_invite() };
        assert!(client.clone().plan().unwrap().datagrams.is_some());
        client.into_effective().datagram_policy.unwrap()
    };
    assert_eq!(of(Mode::Balanced, None), "auto");
    assert_eq!(of(Mode::Aggregate, None), "auto,budget=0");
    assert_eq!(of(Mode::Redundant, None), "auto,budget=unlimited");
    assert_eq!(of(Mode::Redundant, Some("min-rtt")), "min-rtt");
    let server = ServerOptions { mode: Some(Mode::Redundant), ..ServerOptions::default() };
    let server = server.into_effective(Path::new("server.toml"));
    assert_eq!(server.datagram_policy.as_deref(), Some("auto,budget=unlimited"));
}

#[test]
fn silence_timers_are_off_unless_configured() {
    let quiet = with_invite().plan().unwrap();
    let quiet = quiet.network.get_transport().as_core();
    assert_eq!((quiet.receive_timer, quiet.lone_keepalive), (None, None));
    let told = ClientOptions {
        receive_timer: Some("probing,count=2".parse().unwrap()),
        lone_keepalive: Some("idle=5s".parse().unwrap()),
        ..with_invite()
    };
    let printed = toml::to_string(&told.clone().into_effective()).unwrap();
    let line = printed.lines().find(|line| line.starts_with("receive-timer = ")).unwrap();
    assert_eq!(parse::<ClientOptions>(line).unwrap().receive_timer, told.receive_timer);
    let connection = told.plan().unwrap();
    let connection = connection.network.get_transport().as_core();
    let count = connection.receive_timer.and_then(|timer| timer.probing).map(|p| p.count);
    assert_eq!(count, Some(2));
    assert!(
        connection
            .extensions
            .contains(marline::monitor::Extensions::IDLE.union(marline::monitor::Extensions::RTO))
    );
    assert!(connection.lone_keepalive.is_some());
    let off = ClientOptions { receive_timer: Some("off".parse().unwrap()), ..with_invite() };
    assert_eq!(off.plan().unwrap().network.get_transport().as_core().receive_timer, None);
    let error = error_of(parse::<ClientOptions>("receive-timer = \"psychic\""));
    assert!(error.contains("psychic") && error.contains("probing"), "{error}");
}

#[test]
fn every_mode_has_policies_that_exist() {
    for mode in
        [Mode::Handover, Mode::Balanced, Mode::Interactive, Mode::Aggregate, Mode::Redundant]
    {
        let options = ClientOptions { mode: Some(mode), ..with_invite() };
        let plan = options.plan().unwrap();
        assert_eq!(
            plan.network.get_transport().as_core().policies.scheduler.name(),
            mode.policies(Side::Client).0
        );
    }
}

#[test]
fn interactive_is_multimob_on_both_sides() {
    let interactive = || ClientOptions { mode: Some(Mode::Interactive), ..with_invite() };
    let plan = interactive().plan().unwrap();
    let connection = plan.network.get_transport().as_core();
    assert_eq!(connection.policies.path_manager.name(), "break-before-make");
    assert!(connection.extensions.contains(marline::monitor::Extensions::FOLLOW_CLIENT));
    assert!(connection.receive_timer.is_some() && plan.network.get_path_health_monitor().is_some());
    let own = ClientOptions { path_manager: Some("backup".into()), ..interactive() };
    let plan = own.plan().unwrap();
    assert_eq!(
        plan.network.get_transport().as_core().policies.path_manager.name(),
        "backup",
        "a name holds"
    );
    let off = ClientOptions { path_health: Some("off".parse().unwrap()), ..interactive() };
    assert!(off.plan().unwrap().network.get_path_health_monitor().is_none());

    let server = ServerOptions {
        listen: vec!["192.0.2.1:7777".parse().unwrap()],
        mode: Some(Mode::Interactive),
        ..ServerOptions::default()
    };
    let plan = server.plan(Path::new("marline.toml")).unwrap();
    let connection = plan.network.get_transport().as_core();
    assert_eq!(connection.policies.scheduler.name(), "follow-client");
    assert!(connection.follow_client.is_some() && plan.network.get_path_health_monitor().is_some());

    let shipped = with_invite().plan().unwrap();
    assert!(
        shipped.network.get_path_health_monitor().is_none()
            && shipped.network.get_transport().as_core().extensions.is_empty()
    );
    let names = &shipped.network.get_transport().as_core().policies;
    assert_eq!((names.scheduler.name(), names.path_manager.name()), ("auto", "full-mesh"));
    assert_eq!(names.congestion.name(), "cubic-westwood");
}

#[test]
fn the_path_health_in_force_is_printed_so_that_it_can_be_read() {
    let told =
        ClientOptions { path_health: Some("prompt,clean=5s".parse().unwrap()), ..with_invite() };
    for options in
        [told, ClientOptions { mode: Some(Mode::Interactive), ..with_invite() }, with_invite()]
    {
        let effective = options.into_effective();
        let printed = toml::to_string(&effective).unwrap();
        let line = printed.lines().find(|line| line.starts_with("path-health = ")).unwrap();
        assert_eq!(
            parse::<ClientOptions>(line).unwrap().path_health,
            effective.path_health,
            "{line}"
        );
    }
}

#[test]
fn deadlines_are_by_port_and_each_port_has_one() {
    let file = "deadline = [\"22=80ms\", \"5900-5910=1s\"]";
    let options: ClientOptions = parse(file).unwrap();
    let printed = toml::to_string(&options).unwrap();
    assert_eq!(parse::<ClientOptions>(&printed).unwrap().deadline, options.deadline, "{printed}");
    let plan =
        ClientOptions { deadline: options.deadline.clone(), ..with_invite() }.plan().unwrap();
    let within = |rules: &[marline_proxy::deadlines::DeadlineRule]| -> Vec<_> {
        rules.iter().map(|rule| (rule.first, rule.last, rule.within.as_millis())).collect()
    };
    assert_eq!(within(&plan.deadlines), [(22, 22, 80), (5_900, 5_910, 1_000)]);
    let server = ServerOptions {
        listen: vec!["192.0.2.1:7777".parse().unwrap()],
        deadline: options.deadline,
        ..ServerOptions::default()
    };
    let plan = server.clone().plan(Path::new("marline.toml")).unwrap();
    assert_eq!(within(&plan.deadlines), [(22, 22, 80), (5_900, 5_910, 1_000)]);
    let twice = vec!["20-22=80ms".parse().unwrap(), "22=1s".parse().unwrap()];
    let error =
        error_of(ServerOptions { deadline: twice.clone(), ..server }.plan(Path::new("m.toml")));
    assert!(error.contains("20-22=80ms and 22=1s"), "{error}");
    let error = error_of(ClientOptions { deadline: twice, ..with_invite() }.plan());
    assert!(error.contains("20-22=80ms and 22=1s"), "{error}");
}

#[test]
fn policies_are_chosen_by_spec() {
    let specs = ["min-rtt+orp,penalize=paper", "cubic+cap,ratio=3", "rack-tlp,ack-delay=200ms"];
    let [scheduler, congestion, recovery] = specs.map(|spec| Some(spec.to_owned()));
    let plan = ClientOptions { scheduler, congestion, recovery, ..with_invite() }.plan().unwrap();
    let policies = &plan.network.get_transport().as_core().policies;
    let names = [policies.scheduler.name(), policies.congestion.name(), policies.recovery.name()];
    assert_eq!(names, specs);
    let wrong = Some("min-rtt+orp,penalty=paper".to_owned());
    let error = error_of(ClientOptions { scheduler: wrong, ..with_invite() }.plan());
    assert!(error.contains("`penalty`") && error.contains("penalize"), "{error}");
}

#[test]
fn invite_files_must_be_private() {
    use std::os::unix::fs::PermissionsExt;
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("invite");
    private_file::create(&file, format!("{}\n", invite().to_word()).as_bytes()).unwrap();
    let config = dir.path().join("client.toml");
    std::fs::write(&config, "invite-file = \"invite\"\n").unwrap();
    let options = ClientOptions::default().with_file(Some(&config)).unwrap();
    assert_eq!(options.read_invite().unwrap(), invite());
    std::fs::set_permissions(&file, std::fs::Permissions::from_mode(0o640)).unwrap();
    assert!(error_of(options.read_invite()).contains("chmod 600"));
    std::fs::write(&config, format!("invite = \"{}\"\n", invite().to_word())).unwrap();
    std::fs::set_permissions(&config, std::fs::Permissions::from_mode(0o644)).unwrap();
    let error = error_of(ClientOptions::default().with_file(Some(&config)));
    assert!(error.contains("contains the invite") && error.contains("chmod 600"), "{error}");
}

#[test]
fn public_names_are_demanded_where_the_address_means_nothing() {
    let listening = |address: &str| ServerOptions {
        listen: vec![address.parse().unwrap()],
        ..ServerOptions::default()
    };
    for address in [
        "0.0.0.0:7777",
        "[::]:7777",
        "10.0.0.1:7777",
        "192.168.1.1:1",
        "100.64.0.1:1",
        "[fd00::1]:1",
    ] {
        let error = error_of(listening(address).public_names());
        assert!(error.contains("--public"), "{address}: {error}");
    }
    assert!(error_of(listening("127.0.0.1:0").public_names()).contains("port"));
    for address in ["127.0.0.1:7777", "[::1]:7777", "8.8.8.8:53"] {
        assert_eq!(listening(address).public_names().unwrap()[0].to_string(), address);
    }
    let named = ServerOptions {
        public: vec!["vpn.example:443".parse().unwrap()],
        ..listening("0.0.0.0:1")
    };
    assert_eq!(named.public_names().unwrap()[0].to_string(), "vpn.example:443");
}

#[test]
fn a_servers_files_lie_next_to_its_configuration() {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("server.toml");
    std::fs::write(&file, "listen = [\"127.0.0.1:7777\"]\nkey-file = \"sub/k\"\n").unwrap();
    let plan = ServerOptions::from_file(&file).unwrap().plan(&file).unwrap();
    assert_eq!(plan.key_file, dir.path().join("sub/k"));
    assert_eq!(plan.credentials_file, dir.path().join("server.clients"));
    assert!(error_of(ServerOptions::default().plan(Path::new("x.toml"))).contains("--listen"));
    let shards = ServerOptions { shards: Some(3), ..ServerOptions::from_file(&file).unwrap() };
    assert!(error_of(shards.plan(&file)).contains("power of two"));
    let native = ServerOptions {
        shards: Some(4),
        carrier: Some(CarrierChoice::Raw),
        ..ServerOptions::from_file(&file).unwrap()
    };
    let plan = native.plan(&file).unwrap();
    assert_eq!((plan.shards, plan.network.get_shards()), (4, 4));
}

#[test]
fn a_front_has_as_many_shards_as_its_file_says() {
    let plan =
        front("listen = ['127.0.0.1:80']\nto = '127.0.0.1:8080'\nshards = 2").plan().unwrap();
    assert_eq!((plan.shards, plan.network.get_shards()), (2, 2));
    for wrong in [0, 3, 256] {
        let text = format!("listen = ['127.0.0.1:80']\nto = '127.0.0.1:8080'\nshards = {wrong}");
        assert!(error_of(front(&text).plan()).contains("power of two"), "{wrong}");
    }
}

#[test]
fn signals() {
    for text in [
        "192.0.2.1",
        "192.0.2.1:8443",
        "10.0.0.5=203.0.113.5",
        "10.0.0.5:80=203.0.113.5:8080,backup",
        "2001:db8::1,backup",
        "[2001:db8::1]:443",
    ] {
        assert_eq!(text.parse::<SignalAddress>().unwrap().to_string(), text);
    }
    let bare: SignalAddress = "[2001:db8::1]".parse().unwrap();
    assert_eq!((bare.to_string().as_str(), bare.0.address.port()), ("2001:db8::1", 0));
    for bad in ["", "wlan0", "0.0.0.0", "224.0.0.1", "192.0.2.1,primary", "192.0.2.1=2001:db8::1"] {
        assert!(bad.parse::<SignalAddress>().is_err(), "{bad}");
    }
}

#[test]
fn tun_interfaces_and_their_carrier_need_each_other() {
    let words = |texts: &[&str]| texts.iter().map(|text| text.parse().unwrap()).collect();
    let options = ClientOptions {
        direct: true,
        carrier: Some(CarrierChoice::Tun),
        tun: words(&["tun0=10.9.0.2", "tun1=2001:db8::2"]),
        ..ClientOptions::default()
    };
    assert!(
        matches!(options.clone().plan().unwrap().carrier, CarrierPlan::Tun(paths) if paths.len() == 2)
    );
    let raw = ClientOptions { carrier: None, ..options.clone() };
    assert!(error_of(raw.plan()).contains("--carrier tun"));
    let none = ClientOptions { tun: Vec::new(), ..options };
    assert!(error_of(none.plan()).contains("--tun"));
    for bad in ["", "tun0", "=10.0.0.1", "tun0=host", "a-name-that-is-too-long=10.0.0.1"] {
        assert!(bad.parse::<Tun>().is_err(), "{bad}");
    }
}

fn front(text: &str) -> ServeOptions {
    parse(text).unwrap()
}

#[test]
fn a_front_needs_an_address_and_a_service() {
    let fine = "listen = [\"0.0.0.0:80\", \"[::]:80\"]\nto = \"127.0.0.1:8080\"\n";
    let plan = front(fine).plan().unwrap();
    assert_eq!(plan.carrier, CarrierPlan::Raw);
    assert_eq!(plan.network.listen_addrs().len(), 2);
    assert_eq!(
        plan.network.get_transport().as_core().keepalive,
        Some(marline::time::Duration::from_secs(120))
    );
    assert!(error_of(front("to = \"127.0.0.1:80\"").plan()).contains("--listen"));
    assert!(error_of(front("listen = [\"0.0.0.0:80\"]").plan()).contains("--to"));
    for (more, says) in [
        ("max-connections = 0", "--max-connections"),
        ("max-per-source = 70000", "--max-per-source"),
        ("idle-timeout = \"10ms\"", "--idle-timeout"),
        ("connect-timeout = \"0s\"", "--connect-timeout"),
        ("keepalive = \"10ms\"", "--keepalive"),
        ("scheduler = \"psychic\"", "psychic"),
    ] {
        let error = error_of(front(&format!("{fine}{more}")).plan());
        assert!(error.contains(says), "{more}: {error}");
    }
    let more =
        "signal = [\"10.0.0.5=203.0.113.5,backup\"]\nproxy-protocol = \"v2\"\nlinger = \"5m\"";
    let options = front(&format!("{fine}{more}"));
    let printed = toml::to_string(&options.clone().into_effective()).unwrap();
    let again = toml::to_string(&front(&printed).into_effective()).unwrap();
    assert_eq!(again, printed);
    let plan = options.plan().unwrap();
    assert!(plan.network.announced()[0].backup && plan.network.announced()[0].signal);
    assert_eq!(plan.header, Some(HeaderVersion::V2));
}

#[test]
fn direct_and_an_invite_exclude_each_other() {
    let direct = ClientOptions { direct: true, ..ClientOptions::default() };
    let plan = direct.clone().plan().unwrap();
    assert!(matches!(plan.route, Route::Direct) && plan.carrier == CarrierPlan::Raw);
    let both = ClientOptions { direct: true, ..with_invite() };
    assert!(error_of(both.plan()).contains("direct"));
    let udp = ClientOptions { carrier: Some(CarrierChoice::Udp), ..direct.clone() };
    assert!(error_of(udp.plan()).contains("--carrier raw"));
    // A flag replaces the value in the file.
    assert!(direct.with_defaults(with_invite()).plan().is_ok());
    let file = ClientOptions { direct: true, ..ClientOptions::default() };
    assert!(matches!(with_invite().with_defaults(file).plan().unwrap().route, Route::Through(_)));
    let plan = with_invite().plan().unwrap();
    assert_eq!(plan.carrier, CarrierPlan::Auto);
}

#[test]
fn fast_open_needs_direct_mode() {
    let client = |text: &str| parse::<ClientOptions>(text).unwrap();
    let direct = client("direct = true\nfast-open = [443]");
    let fast_open = |plan: ClientPlan| plan.network.get_transport().as_core().fast_open.clone();
    let fast = fast_open(direct.clone().plan().unwrap()).expect("it is on");
    assert!(fast.is_on(443) && !fast.is_on(80) && !fast.with_multipath);
    let through = client(&format!("invite = '{}'\nfast-open = [443]", invite().to_word()));
    assert!(error_of(through.plan()).contains("--fast-open needs --direct"));
    assert!(error_of(direct.clone().refuse_ports()).contains("--fast-open"));
    // A client that uses a server after all drops the option, as `marline run` does.
    assert!(with_invite().with_defaults(direct.clone()).plan().is_ok());
    assert_eq!(fast_open(direct.without_ports().plan().unwrap()), None);
}

#[test]
fn remote_forwards_are_without_a_port_of_socks_and_need_a_server() {
    let client = |text: &str| parse::<ClientOptions>(text).unwrap();
    let text = format!("invite = '{}'\nremote-forward = ['8022:localhost:22']", invite().to_word());
    let plan = client(&text).plan().unwrap();
    assert_eq!(plan.remote_forwards[0].to_string(), "127.0.0.1:8022:localhost:22");
    assert!(plan.socks5.is_empty());
    let direct = client("direct = true\nremote-forward = ['8022:localhost:22']");
    assert!(error_of(direct.plan()).contains("-R needs a server"));
}

#[test]
fn rules_of_remote_forwards_are_read_and_printed() {
    let server = |rule: &str| {
        let text = format!("listen = ['127.0.0.1:1']\nallow-remote = ['{rule}']");
        parse::<ServerOptions>(&text)
    };
    let options = server("laptop@[::1]:8000-8010").unwrap();
    assert!(
        toml::to_string(&options).unwrap().contains("allow-remote = [\"laptop@[::1]:8000-8010\"]")
    );
    assert_eq!(options.plan(Path::new("")).unwrap().remote_rules.len(), 1);
    assert!(error_of(server("localhost:80")).contains("not a valid address"));
}
