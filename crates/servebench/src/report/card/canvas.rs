//! The surface of a card: text in one font, lines, areas.
//!
//! Text is Ubuntu Light (Ubuntu Font Licence 1.0), which comes with a crate, so that a card looks
//! the same on every machine. Left to right only; a sign that the font lacks is drawn as `?`.

use ab_glyph::{Font, FontRef, GlyphId, PxScale, ScaleFont, point};
use tiny_skia::{
    Color, FillRule, LineCap, LineJoin, Paint, Path, PathBuilder, Pixmap, Rect, Stroke, StrokeDash,
    Transform,
};

/// Width of a card, in pixels.
pub(super) const WIDTH: f32 = 1200.0;

/// Height of a card, in pixels.
pub(super) const HEIGHT: f32 = 630.0;

/// What a text that is too wide ends in.
const ELLIPSIS: char = '…';

/// A place in pixels from the upper left; for text, the left end of its base line.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Place {
    pub(super) x: f32,
    pub(super) y: f32,
}

/// Colours of the card.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Ink {
    /// Names.
    Strong,
    /// Explanations.
    Soft,
    /// Numbers and the curve.
    Accent,
    /// Lines behind the curve.
    Faint,
    /// The ground of the chart.
    Card,
    /// The ground of everything.
    Paper,
}

impl Ink {
    fn rgb(self) -> [u8; 3] {
        match self {
            Self::Strong => [0x1b, 0x1f, 0x24],
            Self::Soft => [0x59, 0x61, 0x6b],
            Self::Accent => [0x0b, 0x63, 0xb0],
            Self::Faint => [0xe2, 0xe3, 0xdf],
            Self::Card => [0xff, 0xff, 0xff],
            Self::Paper => [0xf7, 0xf7, 0xf5],
        }
    }

    fn paint(self, opacity: u8) -> Paint<'static> {
        let [red, green, blue] = self.rgb();
        let mut paint = Paint { anti_alias: true, ..Paint::default() };
        paint.set_color_rgba8(red, green, blue, opacity);
        paint
    }
}

/// Where a text stands relative to its place.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Align {
    Middle,
    Right,
}

/// How a line is drawn.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Pen {
    pub(super) ink: Ink,
    pub(super) width: f32,
    /// Length of dashes and of the gaps between them; 0 draws through.
    pub(super) dash: f32,
}

/// The surface of a card.
pub(super) struct Canvas {
    pixmap: Pixmap,
    font: FontRef<'static>,
}

impl Canvas {
    /// Makes an empty card.
    pub(super) fn new() -> Self {
        let mut pixmap = Pixmap::new(1200, 630).expect("the size of a card is not zero");
        let [red, green, blue] = Ink::Paper.rgb();
        pixmap.fill(Color::from_rgba8(red, green, blue, 255));
        let font = FontRef::try_from_slice(epaint_default_fonts::UBUNTU_LIGHT)
            .expect("the font comes with a crate and is whole");
        Self { pixmap, font }
    }

    /// Returns the card as a PNG file.
    pub(super) fn into_png(self) -> Vec<u8> {
        self.pixmap.encode_png().expect("nothing of an encoding in memory can fail")
    }

    /// Writes a text of `size` pixels, shortened to `max_width`.
    pub(super) fn text(&mut self, place: Place, text: &str, size: f32, ink: Ink, max_width: f32) {
        let text = self.shortened(text, size, max_width);
        self.draw_text(place, &text, size, ink);
    }

    /// Writes a short text beside or around a place.
    pub(super) fn label(&mut self, place: Place, text: &str, size: f32, align: Align) {
        let width = self.text_width(text, size);
        let before = match align {
            Align::Middle => width / 2.0,
            Align::Right => width,
        };
        self.draw_text(Place { x: place.x - before, ..place }, text, size, Ink::Soft);
    }

    /// Fills an area between two corners.
    pub(super) fn fill(&mut self, from: Place, to: Place, ink: Ink) {
        if let Some(rect) = Rect::from_ltrb(from.x, from.y, to.x, to.y) {
            self.pixmap.fill_rect(rect, &ink.paint(255), Transform::identity(), None);
        }
    }

    /// Draws a line through places.
    pub(super) fn line(&mut self, places: &[Place], pen: Pen) {
        let Some(path) = path_through(places) else { return };
        let dash = StrokeDash::new(vec![pen.dash, pen.dash], 0.0).filter(|_| pen.dash > 0.0);
        let stroke = Stroke {
            width: pen.width,
            line_cap: LineCap::Round,
            line_join: LineJoin::Round,
            dash,
            ..Stroke::default()
        };
        let paint = pen.ink.paint(255);
        self.pixmap.stroke_path(&path, &paint, &stroke, Transform::identity(), None);
    }

    /// Tints the area inside places.
    pub(super) fn tint(&mut self, places: &[Place], ink: Ink) {
        if let Some(path) = path_through(places) {
            let paint = ink.paint(30);
            self.pixmap.fill_path(&path, &paint, FillRule::Winding, Transform::identity(), None);
        }
    }

