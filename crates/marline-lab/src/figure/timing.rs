//! Timing diagrams: segments as arrows between two vertical lines per path, with time running
//! downwards.

use marline_time::Instant;

use super::axis::Axis;
use super::drawing::Figure;
use super::segment_log::{Fate, Segment};
use super::svg::{Anchor, Svg, text_width};

const LEFT: f64 = 60.0;
/// Between the two lines of a path.
const LANE: f64 = 230.0;
/// Between paths: words stand there.
const GAP: f64 = 180.0;
const TOP: f64 = 84.0;
/// Labels that are nearer to each other than this become one.
const LABEL_GAP: f64 = 12.0;

#[derive(Clone, Debug)]
struct Arrow {
    path: usize,
    from_client: bool,
    sent_ms: f64,
    arrived_ms: Option<f64>,
    label: String,
}

#[derive(Clone, Debug)]
struct Note {
    path: usize,
    at_client: bool,
    at_ms: f64,
    text: String,
}

/// A timing diagram of some milliseconds of a run.
///
/// Labels that would cover each other are drawn as one with the number of those left out.
#[derive(Clone, Debug)]
pub struct TimingDiagram {
    title: String,
    paths: Vec<String>,
    range: (f64, f64),
    height: f64,
    arrows: Vec<Arrow>,
    notes: Vec<Note>,
    spans: Vec<(usize, f64, f64, String)>,
}

impl TimingDiagram {
    /// An empty diagram of paths of these names, from `from_ms` to `to_ms`.
    #[must_use]
    pub fn new(title: &str, paths: &[&str], (from_ms, to_ms): (f64, f64)) -> TimingDiagram {
        TimingDiagram {
            title: title.to_owned(),
            paths: paths.iter().map(|name| (*name).to_owned()).collect(),
            range: (from_ms, to_ms),
            height: 520.0,
            arrows: Vec::new(),
            notes: Vec::new(),
            spans: Vec::new(),
        }
    }

    /// Pixels for the whole time; 520 without.
    #[must_use]
    pub fn height(mut self, pixels: f64) -> TimingDiagram {
        self.height = pixels;
        self
    }

    /// The segments sent in its time, which runs from `zero`. `label` says what stands at one
    /// ([`Segment::describe`]); `None` leaves it out.
    #[must_use]
    pub fn segments(
        mut self,
        segments: &[Segment],
        zero: Instant,
        label: impl Fn(&Segment) -> Option<String>,
    ) -> TimingDiagram {
        let ms = |at: Instant| (at.as_nanos() as f64 - zero.as_nanos() as f64) / 1e6;
        for segment in segments {
            let sent_ms = ms(segment.sent);
            if sent_ms < self.range.0 || sent_ms > self.range.1 || segment.path >= self.paths.len()
            {
                continue;
            }
            let Some(label) = label(segment) else { continue };
            let arrived_ms = match segment.fate {
                Fate::Arrived(at) => Some(ms(at)),
                Fate::Lost => None,
            };
            let (path, from_client) = (segment.path, segment.from_client);
            self.arrows.push(Arrow { path, from_client, sent_ms, arrived_ms, label });
        }
        self
    }

    /// Words beside the line of one side of a path: a timer that fires, a decision.
    #[must_use]
    pub fn note(mut self, path: usize, at_client: bool, at_ms: f64, text: &str) -> TimingDiagram {
        self.notes.push(Note { path, at_client, at_ms, text: text.to_owned() });
        self
    }

    /// A time in which something holds for a path: it is down.
    #[must_use]
    pub fn span(mut self, path: usize, (from_ms, to_ms): (f64, f64), text: &str) -> TimingDiagram {
        self.spans.push((path, from_ms, to_ms, text.to_owned()));
        self
    }

    /// As a figure of a reproduction.
    #[must_use]
    pub fn figure(&self, name: &str, caption: &str) -> Figure {
        Figure::new(name, &self.title, caption, self.svg())
    }

    /// The drawing.
    #[must_use]
    pub fn svg(&self) -> String {
        let lanes = self.paths.len() as f64;
        let width = LEFT + GAP + lanes * (LANE + GAP);
        let width = width.max(text_width(&self.title) * 1.25 + 24.0);
        let mut svg = Svg::new(width, TOP + self.height + 24.0, &self.title);
        svg.text((12.0, 22.0), Anchor::Start, "title", &self.title);
        let time = Axis::new(self.range, false, (TOP, TOP + self.height));
        self.frame(&mut svg, &time, width);
        for (path, from_ms, to_ms, text) in &self.spans {
            self.draw_span(&mut svg, &time, (*path, *from_ms, *to_ms, text));
        }
        for arrow in &self.arrows {
            self.draw_arrow(&mut svg, &time, arrow);
        }
        self.labels(&mut svg, &time);
        for note in &self.notes {
            self.draw_note(&mut svg, &time, note);
        }
        svg.finish()
    }

