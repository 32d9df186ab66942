use super::*;

const OWN: IpAddr = IpAddr::V4(Ipv4Addr::new(198, 18, 0, 2));
const OWN_V6: IpAddr = IpAddr::V6(Ipv6Addr::new(0xfd00, 0, 0, 0, 0, 0, 0, 2));

fn networks(texts: &[&str]) -> Vec<Cidr> {
    texts.iter().map(|text| text.parse().unwrap()).collect()
}

fn shown(routes: &[Route]) -> Vec<String> {
    let in_general = routes.iter().filter(|route| route.table == TABLE);
    in_general.map(|route| format!("{} {:?}", route.to, route.leads)).collect()
}

fn all_sets(settings: &RoutingSettings, facts: &MachineState) -> [Vec<Rule>; 4] {
    [
        settings.tunnel_rules(OWN, facts),
        settings.tunnel_rules(OWN_V6, facts),
        settings.switch(OWN, facts),
        settings.switch(OWN_V6, facts),
    ]
}

fn facts() -> MachineState {
    MachineState {
        inbound: vec![InboundConnection { port: 22, peer: "203.0.113.9".parse().unwrap() }],
        direct_hosts: direct_hosts(&["192.0.2.7", "2001:db8::7"]),
        interfaces: vec![("eth0".to_owned(), 2), ("wlan0".to_owned(), 3)],
        gateway: Some(4),
        loopback: Some(1),
        holds_bound_names: false,
    }
}

/// Returns true if a packet may leave directly under these rules, if only the main table has routes: a default route,
/// and one to the destination if `local`.
fn leaves(rules: &[Rule], matches: impl Fn(&Selector) -> bool, local: bool) -> bool {
    for rule in rules.iter().filter(|rule| matches(&rule.selector)) {
        match rule.verdict {
            Verdict::Lookup(MAIN) | Verdict::OwnRules => return true,
            Verdict::LookupButDefault(_) if local => return true,
            Verdict::Unreachable => return false,
            // Our tables are empty because the interface is not served.
            _ => {}
        }
    }
    true
}

#[test]
fn each_set_has_its_priorities_in_order_below_the_rule_behind_both() {
    let settings = RoutingSettings {
        reachable: vec!["22".parse().unwrap(), "53/udp".parse().unwrap()],
        direct: networks(&["10.0.0.0/8", "2001:db8::/32"]),
        ..RoutingSettings::default()
    };
    for (at, rules) in all_sets(&settings, &facts()).into_iter().enumerate() {
        let range = if at < 2 { TUNNEL_PRIORITIES } else { KILL_SWITCH_PRIORITIES };
        assert!(rules.iter().all(|rule| range.contains(&rule.priority)), "{rules:?}");
        assert!(rules.is_sorted_by_key(|rule| rule.priority), "{rules:?}");
        assert_eq!(rules[0].selector, Selector::Mark(MARK));
        assert_eq!(rules[0].verdict, Verdict::Lookup(MAIN));
        assert_eq!(rules[1].verdict, Verdict::Unreachable);
        let services =
            rules.iter().filter(|rule| matches!(rule.selector, Selector::SourcePort(..)));
        assert_eq!(services.count(), 3);
    }
    const {
        assert!(
            JUMP_TARGET_PRIORITY >= KILL_SWITCH_PRIORITIES.end
                && TUNNEL_PRIORITIES.end <= KILL_SWITCH_PRIORITIES.start
        )
    };
}

#[test]
fn without_the_lead_a_switch_lets_only_exceptions_and_the_local_network_pass() {
    let settings = RoutingSettings {
        direct: networks(&["10.0.0.0/8", "2001:db8::/32"]),
        kill_switch: true,
        ..RoutingSettings::default()
    };
    for own in [OWN, OWN_V6] {
        let rules = settings.switch(own, &facts());
        let all = |selector: &Selector| *selector == Selector::All;
        assert!(!leaves(&rules, all, false), "{rules:?}");
        assert!(leaves(&rules, all, true), "the local network");
        let names = |transport| {
            move |selector: &Selector| {
                matches!(selector, Selector::All | Selector::Names(_))
                    && !matches!(selector, Selector::Names(other) if *other != transport)
            }
        };
        for transport in TRANSPORTS {
            assert!(!leaves(&rules, names(transport), true), "queries to the local network");
        }
        // Even in a partial set, a rule for all traffic is the last one.
        let last = rules.last().unwrap();
        assert_eq!((&last.selector, last.verdict), (&Selector::All, Verdict::Unreachable));
    }
}

#[test]
fn queries_never_leave_by_the_lead_rules_alone() {
    for own in [OWN, OWN_V6] {
        let rules = RoutingSettings::default().tunnel_rules(own, &facts());
        let names = |selector: &Selector| {
            matches!(selector, Selector::All | Selector::Names(Transport::Udp))
        };
        for local in [false, true] {
            assert!(!leaves(&rules, names, local), "{rules:?}");
        }
        let at = |wanted: &dyn Fn(&Rule) -> bool| rules.iter().position(wanted).unwrap();
        let own = at(&|rule| rule.selector == Selector::Source(own));
        assert!(own < at(&|rule| matches!(rule.verdict, Verdict::LookupButDefault(_))));
        assert_eq!(rules.last().unwrap().verdict, Verdict::Lookup(TABLE));
    }
}

