//! The curve of a card: output tokens per second over load, with the capacity marked.

use super::canvas::{Align, Canvas, HEIGHT, Ink, Pen, Place};
use crate::report::number;
use crate::results::{Mode, RunResult};

/// Upper and lower edge of the ground of the chart.
const EDGES: (f32, f32) = (200.0, HEIGHT - 66.0);

/// Between the edges and what the chart measures in.
const PADDING: Padding = Padding { left: 78.0, right: 36.0, top: 66.0, bottom: 62.0 };

/// Most marks of the vertical axis.
const MAX_MARKS: f64 = 5.0;

/// Loads that span more than this are spaced by their logarithm.
const WIDE_SPAN: f64 = 4.0;

struct Padding {
    left: f32,
    right: f32,
    top: f32,
    bottom: f32,
}

/// From loads and throughputs to places.
struct Scale {
    from: Place,
    to: Place,
    lowest: f64,
    highest: f64,
    top: f64,
    is_logarithmic: bool,
}

impl Scale {
    #[expect(clippy::cast_possible_truncation, reason = "pixels need no more than 24 bits")]
    fn place(&self, load: f64, throughput: f64) -> Place {
        let on = |value: f64| if self.is_logarithmic { value.ln() } else { value };
        let span = on(self.highest) - on(self.lowest);
        // One load alone stands in the middle.
        let way = if span > 0.0 { (on(load) - on(self.lowest)) / span } else { 0.5 };
        Place {
            x: self.from.x + (self.to.x - self.from.x) * way as f32,
            y: self.to.y - (self.to.y - self.from.y) * (throughput / self.top) as f32,
        }
    }
}

/// Draws the curve between two edges; nothing when no finite load was measured.
pub(super) fn draw(canvas: &mut Canvas, run: &RunResult, left: f32, right: f32) {
    let mut points: Vec<(f64, f64)> = run
        .levels
        .iter()
        .filter(|level| level.value.0.is_finite() && level.mode == run.config.mode)
        .map(|level| (level.value.0, level.summary.output_throughput))
        .collect();
    points.sort_by(|a, b| a.0.total_cmp(&b.0));
    let (Some(&(lowest, _)), Some(&(highest, _))) = (points.first(), points.last()) else {
        return;
    };
    canvas.fill(Place { x: left, y: EDGES.0 }, Place { x: right, y: EDGES.1 }, Ink::Card);
    let title = match run.config.mode {
        Mode::Concurrency => "Output tokens/s over users at once",
        Mode::Rate => "Output tokens/s over requests/s offered",
    };
    let title_place = Place { x: left + 24.0, y: EDGES.0 + 36.0 };
    canvas.text(title_place, title, 20.0, Ink::Strong, right - left - 48.0);
    let peak = points.iter().map(|point| point.1).fold(0.0, f64::max);
    let step = step(peak / MAX_MARKS);
    let scale = Scale {
        from: Place { x: left + PADDING.left, y: EDGES.0 + PADDING.top },
        to: Place { x: right - PADDING.right, y: EDGES.1 - PADDING.bottom },
        lowest,
        highest,
        top: (peak / step).ceil().max(1.0) * step,
        is_logarithmic: lowest > 0.0 && highest / lowest > WIDE_SPAN,
    };
    draw_axes(canvas, &scale, step, &points);
    let places: Vec<Place> = points.iter().map(|&(load, value)| scale.place(load, value)).collect();
    let ground = |place: &Place| Place { x: place.x, y: scale.to.y };
    let ends = [places.last(), places.first()].into_iter().flatten().map(ground);
    canvas.tint(&places.iter().copied().chain(ends).collect::<Vec<_>>(), Ink::Accent);
    draw_capacity(canvas, run, &scale);
    canvas.line(&places, Pen { ink: Ink::Accent, width: 3.5, dash: 0.0 });
    for place in places {
        canvas.dot(place, 6.0, Ink::Accent);
    }
}

fn draw_axes(canvas: &mut Canvas, scale: &Scale, step: f64, points: &[(f64, f64)]) {
    let mut value = 0.0;
    while value <= scale.top + step / 2.0 {
        let y = scale.place(scale.lowest, value).y;
        let ends = [Place { x: scale.from.x - 8.0, y }, Place { x: scale.to.x + 12.0, y }];
        canvas.line(&ends, Pen { ink: Ink::Faint, width: 1.5, dash: 0.0 });
        // A sum of steps such as 0.1 is not exact; what it stands for is.
        let mark = number::exact(((value / step).round() * step * 1e6).round() / 1e6);
        canvas.label(Place { x: scale.from.x - 18.0, y: y + 6.0 }, &mark, 17.0, Align::Right);
        value += step;
    }
    let mut free_from = f32::MIN;
    for &(load, _) in points {
        let text = number::exact(load);
        let x = scale.place(load, 0.0).x;
        let half = canvas.text_width(&text, 17.0) / 2.0;
        // A mark that would touch the one before it is left out.
        if x - half > free_from {
            canvas.label(Place { x, y: scale.to.y + 30.0 }, &text, 17.0, Align::Middle);
            free_from = x + half + 10.0;
        }
    }
}

fn draw_capacity(canvas: &mut Canvas, run: &RunResult, scale: &Scale) {
    let Some(load) = run.capacity.as_ref().and_then(|capacity| capacity.capacity) else { return };
    if !(scale.lowest..=scale.highest).contains(&load) {
        return;
    }
    let x = scale.place(load, 0.0).x;
    let ends = [Place { x, y: scale.from.y - 20.0 }, Place { x, y: scale.to.y }];
    canvas.line(&ends, Pen { ink: Ink::Soft, width: 1.5, dash: 7.0 });
    let text = "capacity";
    let width = canvas.text_width(text, 17.0);
    // To the left of the line where the right has no room.
    let right_end = if x + width + 10.0 > scale.to.x { x - 10.0 } else { x + width + 10.0 };
    canvas.label(Place { x: right_end, y: scale.from.y - 9.0 }, text, 17.0, Align::Right);
}

/// Returns the next of 1, 2 and 5 times a power of ten.
fn step(at_least: f64) -> f64 {
    if at_least <= 0.0 {
        return 1.0;
    }
    let power = 10_f64.powf(at_least.log10().floor());
    let factor = [1.0, 2.0, 5.0].into_iter().find(|factor| factor * power >= at_least);
    factor.unwrap_or(10.0) * power
}
