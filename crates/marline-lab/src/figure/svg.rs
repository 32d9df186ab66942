//! SVG elements as text.

use std::fmt::Write as _;

/// Colours of series; the next one has the first again.
pub(super) const SERIES: usize = 7;

/// The classes of the line of a series: those of one colour differ in their dashes.
pub(super) fn stroke(series: usize) -> String {
    format!("l l{} d{}", series % SERIES, (series + 3 * (series / SERIES)) % SERIES)
}

/// What an SVG's own style sheet says; every drawing has the same, so that many in one page do not
/// disturb each other.
const STYLE: &str = "\
.mf{font:12px system-ui,sans-serif}\
.mf .bg{fill:#fff}.mf text{fill:#222}.mf .mute{fill:#666}.mf .title{font-size:14px;font-weight:600}\
.mf .long{font-size:11.5px}\
.mf .axis{stroke:#444;fill:none}.mf .grid{stroke:#e4e4e4;fill:none}\
.mf .ref{stroke:#888;stroke-dasharray:3 3;fill:none}.mf .ink{stroke:#222;fill:none}.mf .inkf{fill:#222}\
.mf .halo{stroke:#fff;stroke-width:3px;paint-order:stroke}.mf .lost{stroke:#c03000;fill:none}\
.mf .none{fill:#ddd}.mf .l{fill:none;stroke-width:1.8}.mf .a{fill-opacity:.15;stroke:none}\
.mf .l0{stroke:#0072b2}.mf .f0{fill:#0072b2}.mf .l1{stroke:#d55e00}.mf .f1{fill:#d55e00}\
.mf .l2{stroke:#009e73}.mf .f2{fill:#009e73}.mf .l3{stroke:#b0578d}.mf .f3{fill:#b0578d}\
.mf .l4{stroke:#c98500}.mf .f4{fill:#c98500}.mf .l5{stroke:#3a9bd9}.mf .f5{fill:#3a9bd9}\
.mf .l6{stroke:#333}.mf .f6{fill:#333}\
@media(prefers-color-scheme:dark){\
.mf .bg{fill:#16181c}.mf text{fill:#e6e6e6}.mf .mute{fill:#a0a0a0}\
.mf .axis{stroke:#aaa}.mf .grid{stroke:#30343a}.mf .ref{stroke:#888}.mf .ink{stroke:#e6e6e6}\
.mf .inkf{fill:#e6e6e6}.mf .halo{stroke:#16181c}.mf .lost{stroke:#ff8a65}.mf .none{fill:#3a3d42}\
.mf .l0{stroke:#4aa8e0}.mf .f0{fill:#4aa8e0}.mf .l1{stroke:#f28a3c}.mf .f1{fill:#f28a3c}\
.mf .l2{stroke:#2cc39a}.mf .f2{fill:#2cc39a}.mf .l3{stroke:#e08dbd}.mf .f3{fill:#e08dbd}\
.mf .l4{stroke:#e6b030}.mf .f4{fill:#e6b030}.mf .l5{stroke:#8ccbf2}.mf .f5{fill:#8ccbf2}\
.mf .l6{stroke:#ddd}.mf .f6{fill:#ddd}}\
.mf .d0{stroke-dasharray:none}.mf .d1{stroke-dasharray:7 3}.mf .d2{stroke-dasharray:2 3}\
.mf .d3{stroke-dasharray:9 3 2 3}.mf .d4{stroke-dasharray:5 2}.mf .d5{stroke-dasharray:1 2}\
.mf .d6{stroke-dasharray:12 4}.mf .dark text.cell,.mf text.dark{fill:#111}.mf text.light{fill:#fff}";

/// Where a text is held.
#[derive(Copy, Clone, Debug)]
pub(super) enum Anchor {
    Start,
    Middle,
    End,
}

impl Anchor {
    const fn word(self) -> &'static str {
        match self {
            Anchor::Start => "start",
            Anchor::Middle => "middle",
            Anchor::End => "end",
        }
    }
}

/// A mark whose shape says something.
#[derive(Copy, Clone, Debug)]
pub(super) enum Shape {
    Ring,
    Triangle,
    Cross,
}

