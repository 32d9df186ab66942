//! Timing diagrams: segments as arrows between two vertical lines per path, with time running downwards.

use marline_time::Instant;

use plotters::prelude::*;
use plotters::style::text_anchor::{HPos, VPos};

use super::axis::Axis;
use super::chart::{Chart, Frame, Label};
use super::drawing::Figure;
use super::segment_log::{Delivery, Segment};
use super::sheet::{DrawResult, FRAME, INK, LOST, MUTE, Size, TEXT, aligned, px, series};

/// Distance between the two lines of a path in pixels.
const LANE: f64 = 230.0;
/// Space for labels to the left of each path and to the right of the last one, in pixels.
const GAP: f64 = 180.0;
/// Distance in pixels below which labels are merged.
const LABEL_GAP: i32 = 12;
/// Opacity of a shaded span.
const SHADE_OPACITY: f64 = 0.15;

#[derive(Clone, Debug)]
struct Arrow {
    path: usize,
    from_client: bool,
    sent_ms: f64,
    arrived_ms: Option<f64>,
    label: String,
}

#[derive(Clone, Debug)]
struct Span {
    path: usize,
    from_ms: f64,
    to_ms: f64,
    text: String,
}

#[derive(Clone, Debug)]
struct Note {
    path: usize,
    at_client: bool,
    at_ms: f64,
    text: String,
}

/// Timing diagram of a few milliseconds of a run.
///
/// Labels that would overlap are merged into one, with the number of omitted labels.
#[derive(Clone, Debug)]
pub struct TimingDiagram {
    title: String,
    paths: Vec<String>,
    from_ms: f64,
    to_ms: f64,
    height: f64,
    arrows: Vec<Arrow>,
    notes: Vec<Note>,
    spans: Vec<Span>,
}

impl TimingDiagram {
    /// Creates an empty diagram of paths with these names, from `from_ms` to `to_ms`.
    #[must_use]
    pub fn new(title: &str, paths: &[&str], from_ms: f64, to_ms: f64) -> TimingDiagram {
        TimingDiagram {
            title: title.to_owned(),
            paths: paths.iter().map(|name| (*name).to_owned()).collect(),
            from_ms,
            to_ms,
            height: 520.0,
            arrows: Vec::new(),
            notes: Vec::new(),
            spans: Vec::new(),
        }
    }

    /// Sets the height of the time range, 520 pixels by default.
    #[must_use]
    pub fn height(mut self, pixels: f64) -> TimingDiagram {
        self.height = pixels;
        self
    }

