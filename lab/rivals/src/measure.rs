//! Tasks. Each is measured in a separate world and has several metrics.

use std::thread::sleep;
use std::time::Duration;

use anyhow::Context;

use crate::clock::{ms, now};
use crate::observe::{Client, memory_megabytes, processes, processor_seconds};
use crate::stats::quantile;
use crate::systems::{Kind, Programs, System, Transports};
use crate::world::{LTE, Links, World};

/// Measured values by metric; `None`: the event never happened.
pub type Values = Vec<(String, Option<f64>)>;

/// A running system.
pub struct Bench<'a> {
    /// The world in which it runs.
    pub world: &'a mut World,
    /// Transports through the system.
    pub transports: &'a Transports,
    /// The system.
    pub system: System,
    /// Paths of the programs.
    pub programs: &'a Programs,
}

/// Scene and workload of a task.
#[derive(Copy, Clone, Debug, PartialEq)]
pub enum TaskKind {
    /// Echoes without other traffic.
    Idle,
    /// One stream in each direction, without other traffic.
    Bulk,
    /// Echoes during a stream, in each direction.
    Loaded,
    /// WiFi dies silently for this many seconds, with echoes at this interval.
    Death { seconds: u64, interval_ms: u64 },
    /// WiFi's interface goes down.
    Signaled,
    /// Echoes, then a stream, with loss.
    Loss,
    /// A page without failures, and another one while WiFi dies.
    Page,
    /// A call during which WiFi dies.
    Call,
    /// CPU time.
    Processor,
    /// Memory of 1,000 connections.
    Memory,
}

/// A task.
#[derive(Copy, Clone, Debug)]
pub struct Task {
    /// Row on the command line.
    pub row: &'static str,
    /// Scene and workload.
    pub what: TaskKind,
    /// True for datagrams.
    pub datagrams: bool,
    /// Loss on both paths in percent.
    pub loss: Option<f64>,
}

const fn task(row: &'static str, what: TaskKind) -> Task {
    Task { row, what, datagrams: false, loss: None }
}

const fn datagram_task(row: &'static str, what: TaskKind) -> Task {
    Task { row, what, datagrams: true, loss: None }
}

const fn loss_task(percent: f64) -> Task {
    Task { row: "loss", what: TaskKind::Loss, datagrams: false, loss: Some(percent) }
}

/// All tasks, the longest first.
pub const TASKS: [Task; 16] = [
    task("death30", TaskKind::Death { seconds: 30, interval_ms: 50 }),
    datagram_task("death30", TaskKind::Death { seconds: 30, interval_ms: 50 }),
    task("death10", TaskKind::Death { seconds: 10, interval_ms: 20 }),
    task("death10", TaskKind::Death { seconds: 10, interval_ms: 50 }),
    task("death10", TaskKind::Death { seconds: 10, interval_ms: 200 }),
    datagram_task("death10", TaskKind::Death { seconds: 10, interval_ms: 50 }),
    task("loaded", TaskKind::Loaded),
    loss_task(1.0),
    loss_task(5.0),
    task("bulk", TaskKind::Bulk),
    task("page", TaskKind::Page),
    task("call", TaskKind::Call),
    task("signaled", TaskKind::Signaled),
    task("idle", TaskKind::Idle),
    datagram_task("idle", TaskKind::Idle),
    task("cpu", TaskKind::Processor),
];

/// The task that measures the memory of processes.
pub const MEMORY: Task = task("memory", TaskKind::Memory);

impl Task {
    /// Returns true if nothing else may run at the same time.
    pub fn is_alone(self) -> bool {
        self.what == TaskKind::Processor
    }

    /// Returns true if the task applies to the system.
    pub fn applies(self, system: System) -> bool {
        let without_wifi = matches!(system.kind, Kind::Tcp { wifi: false, .. });
        let bbr = matches!(system.kind, Kind::Tcp { bbr: true, .. });
        let dies = matches!(
            self.what,
            TaskKind::Death { .. } | TaskKind::Signaled | TaskKind::Call | TaskKind::Page
        );
        let in_kernel = matches!(system.kind, Kind::Tcp { .. } | Kind::Kernel { .. });
        (!self.datagrams || system.has_datagrams())
            && !(without_wifi && dies)
            && !(bbr && !matches!(self.what, TaskKind::Bulk | TaskKind::Loaded | TaskKind::Loss))
            && !(in_kernel && self.what == TaskKind::Memory)
            && !(without_wifi && self.what == TaskKind::Processor)
    }

