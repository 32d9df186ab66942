use super::*;
use crate::{LossConfig, OutageMode, PRESETS, RateConfig, Reorder, trace::TraceError};
use marline_time::SeedTree;

fn parse(text: &str) -> DuplexSpec {
    text.parse().unwrap_or_else(|error| panic!("{error}"))
}

#[test]
fn a_description_sets_both_directions_and_prefixes_one() {
    let spec =
        parse("rate=20M, delay=10ms,queue=80ms,loss=1%,jitter=5ms,up.rate=5M,down.queue=64kB");
    assert_eq!(spec.down.rate, RateSpec::Constant(Rate::from_mbit(20)));
    assert_eq!(spec.up.rate, RateSpec::Constant(Rate::from_mbit(5)));
    assert_eq!(spec.up.queue, QueueLimit::Time(Duration::from_millis(80)));
    assert_eq!(spec.down.queue, QueueLimit::Bytes(64_000));
    assert_eq!((spec.up.loss, spec.down.loss), (0.01, 0.01));
    assert_eq!(spec.up.jitter, Jitter::Uniform(Duration::from_millis(5)));
    assert_eq!(parse(""), DuplexSpec::default());
}

#[test]
fn every_item_survives_the_round_trip() {
    let texts = [
        "rate=0s:20M+10s:0+12s:20M/30s,delay=1ms",
        "rate=walkout:30M,up.rate=walkout:9999k",
        "trace=ATT-LTE-driving@30s,rtt=s042:verizon@5s,lost=s048:att",
        "ping=s042:verizon,queue=1.5MB",
        "ge=2s:100ms:50%:0.1%,drop=7+3,reorder=1%:20ms,duplicate=0.1%,corrupt=0.3%",
        "down=10s-15s+20s-21s,flap=10s:500ms,outage=suspend",
        "rewrite=2%,strip=mptcp:syn+dss+77:rest,block=mp_join:synack+mss,down.block=none",
        "strip=mptcp:rest@2.5s+dss@1ms,block=mp_join@3s,down.strip=sack",
        "renumber=yes,down.renumber=not-sack,rebind=5s,split=500B,down.split=1kB:first",
        "coalesce=2ms,thin=4,swallow=1%,up.thin=none,up.coalesce=none,up.renumber=no",
        "jitter=normal:2ms,overtaking=yes,up.jitter=none",
        "rate=leaving:40M,up.rate=staying:1500k",
        "mtu=1280B,up.mtu=1.4kB:silent,down.mtu=none",
        "radio=lte,delay=1ms",
        "lte,radio=umts:400ms",
        "wifi,radio=wifi:meter",
        "radio=lte,radio=none",
        "loss=0.0001,up.loss=12.5%,down.delay=123456789ns,delay=1h",
        "",
    ];
    for text in texts.into_iter().chain(PRESETS.map(|(name, _)| name)) {
        let spec = parse(text);
        let shown = spec.to_string();
        assert_eq!(parse(&shown), spec, "{text} -> {shown}");
    }
    let spec = parse("drop=7+3,reorder=1%:20ms,outage=suspend");
    assert_eq!(spec.up.drop, [3, 7]);
    let reorder = Reorder { probability: 0.01, extra: Duration::from_millis(20) };
    assert_eq!(spec.down.faults.reorder, Some(reorder));
    assert_eq!(spec.down.outage.mode, OutageMode::Suspend);
}

#[test]
fn later_items_override_a_preset() {
    let spec = parse("lte,loss=2%,up.rate=1M");
    assert_eq!(spec.down.rate, RateSpec::Constant(Rate::from_mbit(20)));
    assert_eq!(spec.up.rate, RateSpec::Constant(Rate::from_mbit(1)));
    assert_eq!(spec.up.loss, 0.02);
}

