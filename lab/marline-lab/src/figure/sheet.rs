//! Drawing area of a figure: its size and colors, and a style sheet for features that the library's SVG lacks:
//! dashes, a dark color scheme, a title.
//!
//! The library writes a color as an attribute of each element. The style sheet selects elements by this attribute
//! and sets their color in the dark scheme and the dashes of a series. A color therefore also serves as a key: series
//! of one hue have slightly different colors that look the same.

use std::fmt::Write as _;

use plotters::coord::Shift;
use plotters::prelude::*;
use plotters::style::text_anchor::{HPos, Pos, VPos};

use super::escape;

/// The library's drawing area.
pub(super) type Area<'a> = DrawingArea<SVGBackend<'a>, Shift>;
/// Result of drawing. Drawing into a string cannot fail; the library also draws into files.
pub(super) type DrawResult = Result<(), DrawingAreaErrorKind<std::io::Error>>;

/// Units per pixel: the library has integer coordinates only.
const UNITS: i32 = 10;

/// Text size in pixels, because the library would write 12 as 12.000000000000001.
pub(super) const TEXT: f64 = 12.1;

/// Converts pixels to units.
pub(super) const fn px(pixels: i32) -> i32 {
    UNITS * pixels
}

/// A color, and its replacement in the dark scheme.
#[derive(Copy, Clone, Debug)]
pub(super) struct Tone(u32, u32);

pub(super) const PAPER: Tone = Tone(0xffffff, 0x16181c);
pub(super) const INK: Tone = Tone(0x222222, 0xe6e6e6);
pub(super) const MUTE: Tone = Tone(0x666666, 0xa0a0a0);
pub(super) const GRID: Tone = Tone(0xe4e4e4, 0x30343a);
pub(super) const FRAME: Tone = Tone(0x444444, 0xaaaaaa);
pub(super) const REFERENCE: Tone = Tone(0x888888, 0x8a8a8a);
pub(super) const LOST: Tone = Tone(0xc03000, 0xff8a65);
pub(super) const NONE: Tone = Tone(0xdddddd, 0x3a3d42);
const NEUTRAL: [Tone; 8] = [PAPER, INK, MUTE, GRID, FRAME, REFERENCE, LOST, NONE];

/// The colors of Okabe and Ito that are visible on white, some of them darkened; the last one is for elements
/// without a series.
const HUES: [Tone; 7] = [
    Tone(0x0072b2, 0x4aa8e0),
    Tone(0xd55e00, 0xf28a3c),
    Tone(0x009e73, 0x2cc39a),
    Tone(0xb0578d, 0xe08dbd),
    Tone(0xc98500, 0xe6b030),
    Tone(0x3a9bd9, 0x8ccbf2),
    Tone(0x333333, 0xdddddd),
];
/// Lengths of dashes and spaces in units.
const DASHES: [&str; HUES.len()] =
    ["none", "70 30", "20 30", "90 30 20 30", "50 20", "10 20", "120 40"];
/// Number of line styles, after which they repeat.
const LINE_STYLES: usize = 2 * HUES.len();

/// The color of a series.
pub(super) fn series(number: usize) -> Tone {
    let Tone(light, dark) = HUES[number % HUES.len()];
    // The lowest bit of blue distinguishes series that reuse a color.
    Tone(light ^ (number % LINE_STYLES >= HUES.len()) as u32, dark)
}

/// Color of elements without a series.
pub(super) fn neutral_tone() -> Tone {
    HUES[HUES.len() - 1]
}

impl Tone {
    /// A color that is the same in the dark scheme.
    pub(super) const fn fixed(color: u32) -> Tone {
        Tone(color, color)
    }

    pub(super) const fn color(self) -> RGBColor {
        let [_, red, green, blue] = self.0.to_be_bytes();
        RGBColor(red, green, blue)
    }

    /// A line of this width in units.
    pub(super) fn line(self, units: u32) -> ShapeStyle {
        self.color().stroke_width(units)
    }

    pub(super) fn fill(self) -> ShapeStyle {
        self.color().filled()
    }