/// A drawing in the making.
#[derive(Debug)]
pub(super) struct Svg {
    width: f64,
    height: f64,
    title: String,
    body: String,
}

/// Width of a text of 12 px, generously: what it is drawn with is not known here.
pub(super) fn text_width(text: &str) -> f64 {
    7.0 * text.chars().count() as f64
}

/// A coordinate: a tenth of a pixel is enough.
fn at(value: f64) -> String {
    let text = format!("{value:.1}");
    let text = text.strip_suffix(".0").unwrap_or(&text);
    if text == "-0" { "0".to_owned() } else { text.to_owned() }
}

/// Text as it may stand in markup.
#[must_use]
pub fn escape(text: &str) -> String {
    let mut escaped = String::with_capacity(text.len());
    for c in text.chars() {
        match c {
            '&' => escaped.push_str("&amp;"),
            '<' => escaped.push_str("&lt;"),
            '>' => escaped.push_str("&gt;"),
            '"' => escaped.push_str("&quot;"),
            '\'' => escaped.push_str("&#39;"),
            // XML has no other control characters.
            c if c.is_control() && !matches!(c, '\n' | '\t') => escaped.push('\u{fffd}'),
            c => escaped.push(c),
        }
    }
    escaped
}

impl Svg {
    pub(super) fn new(width: f64, height: f64, title: &str) -> Svg {
        Svg { width, height, title: title.to_owned(), body: String::new() }
    }

    fn push(&mut self, element: std::fmt::Arguments<'_>) {
        // Writing to a String cannot fail.
        let _ = self.body.write_fmt(element);
        self.body.push('\n');
    }

    pub(super) fn text(&mut self, (x, y): (f64, f64), anchor: Anchor, class: &str, text: &str) {
        let (x, y, anchor, text) = (at(x), at(y), anchor.word(), escape(text));
        let class = if class.is_empty() { String::new() } else { format!(" class=\"{class}\"") };
        self.push(format_args!(
            "<text x=\"{x}\" y=\"{y}\" text-anchor=\"{anchor}\"{class}>{text}</text>"
        ));
    }

    /// The line above everything; smaller where it would not fit.
    pub(super) fn heading(&mut self, (x, y): (f64, f64), text: &str) {
        let fits = x + 1.2 * text_width(text) < self.width;
        self.text((x, y), Anchor::Start, if fits { "title" } else { "title long" }, text);
    }

    /// A text that is turned by `degrees` clockwise around its anchor.
    pub(super) fn turned(&mut self, (x, y): (f64, f64), degrees: i32, anchor: Anchor, text: &str) {
        let (x, y, anchor, text) = (at(x), at(y), anchor.word(), escape(text));
        self.push(format_args!(
            "<text x=\"{x}\" y=\"{y}\" text-anchor=\"{anchor}\" \
             transform=\"rotate({degrees} {x} {y})\">{text}</text>"
        ));
    }

    pub(super) fn line(&mut self, from: (f64, f64), to: (f64, f64), class: &str) {
        let (x1, y1, x2, y2) = (at(from.0), at(from.1), at(to.0), at(to.1));
        self.push(format_args!(
            "<line x1=\"{x1}\" y1=\"{y1}\" x2=\"{x2}\" y2=\"{y2}\" class=\"{class}\"/>"
        ));
    }

    /// A line through points; `close`: back to the first.
    pub(super) fn path(&mut self, points: &[(f64, f64)], close: bool, class: &str) {
        let mut d = String::new();
        let mut last = String::new();
        for (x, y) in points {
            let point = format!("{} {}", at(*x), at(*y));
            // Points that fall on each other make the file longer and nothing else.
            if point != last {
                d.push(if d.is_empty() { 'M' } else { 'L' });
                d.push_str(&point);
            }
            last = point;
        }
        if close {
            d.push('Z');
        }
        self.push(format_args!("<path d=\"{d}\" class=\"{class}\"/>"));
    }