    /// Adds the segments sent in the diagram's time range, which counts from `zero`. `label` returns a segment's
    /// label ([`Segment::describe`]), or `None` to leave the segment out.
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
            let is_within = (self.from_ms..=self.to_ms).contains(&sent_ms);
            if !is_within || segment.path >= self.paths.len() {
                continue;
            }
            let Some(label) = label(segment) else { continue };
            let arrived_ms = match segment.delivery {
                Delivery::Arrived(at) => Some(ms(at)),
                Delivery::Lost => None,
            };
            let (path, from_client) = (segment.path, segment.from_client);
            self.arrows.push(Arrow { path, from_client, sent_ms, arrived_ms, label });
        }
        self
    }

    /// Adds a note next to the line of one side of a path, such as a timer that fires or a decision.
    #[must_use]
    pub fn add_note(
        mut self,
        path: usize,
        at_client: bool,
        at_ms: f64,
        text: &str,
    ) -> TimingDiagram {
        self.notes.push(Note { path, at_client, at_ms, text: text.to_owned() });
        self
    }

    /// Adds a labeled time span of a path, such as an outage.
    #[must_use]
    pub fn span(mut self, path: usize, from_ms: f64, to_ms: f64, text: &str) -> TimingDiagram {
        self.spans.push(Span { path, from_ms, to_ms, text: text.to_owned() });
        self
    }

    /// Builds a figure of a reproduction.
    #[must_use]
    pub fn figure(&self, name: &str, caption: &str) -> Figure {
        Figure::new(name, &self.title, caption, self.svg())
    }

    /// Draws the diagram as SVG.
    #[must_use]
    pub fn svg(&self) -> String {
        let width = GAP + self.paths.len() as f64 * (LANE + GAP);
        let time = Axis::between(self.from_ms, self.to_ms, false).downwards();
        let size = Size { width: width as i32, height: self.height as i32 };
        let frame = Frame::new(&self.title, Axis::without_labels(width), time, size);
        let (labels, empty) = (("", "time (ms)"), self.paths.is_empty());
        Frame { labels, free: (40, 0), empty, ..frame }.draw(|chart| {
            self.lanes(chart)?;
            self.spans.iter().try_for_each(|span| self.draw_span(chart, span))?;
            self.arrows.iter().try_for_each(|arrow| self.draw_arrow(chart, arrow))?;
            self.labels(chart)?;
            self.notes.iter().try_for_each(|note| self.draw_note(chart, note))
        })
    }

    /// Position of the line of one side of a path.
    fn x(&self, path: usize, client: bool) -> f64 {
        let left = GAP + (LANE + GAP) * path as f64;
        if client { left } else { left + LANE }
    }

    fn lanes(&self, chart: &Chart<'_>) -> DrawResult {
        let time = chart.y_range();
        let middle = |style: TextStyle<'static>| aligned(&style, HPos::Center, VPos::Bottom);
        for (path, name) in self.paths.iter().enumerate() {
            let ends = [(self.x(path, true), "client"), (self.x(path, false), "server")];
            let title = middle(INK.font(14.0, FontStyle::Bold));
            let (x, y) = ((ends[0].0 + ends[1].0) / 2.0, time.start);
            Label { text: name, style: title, x, y, right: 0, down: -22 }.draw(chart)?;
            for (x, side) in ends {
                let style = middle(MUTE.text());
                Label { text: side, style, x, y, right: 0, down: -4 }.draw(chart)?;
                let line = vec![(x, time.start), (x, time.end)];
                chart.plotting_area().draw(&PathElement::new(line, FRAME.line(10)))?;
            }
        }
        Ok(())
    }

    fn draw_span(&self, chart: &Chart<'_>, span: &Span) -> DrawResult {
        let Span { path, from_ms, to_ms, ref text } = *span;
        if path >= self.paths.len() {
            return Ok(());
        }
        let (client, server) = (self.x(path, true), self.x(path, false));
        let shade = INK.color().mix(SHADE_OPACITY).filled();
        let area = Rectangle::new([(client, from_ms), (server, to_ms)], shade);
        chart.plotting_area().draw(&area)?;
        let style = aligned(&MUTE.text(), HPos::Center, VPos::Top);
        let (x, y) = ((client + server) / 2.0, from_ms);
        Label { text, style, x, y, right: 0, down: 3 }.draw(chart)
    }

    fn draw_arrow(&self, chart: &Chart<'_>, arrow: &Arrow) -> DrawResult {
        let from = (self.x(arrow.path, arrow.from_client), arrow.sent_ms);
        let far = self.x(arrow.path, !arrow.from_client);
        let area = chart.plotting_area();
        let Some(arrived_ms) = arrow.arrived_ms else {
            // A lost segment ends halfway, with a cross.
            let half_way = from.0 + 0.6 * (far - from.0);
            let (begin, end) =
                (area.map_coordinate(&from), area.map_coordinate(&(half_way, from.1)));
            let end = (end.0, end.1 + px(6));
            let screen = area.use_screen_coord();
            screen.draw(&PathElement::new([begin, end], LOST.line(15)))?;
            return screen.draw(&Cross::new(end, px(4), LOST.line(15)));
        };
        // A segment that arrives after the diagram's end is drawn up to that end.
        let share = match arrived_ms > self.to_ms {
            true => (self.to_ms - arrow.sent_ms) / (arrived_ms - arrow.sent_ms).max(1e-9),
            false => 1.0,
        };
        let tone = series(arrow.path);
        let to = (from.0 + share * (far - from.0), arrived_ms);
        area.draw(&PathElement::new(vec![from, to], tone.line(15)))?;
        if share < 1.0 {
            return Ok(());
        }
        let (begin, end) = (area.map_coordinate(&from), area.map_coordinate(&to));
        area.use_screen_coord()
            .draw(&Polygon::new(head(end.0, end.1, end.0 - begin.0, end.1 - begin.1), tone.fill()))
    }

    /// Draws labels at the senders' ends, outside the lane. Labels of one burst are merged.
    fn labels(&self, chart: &Chart<'_>) -> DrawResult {
        for path in 0..self.paths.len() {
            for client in [true, false] {
                let mut shown: Vec<(i32, f64, &str, usize)> = Vec::new();
                let of = |arrow: &&Arrow| arrow.path == path && arrow.from_client == client;
                for arrow in self.arrows.iter().filter(of) {
                    let y = chart.backend_coord(&(0.0, arrow.sent_ms)).1;
                    match shown.last_mut() {
                        Some(last) if y - last.0 < px(LABEL_GAP) => last.3 += 1,
                        _ => shown.push((y, arrow.sent_ms, &arrow.label, 0)),
                    }
                }
                let (h, right) = if client { (HPos::Right, -6) } else { (HPos::Left, 6) };
                for (_, sent_ms, label, more) in shown {
                    let more = if more > 0 { format!(" (and {more})") } else { String::new() };
                    let text = format!("{label}{more}");
                    let (x, y) = (self.x(path, client), sent_ms);
                    let style = aligned(&INK.text(), h, VPos::Center);
                    Label { text: &text, style, x, y, right, down: 0 }.draw(chart)?;
                }
            }
        }
        Ok(())
    }

    fn draw_note(&self, chart: &Chart<'_>, note: &Note) -> DrawResult {
        let time = chart.y_range();
        if note.path >= self.paths.len() || !(time.start..=time.end).contains(&note.at_ms) {
            return Ok(());
        }
        let (x, y) = (self.x(note.path, note.at_client), note.at_ms);
        chart.plotting_area().draw(&Circle::new((x, y), px(3), series(0).fill()))?;
        // Notes are inside the lane, because labels are outside.
        let (h, right) = if note.at_client { (HPos::Left, 8) } else { (HPos::Right, -8) };
        let style = aligned(&INK.font(TEXT, FontStyle::Bold), h, VPos::Bottom);
        Label { text: &note.text, style, x, y, right, down: -2 }.draw(chart)
    }
}

/// Corners of the head of an arrow that ends at a point and has this horizontal and vertical extent.
fn head(x: i32, y: i32, width: i32, height: i32) -> [(i32, i32); 3] {
    let (long, wide) = (f64::from(px(7)), f64::from(px(3)));
    let (dx, dy) = (f64::from(width), f64::from(height));
    let length = dx.hypot(dy).max(1.0);
    let (ux, uy) = (dx / length, dy / length);
    let at = |back: f64, aside: f64| {
        let (left, up) = (back * ux + aside * uy, back * uy - aside * ux);
        (x - left.round() as i32, y - up.round() as i32)
    };
    [(x, y), at(long, wide), at(long, -wide)]
}
