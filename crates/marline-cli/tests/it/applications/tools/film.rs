//! Chromium plays a film with hls.js and a short buffer inside `marline run`, while WiFi fails and returns.

use std::path::PathBuf;
use std::process::Stdio;
use std::time::{Duration, Instant};

use marline_testkit::need;

use super::super::run::World;
use super::super::run::targets::WAIT;
use super::super::{PATIENCE, Side, TARGET_V4, browser, lost_to_outages, support};

/// Length of the film in seconds.
const SECONDS: u32 = 24;
/// Number of requests after which WiFi fails: the page, the script, the list, and two segments.
const BEFORE: usize = 5;
/// Time that WiFi does not work.
const DEAD: Duration = Duration::from_secs(8);

/// Returns the page. Its title contains the result; a frame that is never served keeps the page from finishing earlier.
fn page() -> String {
    format!(
        "<!doctype html><title>waiting</title><video id=v muted></video>
<iframe id=hold src='http://{TARGET_V4}:{WAIT}/'></iframe>
<script src=hls.min.js></script>
<script>
let started = false, stalls = 0;
const errors = [];
v.onplaying = () => started = true;
v.onwaiting = () => stalls += started && v.currentTime < v.duration - 0.5;
const end = how => {{ document.title = `${{how}}, ${{stalls}} stalls, errors: ${{errors}}`; hold.remove(); }};
v.onended = () => end('complete');
const hls = new Hls({{maxBufferLength: 6, maxMaxBufferLength: 6}});
hls.on(Hls.Events.ERROR, (_, error) => {{
    errors.push(error.details);
    if (error.fatal) end('failed');
}});
hls.loadSource('film.m3u8');
hls.attachMedia(v);
v.play();
</script>"
    )
}

/// Returns hls.js, if it is installed.
fn hls() -> Option<PathBuf> {
    let modules = PathBuf::from(std::env::var_os("NODE_PATH").unwrap_or_default());
    let file = modules.join("hls.js/dist/hls.min.js");
    if !file.is_file() {
        need::skip("hls.js is not installed in $NODE_PATH");
        return None;
    }
    Some(file)
}

#[test]
#[ignore = "nightly: needs hls.js and ffmpeg"]
fn a_film_does_not_stall_while_wifi_fails() {
    let _others = support::among_others();
    let Some(hls) = hls() else { return };
    let programs = [&browser::PROGRAMS[..], &["ffmpeg"]].concat();
    let Some(mut world) = World::set("tool-film", &programs) else { return };
    let web = world.dir().join("web");
    std::fs::create_dir(&web).expect("directory");
    std::fs::write(web.join("page.html"), page()).expect("write");
    std::fs::copy(hls, web.join("hls.min.js")).expect("a copy");
    world.hosts.shell(
        Side::Server,
        &format!(
            "ffmpeg -loglevel error -f lavfi -i testsrc2=s=640x360:r=25 -t {SECONDS} -c:v libx264 -preset ultrafast \
             -pix_fmt yuv420p -g 50 -b:v 3M -minrate 3M -maxrate 3M -bufsize 1M -f hls -hls_time 2 \
             -hls_list_size 0 web/film.m3u8"
        ),
    );
    browser::serve(&mut world.hosts);
    let flags = "--autoplay-policy=no-user-gesture-required";
    let shown = browser::browse(world.dir(), &browser::plain("page.html"), flags);
    let mut command = world.command(&format!("$run {shown}"));
    let browser =
        world.hosts.net.spawn(Side::Client, command.stdout(Stdio::piped())).expect("spawn");
    let begun = Instant::now();
    while browser::requests(world.dir()).len() < BEFORE {
        assert!(begun.elapsed() < PATIENCE, "no request: {}", browser::log(world.dir()));
        std::thread::sleep(Duration::from_millis(50));
    }
    world.hosts.net.command("wifi", "down").expect("WiFi dies");
    std::thread::sleep(DEAD);
    world.hosts.net.command("wifi", "up").expect("WiFi returns");
    let output = browser.wait_with_output().expect("output");
    let (dom, _) = support::texts(&output);
    println!("film: {}", browser::title(&dom));
    assert_eq!(
        browser::title(&dom),
        "complete, 0 stalls, errors: ",
        "{}",
        browser::log(world.dir())
    );
    assert!(lost_to_outages(&world.hosts) > 0, "no packet was on WiFi when it failed");
}