    /// Draws a dot.
    pub(super) fn dot(&mut self, place: Place, radius: f32, ink: Ink) {
        for (radius, ink) in [(radius + 2.0, Ink::Card), (radius, ink)] {
            if let Some(path) = PathBuilder::from_circle(place.x, place.y, radius) {
                let paint = ink.paint(255);
                self.pixmap.fill_path(
                    &path,
                    &paint,
                    FillRule::Winding,
                    Transform::identity(),
                    None,
                );
            }
        }
    }

    /// Returns how wide a text is.
    pub(super) fn text_width(&self, text: &str, size: f32) -> f32 {
        let font = self.font.as_scaled(PxScale::from(size));
        let glyphs: Vec<GlyphId> = text.chars().map(|sign| self.glyph(sign)).collect();
        let kerning: f32 = glyphs.windows(2).map(|pair| font.kern(pair[0], pair[1])).sum();
        glyphs.iter().map(|glyph| font.h_advance(*glyph)).sum::<f32>() + kerning
    }

    /// Returns the text, or as much of it as leaves room for an ellipsis.
    fn shortened(&self, text: &str, size: f32, max_width: f32) -> String {
        // A text of many more signs than can be seen need not be measured whole.
        let mut kept: String = text.chars().take(400).collect();
        if kept.len() == text.len() && self.text_width(&kept, size) <= max_width {
            return kept;
        }
        while kept.pop().is_some() {
            let short = format!("{}{ELLIPSIS}", kept.trim_end());
            if self.text_width(&short, size) <= max_width {
                return short;
            }
        }
        String::new()
    }

    fn glyph(&self, sign: char) -> GlyphId {
        let sign = if sign.is_whitespace() || sign.is_control() { ' ' } else { sign };
        match self.font.glyph_id(sign) {
            GlyphId(0) => self.font.glyph_id('?'),
            found => found,
        }
    }

    fn draw_text(&mut self, place: Place, text: &str, size: f32, ink: Ink) {
        let scale = PxScale::from(size);
        let mut x = place.x;
        let mut last = None;
        for sign in text.chars() {
            let glyph = self.glyph(sign);
            let font = self.font.as_scaled(scale);
            if let Some(last) = last {
                x += font.kern(last, glyph);
            }
            let placed = glyph.with_scale_and_position(scale, point(x, place.y));
            x += font.h_advance(glyph);
            last = Some(glyph);
            if let Some(outline) = self.font.outline_glyph(placed) {
                let corner = outline.px_bounds().min;
                let mut covered = Vec::new();
                outline.draw(|dx, dy, coverage| covered.push((dx, dy, coverage)));
                for (dx, dy, coverage) in covered {
                    self.blend(corner.x, corner.y, (dx, dy), coverage, ink);
                }
            }
        }
    }

    /// Mixes a colour into the pixel at an offset from a corner, by how much of it is covered.
    fn blend(&mut self, left: f32, top: f32, (dx, dy): (u32, u32), coverage: f32, ink: Ink) {
        #[expect(clippy::cast_possible_truncation, reason = "a corner lies on a whole pixel")]
        let (left, top) = (left as i64, top as i64);
        let (Ok(x), Ok(y)) =
            (usize::try_from(left + i64::from(dx)), usize::try_from(top + i64::from(dy)))
        else {
            return;
        };
        let (width, height) = (self.pixmap.width() as usize, self.pixmap.height() as usize);
        if x >= width || y >= height {
            return;
        }
        let at = (y * width + x) * 4;
        // The card is opaque everywhere, so colours need no multiplication by opacity.
        for (under, over) in self.pixmap.data_mut()[at..at + 3].iter_mut().zip(ink.rgb()) {
            let mixed = f32::from(*under) + (f32::from(over) - f32::from(*under)) * coverage;
            #[expect(
                clippy::cast_possible_truncation,
                clippy::cast_sign_loss,
                reason = "between two colours of 0 to 255; a cast saturates"
            )]
            let mixed = mixed.round() as u8;
            *under = mixed;
        }
    }
}

fn path_through(places: &[Place]) -> Option<Path> {
    let mut path = PathBuilder::new();
    let (first, others) = places.split_first()?;
    path.move_to(first.x, first.y);
    for place in others {
        path.line_to(place.x, place.y);
    }
    path.finish()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_text_keeps_to_its_width() {
        let canvas = Canvas::new();
        for text in ["", "short", "a text that is a good deal too long for its place"] {
            for max_width in [5.0, 60.0, 200.0, 1000.0] {
                let short = canvas.shortened(text, 20.0, max_width);
                assert!(canvas.text_width(&short, 20.0) <= max_width, "{short:?} in {max_width}");
                let is_whole = short == text;
                assert!(is_whole || short.is_empty() || short.ends_with(ELLIPSIS));
                assert_eq!(is_whole, canvas.text_width(text, 20.0) <= max_width);
            }
        }
    }

    #[test]
    fn the_font_has_what_the_card_says_itself() {
        let canvas = Canvas::new();
        for sign in "≥≤·…–%/ abcxyzABCXYZ0123456789".chars() {
            assert_ne!(canvas.font.glyph_id(sign), GlyphId(0), "{sign}");
        }
    }
}