    /// Links of the task's world.
    pub fn links(self) -> Links {
        Links { loss: self.loss, fast: self.what == TaskKind::Processor }
    }

    /// Runs the measurement.
    ///
    /// # Errors
    /// The system does not work.
    pub fn measure(self, bench: &mut Bench) -> anyhow::Result<Values> {
        match self.what {
            TaskKind::Idle => bench.measure_idle(self.datagrams),
            TaskKind::Bulk => bench.bulk(),
            TaskKind::Loaded => bench.measure_loaded(),
            TaskKind::Death { seconds, interval_ms } => {
                bench.death(seconds, interval_ms, self.datagrams)
            }
            TaskKind::Signaled => bench.measure_signaled(),
            TaskKind::Loss => bench.loss(self.loss.unwrap_or_default()),
            TaskKind::Page => bench.page(),
            TaskKind::Call => bench.call(),
            TaskKind::Processor => bench.processor(),
            TaskKind::Memory => bench.memory(),
        }
    }
}

/// Time for a system to set up its paths before it is measured.
const WARM_UP: Duration = Duration::from_secs(2);
/// An echo answered within this time used WiFi: halfway between the round trips of 16 and 60 ms.
const OVER_WIFI_NS: u64 = 38_000_000;
const SECOND_NS: u64 = 1_000_000_000;

