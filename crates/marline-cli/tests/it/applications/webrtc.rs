//! A page with WebRTC and a STUN server in Chromium on a machine with `marline up`: its addresses for calls are the
//! server's, even if it may use every interface, and none of its packets bypasses the tunnel.

use super::browser::{self, PLAIN};
use super::run::targets::{STUN, WAIT};
use super::up::World;
use super::{OTHER_V4, SERVER, TARGET_V4, seen_from_outside, support};

/// Gathers candidates and displays them. A frame that is never served keeps the page from finishing earlier.
fn page() -> String {
    let servers = [TARGET_V4, OTHER_V4].map(|ip| format!("'stun:{ip}:{STUN}'")).join(",");
    format!(
        "<!doctype html><title>waiting</title><pre id=out></pre>
<iframe id=hold src='http://{TARGET_V4}:{WAIT}/'></iframe>
<script>
(async () => {{
    if (location.hash == '#trusted') await navigator.mediaDevices.getUserMedia({{audio: true}});
    const pc = new RTCPeerConnection({{iceServers: [{{urls: [{servers}]}}]}});
    const all = new Promise(done => pc.onicecandidate = e => {{
        if (!e.candidate) return done();
        if (e.candidate.candidate) out.append(`${{e.candidate.candidate}}\\n`);
    }});
    pc.createDataChannel('x');
    await pc.setLocalDescription(await pc.createOffer());
    await all;
    document.title = 'gathered';
}})().catch(e => document.title = `failed: ${{e}}`).finally(() => hold.remove());
</script>"
    )
}

/// Returns the candidates in a page: lines of RFC 8839 without their first word.
fn candidates(dom: &str) -> Vec<&str> {
    dom.lines().filter_map(|line| Some(line.split_once("candidate:")?.1)).collect()
}

#[test]
fn a_page_with_webrtc_sends_nothing_around_the_tunnel() {
    let _others = support::among_others();
    let programs = [&browser::PROGRAMS[..], &["tshark"]].concat();
    let Some(mut world) = World::set("app-webrtc", &programs) else { return };
    seen_from_outside(&world.hosts);
    let web = world.dir().join("web");
    std::fs::create_dir(&web).expect("directory");
    std::fs::write(web.join("page.html"), page()).expect("write");
    browser::serve(&mut world.hosts);
    world.up("--path wifi --path lte");
    // The browser announces the name that hides its address to the local network only (RFC 6762).
    let watch = world.watch(
        "not udp port 7777 and not arp and not icmp6 and not igmp \
         and not (udp port 5353 and (dst host 224.0.0.251 or dst host ff02::fb))",
    );
    let url = browser::plain("page.html");
    let stranger = world.run(&browser::browse(world.dir(), &url, ""));
    // A page with permission for the microphone gets the addresses of all interfaces, and queries from each.
    let trust = format!(
        "--use-fake-device-for-media-stream --use-fake-ui-for-media-stream \
         --unsafely-treat-insecure-origin-as-secure=http://{TARGET_V4}:{PLAIN}"
    );
    let trusted = world.run(&browser::browse(world.dir(), &format!("{url}#trusted"), &trust));
    let around = world.seen_by(watch);
    for (dom, asking) in [(&stranger, 1), (&trusted, 3)] {
        assert_eq!(browser::title(dom), "gathered", "{dom} {}", browser::log(world.dir()));
        let candidates = candidates(dom);
        let reflexive = candidates.iter().filter(|line| line.contains("typ srflx"));
        let addresses: Vec<_> = reflexive.map(|line| line.split(' ').nth(4)).collect();
        assert!(addresses.len() >= asking, "{candidates:#?}");
        assert!(addresses.iter().all(|ip| *ip == Some(SERVER)), "{candidates:#?}");
    }
    assert_eq!(around, "");
}