    pub(super) fn text(self) -> TextStyle<'static> {
        self.font(TEXT, FontStyle::Normal)
    }

    /// Text of this size in pixels, corrected because the library writes a different size than it is given.
    pub(super) fn font(self, pixels: f64, style: FontStyle) -> TextStyle<'static> {
        const WRITTEN_SIZE_FACTOR: f64 = 1.24;
        let size = f64::from(UNITS) * pixels * WRITTEN_SIZE_FACTOR;
        FontDesc::new(FontFamily::SansSerif, size, style).color(&self.color())
    }
}

/// The text style with this alignment.
pub(super) fn aligned(style: &TextStyle<'static>, h: HPos, v: VPos) -> TextStyle<'static> {
    style.pos(Pos::new(h, v))
}

/// Estimated width of a text of 12 pixels: an upper bound, because the reader's font is unknown.
pub(super) fn text_width(text: &str) -> i32 {
    7 * text.chars().count() as i32
}

/// The width of the widest text.
pub(super) fn max_text_width<'a>(texts: impl IntoIterator<Item = &'a str>) -> i32 {
    texts.into_iter().map(text_width).max().unwrap_or(0)
}

/// Size of a drawing in pixels.
#[derive(Copy, Clone, Debug)]
pub(super) struct Size {
    pub(super) width: i32,
    pub(super) height: i32,
}

/// An `<svg>` element of this size with the contents that `draw` draws.
pub(super) fn sheet(title: &str, size: Size, draw: impl FnOnce(&Area<'_>) -> DrawResult) -> String {
    let Size { width, height } = size;
    let mut svg = String::new();
    let (w, h) = (px(width), px(height));
    let area = SVGBackend::with_string(&mut svg, (w as u32, h as u32)).into_drawing_area();
    let drawn = area.fill(&PAPER.color()).and_then(|()| draw(&area)).and_then(|()| area.present());
    drop(area);
    let failed = drawn.err().map_or_else(String::new, |error| format!("<desc>{error}</desc>\n"));
    // The drawing follows the library's header.
    let body = svg.split_once(">\n").map_or("", |(_, body)| body);
    let control = |c: char| c.is_control() && c != '\n';
    format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" class=\"mf\" viewBox=\"0 0 {w} {h}\" \
         width=\"{width}\" height=\"{height}\" role=\"img\">\n<title>{}</title>\n{failed}\
         <style>{}</style>\n{}\n",
        escape(title),
        rules(),
        // XML does not allow other control characters.
        body.replace(control, "\u{fffd}").trim_end()
    )
}

/// The style sheet. It is the same in every drawing, so that several in one page do not conflict.
fn rules() -> String {
    let Tone(mute, _) = MUTE;
    let Tone(paper, dark_paper) = PAPER;
    let mut rules = format!(
        ".mf text{{font-family:system-ui,sans-serif}}\
         .mf text[fill=\"#{mute:06X}\"]{{paint-order:stroke;stroke:#{paper:06x};stroke-width:30px}}\
         .mf polyline[stroke=\"#{:06X}\"]{{stroke-dasharray:30 30}}",
        REFERENCE.0
    );
    // Writing to a String cannot fail.
    for number in 0..LINE_STYLES {
        let (Tone(light, _), round) = (series(number), number / HUES.len());
        let dashes = DASHES[(number + 3 * round) % DASHES.len()];
        let _ = write!(rules, ".mf polyline[stroke=\"#{light:06X}\"]{{stroke-dasharray:{dashes}}}");
    }
    rules.push_str("@media(prefers-color-scheme:dark){");
    for Tone(light, dark) in NEUTRAL.into_iter().chain(HUES) {
        // Colors of one hue differ in the last digit.
        let hue = light >> 4;
        for what in ["fill", "stroke"] {
            let _ = write!(rules, ".mf [{what}^=\"#{hue:05X}\"]{{{what}:#{dark:06x}}}");
        }
    }
    let _ = write!(rules, ".mf text[fill=\"#{mute:06X}\"]{{stroke:#{dark_paper:06x}}}}}");
    rules
}