    pub(super) fn rect(&mut self, (x, y): (f64, f64), (w, h): (f64, f64), class: &str) {
        let (x, y, w, h) = (at(x), at(y), at(w.max(0.0)), at(h.max(0.0)));
        self.push(format_args!(
            "<rect x=\"{x}\" y=\"{y}\" width=\"{w}\" height=\"{h}\" class=\"{class}\"/>"
        ));
    }

    /// A rectangle of a colour of its own.
    pub(super) fn tile(&mut self, (x, y): (f64, f64), (w, h): (f64, f64), colour: [u8; 3]) {
        let (x, y, w, h, [r, g, b]) = (at(x), at(y), at(w), at(h), colour);
        self.push(format_args!(
            "<rect x=\"{x}\" y=\"{y}\" width=\"{w}\" height=\"{h}\" fill=\"#{r:02x}{g:02x}{b:02x}\"/>"
        ));
    }

    /// The mark of a series around a point.
    pub(super) fn mark(&mut self, (x, y): (f64, f64), series: usize) {
        let class = format!("f{}", series % SERIES);
        let r = 3.4;
        match series % 4 {
            0 => {
                let (x, y) = (at(x), at(y));
                self.push(format_args!(
                    "<circle cx=\"{x}\" cy=\"{y}\" r=\"{r}\" class=\"{class}\"/>"
                ));
            }
            1 => self.rect((x - r, y - r), (2.0 * r, 2.0 * r), &class),
            2 => self.path(&[(x, y - r - 1.0), (x + r, y + r), (x - r, y + r)], true, &class),
            _ => self.path(
                &[(x, y - r - 1.0), (x + r, y), (x, y + r + 1.0), (x - r, y)],
                true,
                &class,
            ),
        }
    }

    /// A shape around a point, in the colour of a series.
    pub(super) fn shape(&mut self, (x, y): (f64, f64), shape: Shape, series: usize) {
        let r = 3.2;
        match shape {
            Shape::Ring => {
                let (x, y) = (at(x), at(y));
                self.push(format_args!(
                    "<circle cx=\"{x}\" cy=\"{y}\" r=\"{r}\" class=\"l l{series}\"/>"
                ));
            }
            Shape::Triangle => {
                let corners = [(x, y - r - 1.5), (x + r + 0.6, y + r), (x - r - 0.6, y + r)];
                self.path(&corners, true, &format!("f{series}"));
            }
            Shape::Cross => {
                let class = format!("l l{series}");
                self.line((x - r, y - r), (x + r, y + r), &class);
                self.line((x - r, y + r), (x + r, y - r), &class);
            }
        }
    }

    /// An interval of confidence: a line with caps.
    pub(super) fn whisker(&mut self, x: f64, (from, to): (f64, f64), class: &str) {
        self.line((x, from), (x, to), class);
        self.line((x - 3.0, from), (x + 3.0, from), class);
        self.line((x - 3.0, to), (x + 3.0, to), class);
    }

    /// The head of an arrow that ends at `to`.
    pub(super) fn arrow_head(&mut self, from: (f64, f64), to: (f64, f64), class: &str) {
        let (dx, dy) = (to.0 - from.0, to.1 - from.1);
        let length = dx.hypot(dy).max(1e-9);
        let (ux, uy) = (dx / length, dy / length);
        let back = (to.0 - 7.0 * ux, to.1 - 7.0 * uy);
        let wings =
            [to, (back.0 - 3.0 * uy, back.1 + 3.0 * ux), (back.0 + 3.0 * uy, back.1 - 3.0 * ux)];
        self.path(&wings, true, class);
    }

    pub(super) fn finish(self) -> String {
        let (w, h) = (at(self.width), at(self.height));
        let title = escape(&self.title);
        format!(
            "<svg xmlns=\"http://www.w3.org/2000/svg\" class=\"mf\" viewBox=\"0 0 {w} {h}\" \
             width=\"{w}\" height=\"{h}\" role=\"img\">\n<title>{title}</title>\n\
             <style>{STYLE}</style>\n<rect class=\"bg\" width=\"{w}\" height=\"{h}\"/>\n{}</svg>\n",
            self.body
        )
    }
}