#[test]
fn names_stay_as_they_were_when_only_some_networks_are_reached_through_it() {
    let settings = RoutingSettings {
        only: networks(&["10.0.0.0/8"]),
        kill_switch: true,
        ..RoutingSettings::default()
    };
    let names =
        |rule: &Rule| matches!(rule.selector, Selector::Names(_) | Selector::NamesBoundTo(..));
    for rules in all_sets(&settings, &facts()) {
        assert!(!rules.iter().any(names), "{rules:?}");
    }
    let held = settings.switch(OWN, &facts());
    assert!(leaves(&held, |selector| *selector == Selector::All, false), "the rest");
    let to = Selector::To(settings.only[0]);
    assert!(!leaves(&held, |selector| *selector == Selector::All || *selector == to, false));
    assert_eq!(
        shown(&settings.routes(false, true)),
        [
            "169.254.0.0/16 LeaveTable",
            "224.0.0.0/4 LeaveTable",
            "255.255.255.255/32 LeaveTable",
            "10.0.0.0/8 ToInterface"
        ]
    );
    let ipv6 = settings.routes(true, true);
    assert!(ipv6.iter().all(|route| route.leads == RouteAction::LeaveTable), "{ipv6:?}");
}

#[test]
fn a_family_that_the_interface_lacks_leads_nowhere() {
    let settings = RoutingSettings::default();
    assert_eq!(
        shown(&settings.routes(true, false)),
        ["fe80::/10 LeaveTable", "ff00::/8 LeaveTable", "::/0 Unreachable"]
    );
    assert!(shown(&settings.routes(true, true)).contains(&"::/0 ToInterface".to_owned()));
}

#[test]
fn direct_networks_are_not_routed_to_the_interface() {
    let settings = RoutingSettings {
        direct: networks(&["192.0.2.0/24", "192.0.2.0/24", "0.0.0.0/0"]),
        ..RoutingSettings::default()
    };
    let ipv4 = shown(&settings.routes(false, true));
    assert_eq!(ipv4.iter().filter(|route| route.starts_with("192.0.2.0")).count(), 1);
    assert!(
        !ipv4.iter().any(|route| route.contains("ToInterface")),
        "all of it is direct: {ipv4:?}"
    );
}

#[test]
fn a_kill_switch_holds_queries_of_sockets_that_are_bound_to_an_interface() {
    let of = |settings: RoutingSettings| settings.tunnel_rules(OWN, &facts());
    let bound = |rules: &[Rule]| {
        let bound = rules.iter().find(|rule| matches!(rule.selector, Selector::NamesBoundTo(..)));
        bound.unwrap().verdict
    };
    assert_eq!(bound(&of(RoutingSettings::default())), Verdict::OwnRules);
    let settings = RoutingSettings { kill_switch: true, ..RoutingSettings::default() };
    assert_eq!(bound(&settings.switch(OWN, &facts())), Verdict::Lookup(BOUND_QUERY_TABLE));
    let held = settings.kill_switch_routes(false, &facts());
    assert!(
        held.iter()
            .any(|route| route.table == BOUND_QUERY_TABLE && route.leads == RouteAction::ToSelf(3))
    );
    assert_eq!(bound(&of(settings)), Verdict::Lookup(BOUND_QUERY_TABLE));
}

#[test]
fn rules_of_a_connection_or_a_host_are_those_of_the_sets() {
    let settings = RoutingSettings { kill_switch: true, ..RoutingSettings::default() };
    let facts = facts();
    let (lead, switch) = (settings.tunnel_rules(OWN, &facts), settings.switch(OWN, &facts));
    let [in_lead, in_switch] = direct_reply_rules(facts.inbound[0]);
    assert!(lead.contains(&in_lead) && switch.contains(&in_switch));
    assert!(switch.contains(&direct_host_rule("192.0.2.7".parse().unwrap())));
    assert!(
        settings.switch(OWN_V6, &facts).contains(&direct_host_rule("2001:db8::7".parse().unwrap()))
    );
}

#[test]
fn a_service_is_a_port_with_an_optional_protocol() {
    for text in ["22", "22/tcp", "65535/udp"] {
        assert_eq!(text.parse::<Service>().unwrap().to_string(), text);
    }
    for wrong in ["", "0", "65536", "22/", "22/TCP", "tcp/22", "-1", "22 "] {
        let error = wrong.parse::<Service>().unwrap_err().to_string();
        assert!(error.contains("PORT/tcp"), "{error}");
    }
}

fn direct_hosts(addresses: &[&str]) -> DirectHosts {
    let mut hosts = DirectHosts::default();
    for address in addresses {
        hosts.open("a.example", address.parse().unwrap(), tokio::time::Instant::now());
    }
    hosts
}

#[test]
fn with_exceptions_of_names_every_query_goes_to_the_interface() {
    let direct = vec!["192.0.2.0/24".parse().unwrap()];
    let settings = RoutingSettings { direct, ..RoutingSettings::default() };
    let sorting = RoutingSettings { has_domain_exceptions: true, ..settings.clone() };
    let facts =
        MachineState { interfaces: vec![("wlan0".to_owned(), 3)], ..MachineState::default() };
    let past = |settings: &RoutingSettings| {
        let lead = settings.tunnel_rules(OWN, &facts);
        let first = lead.iter().position(|rule| rule.verdict == Verdict::Lookup(NAMES_TABLE));
        let before = lead.into_iter().take(first.expect("names are led"));
        let names = before.filter(|rule| {
            matches!(rule.selector, Selector::NamesTo(..) | Selector::NamesBoundTo(..))
        });
        names.filter(|rule| rule.verdict == Verdict::OwnRules).count()
    };
    assert!(past(&settings) > 0, "a resolver that is direct");
    assert_eq!(past(&sorting), 0);
    // Queries do not leave either after the lead is removed.
    let held = RoutingSettings { kill_switch: true, ..sorting };
    let switch = held.switch(OWN, &facts);
    let direct = switch.iter().position(|rule| matches!(rule.selector, Selector::To(_))).unwrap();
    let names = switch.iter().position(|rule| matches!(rule.selector, Selector::Names(_))).unwrap();
    assert!(names < direct);
}