    /// Where the line of a side of a path is.
    fn x(&self, path: usize, client: bool) -> f64 {
        let left = LEFT + GAP + (LANE + GAP) * path as f64;
        if client { left } else { left + LANE }
    }

    fn frame(&self, svg: &mut Svg, time: &Axis, width: f64) {
        svg.turned((16.0, TOP + self.height / 2.0), -90, Anchor::Middle, "time (ms)");
        time.draw_heights(svg, (LEFT, width - 12.0));
        for (path, name) in self.paths.iter().enumerate() {
            let (client, server) = (self.x(path, true), self.x(path, false));
            svg.text(((client + server) / 2.0, 50.0), Anchor::Middle, "title", name);
            for (x, side) in [(client, "client"), (server, "server")] {
                svg.text((x, 72.0), Anchor::Middle, "mute", side);
                svg.line((x, TOP), (x, TOP + self.height), "axis");
            }
        }
    }

    fn draw_span(&self, svg: &mut Svg, time: &Axis, span: (usize, f64, f64, &str)) {
        let (path, from_ms, to_ms, text) = span;
        if path >= self.paths.len() {
            return;
        }
        let (x, from, to) = (self.x(path, true), time.place(from_ms), time.place(to_ms));
        svg.rect((x, from), (LANE, to - from), "a inkf");
        let below = (x + LANE / 2.0, (from + 14.0).min(to));
        svg.text(below, Anchor::Middle, "mute halo", text);
    }

    fn draw_arrow(&self, svg: &mut Svg, time: &Axis, arrow: &Arrow) {
        let from = (self.x(arrow.path, arrow.from_client), time.place(arrow.sent_ms));
        let far = self.x(arrow.path, !arrow.from_client);
        let look = format!("l{}", arrow.path % super::svg::SERIES);
        let Some(arrived_ms) = arrow.arrived_ms else {
            // It ends on the way, with a cross.
            let end = (from.0 + 0.6 * (far - from.0), from.1 + 6.0);
            svg.line(from, end, "lost");
            svg.line((end.0 - 4.0, end.1 - 4.0), (end.0 + 4.0, end.1 + 4.0), "lost");
            svg.line((end.0 - 4.0, end.1 + 4.0), (end.0 + 4.0, end.1 - 4.0), "lost");
            return;
        };
        // What arrives later than the diagram ends is drawn as far as it got.
        let share = match arrived_ms > self.range.1 {
            true => (self.range.1 - arrow.sent_ms) / (arrived_ms - arrow.sent_ms).max(1e-9),
            false => 1.0,
        };
        let to = (from.0 + share * (far - from.0), time.place(arrived_ms));
        svg.line(from, to, &look);
        if share >= 1.0 {
            svg.arrow_head(from, to, &look.replace('l', "f"));
        }
    }

    /// At their senders' ends, outside of the lane; those of one burst as one.
    fn labels(&self, svg: &mut Svg, time: &Axis) {
        for path in 0..self.paths.len() {
            for client in [true, false] {
                let mut shown: Vec<(f64, &str, usize)> = Vec::new();
                let of = |arrow: &&Arrow| arrow.path == path && arrow.from_client == client;
                for arrow in self.arrows.iter().filter(of) {
                    let y = time.place(arrow.sent_ms);
                    match shown.last_mut() {
                        Some(last) if y - last.0 < LABEL_GAP => last.2 += 1,
                        _ => shown.push((y, &arrow.label, 0)),
                    }
                }
                let x = self.x(path, client);
                let (x, anchor) =
                    if client { (x - 6.0, Anchor::End) } else { (x + 6.0, Anchor::Start) };
                for (y, label, more) in shown {
                    let more = if more > 0 { format!(" (and {more})") } else { String::new() };
                    svg.text((x, y + 4.0), anchor, "halo", &format!("{label}{more}"));
                }
            }
        }
    }

    fn draw_note(&self, svg: &mut Svg, time: &Axis, note: &Note) {
        if note.path >= self.paths.len() || !time.holds(note.at_ms) {
            return;
        }
        let (x, y) = (self.x(note.path, note.at_client), time.place(note.at_ms));
        svg.mark((x, y), 0);
        // Inside the lane: outside are the labels.
        let (x, anchor) =
            if note.at_client { (x + 8.0, Anchor::Start) } else { (x - 8.0, Anchor::End) };
        svg.text((x, y - 4.0), anchor, "title halo", &note.text);
    }
}
