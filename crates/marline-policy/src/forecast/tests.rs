use super::*;

const MS: fn(u64) -> Duration = Duration::from_millis;

/// A reproducible generator of numbers from 0 to 1.
fn numbers() -> impl FnMut() -> f64 {
    let mut state = 88_172_645_463_325_252_u64;
    move || {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        (state >> 11) as f64 / (1_u64 << 53) as f64
    }
}

/// Share of answers below each forecast quantile, excluding the first 200.
fn calibration(mut answer_ms: impl FnMut(usize, f64) -> Option<f64>) -> [f64; 3] {
    let (mut forecaster, mut below) = (Forecaster::default(), [0_u32; 3]);
    let mut unit = numbers();
    let mut now = Instant::from_secs(1);
    let (rounds, learning) = (5_200, 200);
    for round in 0..rounds {
        now += MS(50);
        let forecast = forecaster.forecast(now);
        let answer = answer_ms(round, unit());
        if round >= learning {
            for (count, quantile) in
                below.iter_mut().zip([Quantile::P50, Quantile::P90, Quantile::P99])
            {
                let forecast = forecast.answer(quantile).unwrap().as_secs_f64() * 1e3;
                *count += u32::from(answer.is_some_and(|ms| ms <= forecast));
            }
        }
        let expected = forecaster.on_sent(now, 0);
        match answer {
            Some(ms) => {
                let rtt = Duration::from_secs_f64(ms / 1e3);
                forecaster.on_answer(now, rtt, Duration::ZERO, &expected);
            }
            None => forecaster.on_lost(now),
        }
    }
    below.map(|count| f64::from(count) / f64::from(rounds as u32 - learning as u32))
}

fn assert_calibrated(shares: [f64; 3]) {
    assert!((0.42..=0.58).contains(&shares[0]), "{shares:?}");
    assert!((0.87..=0.93).contains(&shares[1]), "{shares:?}");
    assert!((0.98..=0.998).contains(&shares[2]), "{shares:?}");
}

#[test]
fn quantiles_hold_for_any_distribution() {
    // Uniform, heavy-tailed, alternating between two states, and with losses (no answer).
    assert_calibrated(calibration(|_, unit| Some(40.0 + 20.0 * unit)));
    assert_calibrated(calibration(|_, unit| Some(20.0 + 2.0 / (1.0 - unit).sqrt())));
    assert_calibrated(calibration(|round, unit| {
        Some(if round / 100 % 2 == 0 { 30.0 } else { 60.0 } + 5.0 * unit)
    }));
    assert_calibrated(calibration(|_, unit| (unit > 0.005).then_some(30.0 + unit)));
}

#[test]
fn a_pause_makes_a_path_that_moves_uncertain_and_a_steady_one_not() {
    let width = |forecaster: &Forecaster, now| {
        let forecast = forecaster.forecast(now);
        forecast.answer(Quantile::P90).unwrap() - forecast.answer(Quantile::P50).unwrap()
    };
    let mut ages = [(true, 2), (false, 1)].map(|(moves, most)| {
        let mut forecaster = Forecaster::default();
        let mut unit = numbers();
        let mut now = Instant::from_secs(1);
        for _ in 0..100 {
            now += Duration::from_secs(1);
            let rtt = if moves { 30.0 + 60.0 * unit() } else { 50.0 };
            forecaster.on_answer(
                now,
                Duration::from_secs_f64(rtt / 1e3),
                Duration::ZERO,
                &Expected::default(),
            );
        }
        let soon = width(&forecaster, now + MS(10));
        (width(&forecaster, now + Duration::from_secs(30)).as_secs_f64() / soon.as_secs_f64(), most)
    });
    ages.sort_by(|a, b| b.0.total_cmp(&a.0));
    assert!(ages[0].0 > f64::from(ages[0].1) && ages[0].1 == 2, "{ages:?}");
    assert!(ages[1].0 < 1.1, "{ages:?}");
}

#[test]
fn trouble_is_counted_by_episodes_and_fades() {
    let mut forecaster = Forecaster::default();
    let mut now = Instant::from_secs(1);
    forecaster.on_answer(now, MS(40), Duration::ZERO, &Expected::default());
    let risk = |forecaster: &Forecaster, now| forecaster.forecast(now).risk(MS(100));
    assert_eq!(risk(&forecaster, now), 0.0);
    // Losses within a round trip are one episode. One episode in ten seconds is a risk of 0.01 per 0.1 s.
    for _ in 0..5 {
        now += MS(5);
        forecaster.on_lost(now);
    }
    assert!((risk(&forecaster, now) - 0.01).abs() < 0.001, "{}", risk(&forecaster, now));
    now += MS(500);
    forecaster.on_lost(now);
    assert!(risk(&forecaster, now) > 0.018);
    assert!(risk(&forecaster, now + Duration::from_secs(20)) < 0.005);
}