impl Bench<'_> {
    fn client(&self, arguments: &[&str]) -> anyhow::Result<Client> {
        Client::start(self.world, self.programs, arguments)
    }

    /// Starts echoes.
    fn echo(&self, interval_ms: u64, datagrams: bool) -> anyhow::Result<Client> {
        let interval = interval_ms.to_string();
        let mut client = match &self.transports.datagrams {
            Some(way) if datagrams => self.client(&["udp-echo", way, &interval])?,
            _ => self.client(&["echo", &self.transports.stream, &interval])?,
        };
        client.await_events("answer", 1, Duration::from_secs(15))?;
        Ok(client)
    }

    fn measure_idle(&mut self, datagrams: bool) -> anyhow::Result<Values> {
        let client = self.echo(50, datagrams)?;
        sleep(WARM_UP);
        let (start, bytes) = (now(), self.world.interface_bytes(LTE.0)?);
        sleep(Duration::from_secs(10));
        let bits = (self.world.interface_bytes(LTE.0)? - bytes) as f64 * 8.0;
        let end = now();
        sleep(Duration::from_millis(500));
        let echoes = echoes(&client, start, end);
        let times: Vec<f64> = echoes.iter().filter_map(|echo| echo.round_trip).map(ms).collect();
        let kilobits = bits / ms(end - start);
        let lost = 100.0 * (1.0 - times.len() as f64 / echoes.len().max(1) as f64);
        let p99 = quantile(&times, 0.99);
        Ok(match datagrams {
            true => vec![("udp p99".into(), p99), ("udp lost".into(), Some(lost))],
            false => {
                let p50 = quantile(&times, 0.5);
                vec![("p50".into(), p50), ("p99".into(), p99), ("lte".into(), Some(kilobits))]
            }
        })
    }

    /// Returns the megabits per second of a stream over some seconds after a warm-up, and the 95th percentile of
    /// echoes.
    fn stream(
        &mut self,
        direction: &str,
        seconds: u64,
        echoing: bool,
    ) -> anyhow::Result<(f64, Option<f64>)> {
        let echo = if echoing { Some(self.echo(50, false)?) } else { None };
        let mut bulk = self.client(&[direction, &self.transports.stream])?;
        bulk.await_events("bytes", 1, Duration::from_secs(15))?;
        sleep(WARM_UP);
        let start = now();
        sleep(Duration::from_secs(seconds));
        let end = now();
        let rate = rate(&bulk, start, end).context("no bytes were received")?;
        let p95 = echo.map(|echo| {
            // An unanswered echo counts as the time it has waited.
            let times = echoes_or_waiting(&echo, start, end);
            quantile(&times, 0.95)
        });
        Ok((rate, p95.flatten()))
    }

    fn bulk(&mut self) -> anyhow::Result<Values> {
        let (down, _) = self.stream("down", 6, false)?;
        let (up, _) = self.stream("up", 6, false)?;
        Ok(vec![("down".into(), Some(down)), ("up".into(), Some(up))])
    }

    fn measure_loaded(&mut self) -> anyhow::Result<Values> {
        let (down, down_p95) = self.stream("down", 6, true)?;
        let (up, up_p95) = self.stream("up", 6, true)?;
        Ok(vec![
            ("down p95".into(), down_p95),
            ("down rate".into(), Some(down)),
            ("up p95".into(), up_p95),
            ("up rate".into(), Some(up)),
        ])
    }

    fn loss(&mut self, percent: f64) -> anyhow::Result<Values> {
        let client = self.echo(50, false)?;
        sleep(WARM_UP);
        let start = now();
        sleep(Duration::from_secs(10));
        let times = echoes_or_waiting(&client, start, now());
        drop(client);
        let (down, _) = self.stream("down", 6, false)?;
        Ok(vec![
            (format!("{percent} p99"), quantile(&times, 0.99)),
            (format!("{percent} down"), Some(down)),
        ])
    }

    fn death(&mut self, seconds: u64, interval_ms: u64, datagrams: bool) -> anyhow::Result<Values> {
        let client = self.echo(interval_ms, datagrams)?;
        sleep(WARM_UP);
        let dead = now();
        self.world.set_wifi_silent(true)?;
        sleep(Duration::from_secs(seconds));
        self.world.set_wifi_silent(false)?;
        let back = await_return(&client, now(), Duration::from_secs(15));
        let gap = longest_gap(&client, dead, now());
        let name = if datagrams { "udp".to_owned() } else { format!("{interval_ms}") };
        Ok(vec![(format!("{name} gap"), Some(gap)), (format!("{name} back"), back)])
    }

    fn measure_signaled(&mut self) -> anyhow::Result<Values> {
        let client = self.echo(50, false)?;
        sleep(WARM_UP);
        let dead = now();
        self.world.set_wifi_up(true)?;
        sleep(Duration::from_secs(5));
        self.world.set_wifi_up(false)?;
        let back = await_return(&client, now(), Duration::from_secs(10));
        let gap = longest_gap(&client, dead, now());
        Ok(vec![("gap".into(), Some(gap)), ("back".into(), back)])
    }

    fn page(&mut self) -> anyhow::Result<Values> {
        let mut client = self.client(&["page", &self.transports.stream, "3"])?;
        client.await_events("start", 3, Duration::from_secs(60))?;
        sleep(Duration::from_millis(300));
        self.world.set_wifi_silent(true)?;
        let dying = client.await_events("loaded", 3, Duration::from_secs(10));
        self.world.set_wifi_silent(false)?;
        // A page that never loads is a result, not an error.
        let loaded = dying.or_else(|_| client.await_events("loaded", 3, Duration::from_secs(50)));
        let took = |values: &Vec<u64>| ms(values[1] - values[0]);
        let clean = client.events("loaded").get(1).map(took);
        let dying = loaded.ok().and_then(|loaded| loaded.get(2).map(took));
        Ok(vec![("clean".into(), clean), ("dying".into(), dying)])
    }

    fn call(&mut self) -> anyhow::Result<Values> {
        let mut client = match &self.transports.datagrams {
            Some(way) => self.client(&["udp-call", way, "12"])?,
            None => self.client(&["call", &self.transports.stream, "12"])?,
        };
        client.await_events("start", 1, Duration::from_secs(15))?;
        sleep(Duration::from_secs(3));
        self.world.set_wifi_silent(true)?;
        sleep(Duration::from_secs(6));
        self.world.set_wifi_silent(false)?;
        client.await_events("theirs", 1, Duration::from_secs(30))?;
        let ends = [client.events("ours"), client.events("theirs")].concat();
        let (sent, good) =
            ends.iter().fold((0, 0), |(sent, good), end| (sent + end[0], good + end[1]));
        let bad = 100.0 * (1.0 - good as f64 / sent as f64);
        Ok(vec![("bad".into(), Some(bad))])
    }

    fn processor(&mut self) -> anyhow::Result<Values> {
        let client = self.echo(50, false)?;
        sleep(WARM_UP);
        let ids = |world: &World, client: &Client| [processes(world), vec![client.id()]].concat();
        let all = ids(self.world, &client);
        let before = processor_seconds(&all)?;
        sleep(Duration::from_secs(5));
        let minute = 12.0 * (processor_seconds(&all)? - before);
        drop(client);
        let mut bulk = self.client(&["down", &self.transports.stream])?;
        bulk.await_events("bytes", 10, Duration::from_secs(15))?;
        let all = ids(self.world, &bulk);
        let (start, before) = (now(), processor_seconds(&all)?);
        sleep(Duration::from_secs(4));
        let seconds = processor_seconds(&all)? - before;
        let gigabytes =
            rate(&bulk, start, now()).context("no bytes were received")? * ms(now() - start) / 8e6;
        Ok(vec![("gigabyte".into(), Some(seconds / gigabytes)), ("minute".into(), Some(minute))])
    }

    fn memory(&mut self) -> anyhow::Result<Values> {
        let mut one = self.client(&["connections", &self.transports.stream, "20"])?;
        one.await_events("open", 1, Duration::from_secs(30))?;
        let system = |world: &World| -> Vec<u32> {
            world.system.iter().map(|process| process.child.id()).collect()
        };
        // The library runs only in the neutral processes.
        let library = self.system.kind == Kind::MarlineLibrary;
        let base = if library { processes(self.world) } else { system(self.world) };
        let before = memory_megabytes(&base)?;
        let mut many = self.client(&["connections", &self.transports.stream, "1000"])?;
        many.await_events("open", 1, Duration::from_secs(60))?;
        sleep(Duration::from_secs(1));
        let mut after = memory_megabytes(&base)?;
        if library {
            after += memory_megabytes(&[many.id()])?;
        }
        Ok(vec![("memory".into(), Some(after - before))])
    }
}

