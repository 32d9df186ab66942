//! Named link presets. The numbers are rounded values from common experience, not fitted to a measurement. For a
//! recorded link, use a trace.

/// Name and description (in `DuplexSpec` syntax) of each preset.
pub const PRESETS: [(&str, &str); 4] = [
    // A good access point in the next room, shared with neighbors.
    ("wifi", "rate=40M,up.rate=20M,delay=4ms,jitter=uniform:2ms,queue=100ms,loss=0.1%"),
    // A stationary phone in a loaded cell: deep buffers, no visible loss.
    ("lte", "rate=20M,up.rate=8M,delay=22ms,jitter=uniform:4ms,queue=300ms"),
    // The generation before LTE: slow, with buffers of one second.
    ("umts", "rate=3M,up.rate=1M,delay=55ms,jitter=uniform:10ms,queue=1s"),
    // A walk out of the access point's range and back; see the `walkout` model.
    ("walkout", "rate=walkout:30M,delay=4ms,jitter=uniform:2ms,queue=200kB"),
];

/// The description of a preset.
pub(crate) fn find(name: &str) -> Option<&'static str> {
    PRESETS.iter().find(|(known, _)| *known == name).map(|(_, text)| *text)
}
