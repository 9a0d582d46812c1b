//! The roofline in characters: operations per second over operations per byte, both logarithmic.

use super::{LevelPoint, Peaks};

/// Characters that mark the levels, in order; more levels than that share the last one.
const MARKS: &[u8] = b"123456789abcdefghijklmnopqrstuvwxyz";

/// Size of the plot without its frame, in characters.
#[derive(Clone, Copy, Debug)]
pub(super) struct PlotSize {
    pub(super) width: u16,
    pub(super) height: u16,
}

/// A logarithmic axis over a number of characters.
#[derive(Clone, Copy, Debug)]
struct Axis {
    low: f64,
    high: f64,
    length: u16,
}

impl Axis {
    /// Returns the character for a value; values beyond the ends are at the ends.
    fn at(self, value: f64) -> usize {
        let share = (value / self.low).ln() / (self.high / self.low).ln();
        let last = f64::from(self.length - 1);
        let place = (share * last).round().clamp(0.0, last);
        #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "in 0..length")]
        let place = place as usize;
        place
    }

    /// Returns the value in the middle of a character.
    fn value(self, place: u16) -> f64 {
        let share = f64::from(place) / f64::from(self.length - 1);
        self.low * (self.high / self.low).powf(share)
    }
}

/// Returns the character that marks a level.
pub(super) fn mark(i: usize) -> char {
    char::from(MARKS[i.min(MARKS.len() - 1)])
}

/// Draws the roof and the levels under it.
pub(super) fn plot(peaks: &Peaks, points: &[LevelPoint], size: PlotSize) -> String {
    let decodes = || points.iter().filter_map(|point| point.decode);
    let least = |start: f64, values: &mut dyn Iterator<Item = f64>| values.fold(start, f64::min);
    let most = |start: f64, values: &mut dyn Iterator<Item = f64>| values.fold(start, f64::max);
    let ridge = peaks.ridge();
    let x = Axis {
        low: least(ridge / 4.0, &mut decodes().map(|point| point.intensity)) / 2.0,
        high: most(ridge, &mut decodes().map(|point| point.intensity)) * 4.0,
        length: size.width,
    };
    let y = Axis {
        low: least(peaks.bandwidth * x.low, &mut decodes().map(|point| point.ops_per_s)) / 2.0,
        high: most(peaks.ops_per_s, &mut decodes().map(|point| point.ops_per_s)) * 2.0,
        length: size.height,
    };
    let mut rows = vec![vec![' '; usize::from(size.width)]; usize::from(size.height)];
    for column in 0..size.width {
        let by_memory = peaks.bandwidth * x.value(column);
        let (roof, line) =
            if by_memory < peaks.ops_per_s { (by_memory, '/') } else { (peaks.ops_per_s, '-') };
        rows[y.at(roof)][usize::from(column)] = line;
    }
    for (i, point) in points.iter().enumerate() {
        if let Some(decode) = point.decode {
            rows[y.at(decode.ops_per_s)][x.at(decode.intensity)] = mark(i);
        }
    }
    let mut text = String::new();
    for (i, row) in rows.iter().enumerate().rev() {
        let label = match i {
            0 => short(y.low),
            i if i == y.at(peaks.ops_per_s) => short(peaks.ops_per_s),
            _ => String::new(),
        };
        let row: String = row.iter().collect();
        text.push_str(&format!("{label:>7} |{}\n", row.trim_end()));
    }
    text.push_str(&format!("        +{}\n", "-".repeat(usize::from(size.width))));
    let (low, high) = (short(x.low), short(x.high));
    let middle = format!("operations per byte (roofs meet at {})", short(ridge));
    let space = usize::from(size.width).saturating_sub(low.len() + high.len());
    text.push_str(&format!("         {low}{middle:^space$}{high}\n"));
    text
}

/// Returns a number with three digits and a suffix.
pub(super) fn short(value: f64) -> String {
    let (value, suffix) = match value {
        v if v >= 1e12 => (v / 1e12, "T"),
        v if v >= 1e9 => (v / 1e9, "G"),
        v if v >= 1e6 => (v / 1e6, "M"),
        v if v >= 1e4 => (v / 1e3, "k"),
        v => (v, ""),
    };
    let digits = match value {
        v if v >= 100.0 => 0,
        v if v >= 10.0 => 1,
        _ => 2,
    };
    format!("{value:.digits$}{suffix}")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::roofline::analyse;
    use crate::roofline::tests::{model, peaks, run};

    #[test]
    fn points_lie_under_the_roof_and_in_the_order_of_their_streams() {
        let points = analyse(&run(&[(1.0, 0.02), (8.0, 0.04)]), &peaks(), &model(1e9, 0.5e9));
        let plot = plot(&peaks(), &points, PlotSize { width: 60, height: 14 });
        let place = |mark: char| {
            let lines = plot.lines().take(14).enumerate();
            let mut found = lines.filter_map(|(row, line)| Some((row, line[9..].find(mark)?)));
            found.next().unwrap()
        };
        let ((first_row, first_column), (second_row, second_column)) = (place('1'), place('2'));
        assert!(first_column < second_column && first_row > second_row, "{plot}");
        // In each column the roof is the highest character.
        for column in [first_column, second_column] {
            let highest = plot.lines().find_map(|line| {
                line.get(9..)?.chars().nth(column).filter(|character| *character != ' ')
            });
            assert!(matches!(highest, Some('/' | '-')), "{plot}");
        }
        assert!(plot.lines().all(|line| line.len() <= 70), "{plot}");
    }

    #[test]
    fn values_beyond_an_axis_are_at_its_ends() {
        let axis = Axis { low: 1.0, high: 100.0, length: 11 };
        assert_eq!([0.1, 1.0, 10.0, 100.0, 1e9].map(|value| axis.at(value)), [0, 0, 5, 10, 10]);
    }

    #[test]
    fn numbers_are_short() {
        for (value, text) in
            [(0.5, "0.50"), (99.5, "99.5"), (12_345.0, "12.3k"), (9.36e11, "936G"), (2e12, "2.00T")]
        {
            assert_eq!(short(value), text);
        }
    }
}
