use super::*;

fn read<T>(text: &str, ask: impl Fn(&mut Parameters<'_>) -> T) -> Result<T, String> {
    let given: Vec<(&str, &str)> =
        text.split(',').filter_map(|word| word.split_once('=')).collect();
    let mut parameters = Parameters::new(PolicyKind::Scheduler, "thing", &given);
    let value = ask(&mut parameters);
    parameters.finish().map(|_| value).map_err(|error| error.to_string())
}

const SHORT: Duration = Duration::from_millis(5);

#[test]
fn durations_have_units() {
    let ask = |text: &str| read(text, |p| p.duration("after", SHORT));
    assert_eq!(ask(""), Ok(SHORT));
    assert_eq!(ask("after=200ms"), Ok(Duration::from_millis(200)));
    assert_eq!(ask("after=1.5s"), Ok(Duration::from_millis(1_500)));
    assert_eq!(ask("after=0.1us"), Ok(Duration::from_nanos(100)));
    assert_eq!(ask("after=2min"), Ok(Duration::from_secs(120)));
    assert_eq!(ask("after=0"), Ok(Duration::ZERO));
    for bad in ["7", "ms", "-3ms", "1e3ms", "5 ms", "5m", "NaNs", "infs", "1.2.3s"] {
        let error = ask(&format!("after={bad}")).unwrap_err();
        let expected =
            format!("scheduler `thing`: `after={bad}`: expected a duration such as `200ms`");
        assert_eq!(error, expected);
    }
    let or_off = |text: &str| read(text, |p| p.duration_or_off("after", Some(SHORT)));
    assert_eq!(or_off("after=off"), Ok(None));
    assert_eq!(or_off("after=1s"), Ok(Some(Duration::from_secs(1))));
    assert_eq!(or_off(""), Ok(Some(SHORT)));
}

#[test]
fn numbers_have_ranges_and_may_be_percentages() {
    let ask = |text: &str| read(text, |p| p.number("gain", 0.5, 0.0..=2.0));
    assert_eq!(ask(""), Ok(0.5));
    assert_eq!(ask("gain=25%"), Ok(0.25));
    assert_eq!(ask("gain=2"), Ok(2.0));
    let error = ask("gain=2.01").unwrap_err();
    assert!(error.ends_with("expected a number from 0 to 2, or a percentage"), "{error}");
    let ask = |text: &str| read(text, |p| p.number_or_unlimited("budget", 0.5, 0.0..=2.0));
    assert_eq!([ask(""), ask("budget=25%")], [Ok(0.5), Ok(0.25)]);
    assert_eq!(ask("budget=unlimited"), Ok(f64::INFINITY));
    let error = ask("budget=2.01").unwrap_err();
    assert!(error.ends_with("a number from 0 to 2, a percentage, or `unlimited`"), "{error}");
    let ask = |text: &str| read(text, |p| p.count("copies", 2, 1..=8));
    assert_eq!(ask("copies=8"), Ok(8));
    assert!(ask("copies=0").unwrap_err().ends_with("expected a whole number from 1 to 8"));
}

#[test]
fn bytes_words_and_switches() {
    let ask = |text: &str| read(text, |p| p.bytes("up-to", 64_000));
    assert_eq!(
        [ask(""), ask("up-to=1.5MB"), ask("up-to=12B")],
        [Ok(64_000), Ok(1_500_000), Ok(12)]
    );
    assert!(ask("up-to=12").is_err());
    let ask = |text: &str| read(text, |p| p.word("rule", "one", &[("one", 1), ("two", 2)]));
    assert_eq!([ask(""), ask("rule=two")], [Ok(1), Ok(2)]);
    assert!(ask("rule=three").unwrap_err().ends_with("expected one of one, two"));
    let ask = |text: &str| read(text, |p| p.on_off("wait", true));
    assert_eq!([ask(""), ask("wait=on"), ask("wait=off")], [Ok(true), Ok(true), Ok(false)]);
    assert!(ask("wait=yes").is_err());
}

#[test]
fn an_unknown_parameter_is_an_error_that_lists_the_known_ones() {
    let ask = |text: &str| read(text, |p| (p.on_off("wait", true), p.count("copies", 2, 1..=8)));
    let error = ask("copies=99,wiat=off").unwrap_err();
    assert_eq!(error, "scheduler `thing` has no parameter `wiat`; known: wait, copies");
    let error = ask("wait=off,wait=off").unwrap_err();
    assert_eq!(error, "scheduler `thing`: parameter `wait` is given twice");
    let error = read("wait=off", |_| ()).unwrap_err();
    assert_eq!(error, "scheduler `thing` has no parameter `wait`; it takes no parameters");
}

#[test]
fn a_removed_parameter_is_refused_and_names_its_replacement() {
    let ask = |text: &str| {
        read(text, |p| {
            p.declare_removed("memory", "`seconds` is what it was");
            p.count("seconds", 2, 1..=8)
        })
    };
    assert_eq!(ask("seconds=3"), Ok(3));
    let error = ask("seconds=3,memory=5").unwrap_err();
    assert_eq!(
        error,
        "scheduler `thing` no longer has the parameter `memory`: `seconds` is what it was"
    );
    let error = ask("memory=5,secs=3").unwrap_err();
    assert!(error.contains("no longer has the parameter `memory`"), "{error}");
    assert!(ask("secs=3").unwrap_err().ends_with("known: seconds"));
}

#[test]
fn a_policy_can_refuse_inconsistent_parameters() {
    let ask = |text: &str| {
        read(text, |p| {
            let (low, high) = (p.count("low", 1, 0..=9), p.count("high", 5, 0..=9));
            if high < low {
                p.refuse("low", "not more than `high`");
            }
        })
    };
    assert_eq!(ask("low=5"), Ok(()));
    let error = ask("low=6").unwrap_err();
    assert_eq!(error, "scheduler `thing`: `low=6`: expected not more than `high`");
}

#[test]
fn defaults_are_listed_as_they_would_be_written() {
    let mut parameters = Parameters::new(PolicyKind::Scheduler, "thing", &[]);
    parameters.duration("a", Duration::from_micros(1_500));
    parameters.duration_or_off("b", None);
    parameters.bytes("c", 1_448);
    parameters.number("d", 1.25, 0.0..=2.0);
    parameters.duration("e", Duration::ZERO);
    let listed = parameters.finish().unwrap();
    let defaults: Vec<&str> = listed.iter().map(|info| info.default.as_str()).collect();
    assert_eq!(defaults, ["1500us", "off", "1448B", "1.25", "0"]);
}
