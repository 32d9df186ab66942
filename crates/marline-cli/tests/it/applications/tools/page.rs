//! Chromium loads a page of 120 connections inside `marline run` while WiFi fails, compared with LTE alone undisturbed.

use std::process::Stdio;
use std::time::{Duration, Instant};

use super::super::run::World;
use super::super::{PATIENCE, Side, TARGET_V4, browser, crowd, lost_to_outages, support};

/// Number of requests after which WiFi fails.
const BEFORE: usize = 5;
/// Loads over both paths, and over LTE alone.
const LOADS: usize = 5;
/// Largest ratio of the medians.
const MAX_RATIO: f64 = 1.15;

/// Loads the page once, and returns the time until its `load` event in milliseconds. WiFi fails if `dies`.
fn load(world: &mut World, paths: &str, dies: bool) -> f64 {
    let shown = browser::browse(world.dir(), &browser::plain("page.html"), "");
    let before = browser::requests(world.dir()).len();
    let options = format!("--invite-file invite {paths} --dns {TARGET_V4}");
    let mut command = world.command_with(&options, &format!("rm -rf profile; $run {shown}"));
    let browser =
        world.hosts.net.spawn(Side::Client, command.stdout(Stdio::piped())).expect("spawn");
    if dies {
        let begun = Instant::now();
        while browser::requests(world.dir()).len() < before + BEFORE {
            assert!(begun.elapsed() < PATIENCE, "no request: {}", browser::log(world.dir()));
            std::thread::sleep(Duration::from_millis(5));
        }
        world.hosts.net.command("wifi", "down").expect("WiFi dies");
    }
    let output = browser.wait_with_output().expect("output");
    if dies {
        world.hosts.net.command("wifi", "up").expect("WiFi returns");
    }
    let (dom, _) = support::texts(&output);
    let title = browser::title(&dom).to_owned();
    let ms = crowd::load_time_ms(&title);
    ms.unwrap_or_else(|| panic!("{title}: {}", browser::log(world.dir())))
}

fn median(mut times: Vec<f64>) -> f64 {
    times.sort_by(f64::total_cmp);
    times[times.len() / 2]
}

#[test]
#[ignore = "nightly: measures times"]
fn a_page_loads_about_as_fast_while_wifi_fails_as_over_lte() {
    let _alone = support::lock_exclusively();
    let Some(mut world) = World::set("tool-page", &browser::PROGRAMS) else { return };
    crowd::set(&mut world.hosts);
    let mut times = [Vec::new(), Vec::new()];
    for _ in 0..LOADS {
        times[0].push(load(&mut world, "--path wifi --path lte", true));
        times[1].push(load(&mut world, "--path lte", false));
    }
    println!("load times in ms, WiFi fails: {:.0?}; LTE alone: {:.0?}", times[0], times[1]);
    let [failing, alone] = times.map(median);
    println!("page: {failing:.0} ms while WiFi fails, {alone:.0} ms over LTE alone");
    assert!(failing <= MAX_RATIO * alone, "{failing:.0} ms of {alone:.0} ms");
    assert!(lost_to_outages(&world.hosts) > 0, "no packet was on WiFi when it failed");
}