/// An echo.
struct Echo {
    /// Send time, nanoseconds.
    sent: u64,
    /// Round trip, nanoseconds; `None`: not answered.
    round_trip: Option<u64>,
}

/// The echoes sent between two times.
fn echoes(client: &Client, start: u64, end: u64) -> Vec<Echo> {
    let answers: std::collections::BTreeMap<u64, u64> =
        client.events("answer").iter().rev().map(|event| (event[0], event[1])).collect();
    let sent = client.events("sent");
    let sent = sent.iter().filter(|event| (start..end).contains(&event[1]));
    let echo = |event: &Vec<u64>| {
        let round_trip = answers.get(&event[0]).map(|time| time - event[1]);
        Echo { sent: event[1], round_trip }
    };
    sent.map(echo).collect()
}

/// Round trips of [`echoes`], ms; an unanswered echo counts as the time it has waited.
fn echoes_or_waiting(client: &Client, start: u64, end: u64) -> Vec<f64> {
    let (echoes, now) = (echoes(client, start, end), now());
    echoes.iter().map(|echo| ms(echo.round_trip.unwrap_or(now - echo.sent))).collect()
}

/// The longest time without an answer in ms, counted from half a second before `dead`.
fn longest_gap(client: &Client, dead: u64, end: u64) -> f64 {
    let mut times: Vec<u64> = client.events("answer").iter().map(|event| event[1]).collect();
    times.retain(|time| *time + SECOND_NS / 2 >= dead);
    times.push(end);
    let gaps = times.windows(2).map(|pair| pair[1].saturating_sub(pair[0]));
    ms(gaps.max().unwrap_or(0))
}

/// Waits until the echoes use WiFi again. Returns the seconds from its return to the start of the first second in
/// which nine of ten echoes were answered as fast as over WiFi. `None`: not in time.
fn await_return(client: &Client, returned: u64, within: Duration) -> Option<f64> {
    loop {
        sleep(Duration::from_millis(200));
        let known = now() - SECOND_NS / 10;
        let is_fast = |echo: &Echo| echo.round_trip.is_some_and(|time| time <= OVER_WIFI_NS);
        let echoes: Vec<(u64, bool)> =
            echoes(client, returned, known).iter().map(|echo| (echo.sent, is_fast(echo))).collect();
        for (first, _) in echoes.iter().filter(|(first, fast)| *fast && first + SECOND_NS <= known)
        {
            let second =
                echoes.iter().filter(|(sent, _)| (*first..first + SECOND_NS).contains(sent));
            let (all, fast) =
                second.fold((0, 0), |(all, fast), (_, is)| (all + 1, fast + usize::from(*is)));
            if fast * 10 >= all * 9 {
                return Some((first - returned) as f64 / 1e9);
            }
        }
        if known > returned + within.as_nanos() as u64 {
            return None;
        }
    }
}

/// The receive rate between two times in megabits per second.
fn rate(client: &Client, start: u64, end: u64) -> Option<f64> {
    let events = client.events("bytes");
    let first = events.iter().rev().find(|event| event[1] <= start)?;
    let last = events.iter().rev().find(|event| event[1] <= end)?;
    Some((last[0] - first[0]) as f64 * 8e3 / (last[1] - first[1]).max(1) as f64)
}