#[test]
fn a_packet_train_measures_the_rate_of_the_path() {
    let mut forecaster = Forecaster::default();
    // 30 segments every second, sent at once, which a link of 8 Mbit/s spreads over 30 ms.
    for burst in 1..5 {
        let sent_at = Instant::from_secs(burst);
        for segment in 0..30 {
            forecaster.on_delivered(sent_at + MS(40 + segment), sent_at, 1_000);
        }
    }
    let rate = forecaster.rate().unwrap().bits_per_s();
    assert!((7_500_000..8_500_000).contains(&rate), "{rate}");
}

#[test]
fn a_path_that_was_slow_is_believed_to_be_fast_again_by_one_answer() {
    let mut forecaster = Forecaster::default();
    let mut now = Instant::from_secs(1);
    for _ in 0..20 {
        now += MS(300);
        forecaster.on_answer(now, MS(2_000), Duration::ZERO, &Expected::default());
    }
    now += Duration::from_secs(2);
    forecaster.on_answer(now, MS(50), Duration::ZERO, &Expected::default());
    let forecast = forecaster.forecast(now);
    assert!(forecast.answer(Quantile::P90).unwrap() < MS(100), "{forecast:?}");
}

#[test]
fn our_own_queue_does_not_count_in_the_path_forecast() {
    let mut forecaster = Forecaster::default();
    let mut now = Instant::from_secs(1);
    // 8 Mbit/s, 20 segments at once: the last waits for 19 ms behind the others.
    for _ in 0..20 {
        now += MS(500);
        let expected: Vec<_> = (0..20).map(|_| forecaster.on_sent(now, 1_000)).collect();
        for (segment, expected) in (1..).zip(expected) {
            let answered_at = now + MS(40 + segment);
            forecaster.on_delivered(answered_at, now, 1_000);
            forecaster.on_answer(
                answered_at,
                answered_at.since(now),
                forecaster.own_delay(&expected, 1_000),
                &expected,
            );
        }
    }
    let near = |time: Option<Duration>, ms: u64| {
        let time = time.unwrap();
        assert!(time.abs_diff(MS(ms)) < MS(3), "{time:?}");
    };
    now += MS(500);
    near(forecaster.forecast(now).answer(Quantile::P50), 41);
    forecaster.on_sent(now, 20_000);
    near(forecaster.forecast(now).answer_after(10_000, Quantile::P50), 71);
    near(forecaster.forecast(now + MS(10)).answer_after(10_000, Quantile::P50), 61);
    assert!(!Forecaster::default().forecast(now).is_known());
}

#[test]
fn a_bad_time_is_over_when_trouble_stays_away_for_longer_than_it_did() {
    let forecast = |troubles| Forecast::with_quantiles([MS(100); 3], troubles, None);
    // Twice a second, and once in ten seconds. Right after trouble, both risks are equal.
    for (troubles, risk) in [(2.0, 0.2), (0.1, 0.01)] {
        let now = forecast(troubles);
        assert!((now.ongoing_trouble_risk(MS(100)) - risk).abs() < 1e-5);
    }
    let untroubled = |troubles, untroubled_ms| {
        let troubles = troubles / trouble_decay(untroubled_ms);
        Forecast { since_trouble_ms: untroubled_ms, ..forecast(troubles) }
    };
    let after = |troubles, ms| {
        let later = untroubled(troubles, ms);
        (later.ongoing_trouble_risk(MS(100)), later.risk(MS(100)))
    };
    // Five seconds are ten times the usual distance between episodes, or half of it.
    let ((often, often_risk), (seldom, seldom_risk)) = (after(2.0, 5_000), after(0.1, 5_000));
    assert!(often < 0.001 && often_risk > 0.1, "{often} {often_risk}");
    assert!(seldom > 0.0055 && seldom_risk > 0.005, "{seldom} {seldom_risk}");
    assert_eq!(untroubled(0.0, 1).ongoing_trouble_risk(MS(100)), 0.0);
    assert_eq!(forecast(50.0).ongoing_trouble_risk(MS(100)), 1.0);
}