#[test]
fn mistakes_are_named_exactly() {
    let error = |text: &str| text.parse::<DuplexSpec>().unwrap_err().to_string();
    assert_eq!(
        error("delay=1ms,rate=20Q"),
        "link description: `rate=20Q`: unknown unit `Q`; known: G, M, k"
    );
    assert!(error("wfi").contains("presets: wifi, lte, umts, walkout"));
    assert!(error("delay=1ms,lte").contains("can only be first"));
    assert!(error("delay=1ms,,loss=1%").contains("an item between two commas is empty"));
    assert!(error("up.speed=3").contains("unknown key `speed`; known: rate, trace,"));
    assert!(error("loss=1.5").contains("not between 0 and 100 %"));
    assert!(error("down=5s-3s").contains("ends before it begins"));
    assert!(error("down=1s-3s+2s-4s").contains("begins before the previous outage"));
    assert!(error("rate=5s:1M+5s:2M").contains("do not ascend"));
    assert!(error("rate=0s:0").contains("above zero"));
    assert!(error("rate=0").contains("use `down=`"));
    assert!(error("trace=../../etc/passwd").contains("not a valid trace name"));
    assert!(error("rtt=s042").contains("FILE:CARRIER"));
    assert!(error("ge=1s").contains("GOOD:BAD"));
    assert!(error("drop=0").contains("start at 1"));
    assert!(error("queue=12").contains("neither a time"));
    assert!(error("strip=mtcp").contains("unknown TCP option `mtcp`; known: mptcp, mp_capable,"));
    assert!(error("strip=1").contains("unknown TCP option"));
    assert!(error("block=dss:first").contains("known: all, syn, synack, rest"));
    assert!(error("split=0B").contains("must have 1 to 65535"));
    assert!(error("split=9B:last").contains("must be `first`"));
    assert!(error("thin=1").contains("between 2 and 1000"));
    assert!(error("strip=dss@soon").contains("unknown unit"));
    assert!(error("renumber=some").contains("one of no, yes, not-sack"));
    assert!(error("mtu=1280").contains("needs a unit"));
    assert!(error("mtu=100B").contains("between 576B and 65535B"));
    assert!(error("mtu=1280B:loud").contains("must be `silent`"));
    assert!(error("outage=maybe").contains("one of kill, suspend"));
}

#[test]
fn traces_are_resolved_by_direction() {
    let seeds = SeedTree::new(1);
    let mut asked = Vec::new();
    let spec = parse("trace=X,rtt=p:a");
    let config = spec.resolve(&seeds, &mut |file| {
        asked.push(file.to_owned());
        match file {
            "X.up" => Some(b"1\n2\n".to_vec()),
            "X.gz" => Some(b"1\n1\n2\n".to_vec()),
            "p.csv" => Some(b"carrier,seq,t_send_ms,rtt_ms\na,1,0,9\na,2,200,8\n".to_vec()),
            _ => None,
        }
    });
    let config = config.unwrap();
    let RateConfig::Trace(up) = &config.up.rate else { panic!("{:?}", config.up.rate) };
    let RateConfig::Trace(down) = &config.down.rate else { panic!("{:?}", config.down.rate) };
    assert_eq!((up.trace.len(), down.trace.len()), (2, 3));
    assert_eq!(asked, ["X.up.gz", "X.up", "p.csv", "X.down.gz", "X.down", "X.gz", "p.csv"]);
    assert!(config.up.delay.trace.is_some() && config.up.loss == LossConfig::default());
    let missing = spec.resolve(&seeds, &mut |_| None).unwrap_err().to_string();
    assert_eq!(missing, "trace `X` not found; looked for X.up.gz, X.up, X.gz, X");
    let garbage = spec.resolve(&seeds, &mut |_| Some(b"?".to_vec())).unwrap_err();
    assert!(matches!(garbage, ResolveError::Trace(TraceError { line: 1, .. })), "{garbage}");
}

#[test]
fn a_walk_is_shared_by_both_directions() {
    let config = parse("walkout,up.rate=walkout:10M").resolve(&SeedTree::new(4), &mut |_| None);
    let config = config.unwrap();
    assert_eq!(config.up.loss.steps, config.down.loss.steps);
    assert!(config.up.loss.steps.is_some() && config.up.rate != config.down.rate);
}

#[test]
fn random_text_never_panics() {
    use marline_time::{PcgRng, Rng};
    let mut rng = PcgRng::new(9, 9);
    let base = b"lte,rate=0s:20M+10s:0/30s,ge=2s:100ms:50%,down=10s-15s,up.rtt=a:b@3s,drop=3+7";
    for _ in 0..20_000 {
        let mut bytes = base.to_vec();
        for _ in 0..=rng.below(5) {
            let place = rng.below(bytes.len() as u64) as usize;
            bytes[place] = b",=.:+-/@%0159kMsBx\xc3"[rng.below(19) as usize];
        }
        if let Ok(spec) = String::from_utf8_lossy(&bytes).parse::<DuplexSpec>() {
            assert_eq!(spec.to_string().parse(), Ok(spec));
        }
    }
}
