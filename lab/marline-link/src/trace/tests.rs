use super::*;
use flate2::{Compression, write::GzEncoder};
use marline_time::{Duration, Rate};
use std::io::Write as _;

fn gzip(text: &str) -> Vec<u8> {
    let mut encoder = GzEncoder::new(Vec::new(), Compression::fast());
    encoder.write_all(text.as_bytes()).unwrap();
    encoder.finish().unwrap()
}

#[test]
fn mahimahi_is_read_plain_and_compressed() {
    let text = "1\n1\n4\n8\n";
    let plain = Opportunities::parse("a", text.as_bytes()).unwrap();
    assert_eq!(plain, Opportunities::parse("a", &gzip(text)).unwrap());
    assert_eq!(plain.period(), Duration::from_millis(8));
    let times: Vec<u64> = (0..9).map(|n| plain.time_ms(n)).collect();
    assert_eq!(times, [1, 1, 4, 8, 9, 9, 12, 16, 17]);
    for time in 0..40 {
        let number = plain.first_at(time);
        assert!(plain.time_ms(number) >= time, "{time}");
        assert!(number == 0 || plain.time_ms(number - 1) < time, "{time}");
    }
    assert_eq!(plain.mean_rate(), Rate::over(4 * 1504, Duration::from_millis(8)));
}

#[test]
fn bad_mahimahi_files_are_named_with_line_and_reason() {
    let error = |bytes: &[u8]| Opportunities::parse("x.down", bytes).unwrap_err().to_string();
    assert_eq!(error(b""), "x.down: the file is empty");
    assert_eq!(error(b"\n\n"), "x.down: the file contains no delivery opportunities");
    assert_eq!(error(b"0\n0\n"), "x.down: the last time is 0 ms; it must be later");
    assert_eq!(error(b"3\nzwei\n"), "x.down:2: time `zwei` is not a valid number");
    assert_eq!(error(b"3\n-1\n"), "x.down:2: time `-1` is not a valid number");
    assert_eq!(error(b"9\n3\n"), "x.down:2: time 3 ms is earlier than in the previous line");
    assert_eq!(error(b"9\n\xff\xfe\n"), "x.down:2: not text (invalid UTF-8)");
    assert_eq!(error(b"99999999999\n"), "x.down:1: time `99999999999` is not a valid number");
    let whole = gzip("1\n2\n3\n4\n5\n6\n7\n8\n9\n");
    for cut in 2..whole.len() {
        assert!(error(&whole[..cut]).starts_with("x.down: gzip: "), "{cut}");
    }
}

const PINGS: &str = "carrier,seq,t_send_ms,rtt_ms\na,1,0,40\na,2,200,\nb,1,10,7.5\na,3,400,60.5\n\
                     b,2,210,8\n";

#[test]
fn pings_are_separated_by_carrier_and_held_over_losses() {
    let trace = PingTrace::parse("p.csv", PINGS.as_bytes(), "a").unwrap();
    let ms = Duration::from_millis;
    assert_eq!(trace.period(), ms(600));
    assert_eq!(trace.rtt_at(ms(0)), ms(40));
    assert_eq!(trace.rtt_at(ms(399)), ms(40));
    assert_eq!(trace.rtt_at(ms(400)), Duration::from_micros(60_500));
    assert_eq!(trace.rtt_at(ms(601)), ms(40));
    let lost: Vec<bool> = [199, 200, 399, 400, 800].map(|t| trace.lost_at(ms(t))).to_vec();
    assert_eq!(lost, [false, true, true, false, true]);
    assert_eq!(PingTrace::parse_all("p.csv", PINGS.as_bytes()).unwrap().len(), 2);
}

#[test]
fn bad_ping_files_are_named_with_line_and_reason() {
    let error = |text: &str| PingTrace::parse("p", text.as_bytes(), "a").unwrap_err().to_string();
    let head = "carrier,seq,t_send_ms,rtt_ms\n";
    assert_eq!(error(head), "p: the file contains no probes");
    assert!(error("t_ms\n").starts_with("p:1: the first line must be `carrier,seq"));
    let row = |rows: &str| error(&format!("{head}{rows}"));
    assert_eq!(row("a,1,0\n"), "p:2: 3 fields, expected 4 (truncated file?)");
    assert_eq!(row("a,1,0,4,5\n"), "p:2: 5 fields, expected 4 (truncated file?)");
    assert_eq!(row("a,1,x,4\n"), "p:2: t_send_ms `x` is not a valid number");
    assert_eq!(row("a,1,0,-4\n"), "p:2: rtt_ms -4 is out of range");
    assert_eq!(row("a,1,0,NaN\n"), "p:2: rtt_ms NaN is out of range");
    assert_eq!(row("a,1,5,4\na,2,5,4\n"), "p:3: t_send_ms is not later than in the previous line");
    assert_eq!(row("a,1,5,\na,2,7,\n"), "p: carrier `a`: no probe was answered");
    assert_eq!(row("a,1,5,1\n"), "p: carrier `a`: fewer than two probes");
    assert_eq!(row("b,1,5,1\nb,2,6,1\n"), "p: unknown carrier `a`; known: b");
}

#[test]
fn arrivals_become_achieved_rates() {
    let text = "t_ms,len_bytes,tcp_seq\n99.9,250,1001\n99.5,1000,1\n350.25,1250,1251\n";
    let trace = ArrivalTrace::parse("e", &gzip(text)).unwrap();
    assert_eq!(trace.longest_pause(), Duration::from_micros(250_350));
    let steps = trace.rate_steps(Duration::from_millis(100), 0).unwrap();
    let rates: Vec<u64> = steps.points().iter().map(|(_, rate)| rate.bits_per_s()).collect();
    assert_eq!(rates, [100_000, 0, 0, 100_000]);
    assert_eq!(steps.period(), Some(Duration::from_millis(400)));
    assert!(trace.rate_steps(Duration::ZERO, 0).is_err());
    let error = |rows: &str| ArrivalTrace::parse("e", rows.as_bytes()).unwrap_err().to_string();
    assert_eq!(
        error("t_ms,len_bytes,tcp_seq\n9,1,1\n3,1,1\n"),
        "e:3: t_ms is more than 5 ms earlier than in a previous line"
    );
    assert_eq!(error("t_ms,len_bytes,tcp_seq\n"), "e: the file contains no arrivals");
    assert_eq!(
        error("t_ms,len_bytes,tcp_seq\n5,99999999999,1\n"),
        "e:2: len_bytes `99999999999` is not a valid number"
    );
}

#[test]
fn random_bytes_never_panic() {
    use marline_time::{PcgRng, Rng};
    let mut rng = PcgRng::new(5, 5);
    let texts = ["1\n2\n", PINGS, "t_ms,len_bytes,tcp_seq\n1,2,3\n"];
    for round in 0..3_000 {
        let text = texts[round % 3];
        let mut bytes = if round % 2 == 0 { gzip(text) } else { text.as_bytes().to_vec() };
        for _ in 0..=rng.below(4) {
            let place = rng.below(bytes.len() as u64) as usize;
            bytes[place] = rng.next_u32() as u8;
        }
        bytes.truncate(rng.below(bytes.len() as u64 + 1) as usize);
        let _ = Opportunities::parse("x", &bytes);
        let _ = PingTrace::parse("x", &bytes, "a");
        let _ = ArrivalTrace::parse("x", &bytes);
    }
}
