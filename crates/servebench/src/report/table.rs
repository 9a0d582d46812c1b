//! A table, as aligned text and as Markdown.

use super::figures::plain;

/// Which side of its column a text keeps to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Align {
    /// Words.
    Left,
    /// Figures.
    Right,
}

/// One column: a title, and above it the title of the group that it belongs to, if any.
#[derive(Clone, Debug)]
struct Column {
    group: &'static str,
    title: String,
    align: Align,
}

/// A table. Every row has one text for each column.
#[derive(Clone, Debug, Default)]
pub(super) struct Table {
    columns: Vec<Column>,
    /// `None` separates rows that belong together from the next ones.
    rows: Vec<Option<Vec<String>>>,
}

/// Spaces between columns.
const GAP: usize = 2;

impl Table {
    /// Adds a column.
    pub(super) fn column(mut self, title: impl Into<String>, align: Align) -> Self {
        self.columns.push(Column { group: "", title: title.into(), align });
        self
    }

    /// Adds columns of figures under a common title.
    pub(super) fn group(mut self, group: &'static str, titles: &[&str]) -> Self {
        let columns = titles.iter().map(|title| Column {
            group,
            title: (*title).to_owned(),
            align: Align::Right,
        });
        self.columns.extend(columns);
        self
    }

    /// Adds a row. Its texts may be somebody else's words.
    pub(super) fn push(&mut self, row: Vec<String>) {
        assert_eq!(row.len(), self.columns.len(), "a row has one text for each column");
        self.rows.push(Some(row.iter().map(|text| plain(text)).collect()));
    }

    /// Separates the rows so far from the next ones.
    pub(super) fn separate(&mut self) {
        self.rows.push(None);
    }

    /// Whether there are no rows.
    pub(super) fn is_empty(&self) -> bool {
        self.rows.is_empty()
    }

    /// Returns lines with aligned columns.
    pub(super) fn text(&self) -> String {
        let widths = self.widths();
        let mut lines = Vec::new();
        if self.columns.iter().any(|column| !column.group.is_empty()) {
            lines.push(self.group_line(&widths));
        }
        let titles: Vec<&str> = self.columns.iter().map(|column| column.title.as_str()).collect();
        lines.push(self.line(&titles, &widths));
        let total: usize = widths.iter().sum::<usize>() + GAP * widths.len().saturating_sub(1);
        lines.push("─".repeat(total));
        for row in &self.rows {
            let texts: Vec<&str> = row.iter().flatten().map(String::as_str).collect();
            lines.push(if row.is_some() { self.line(&texts, &widths) } else { String::new() });
        }
        lines.join("\n") + "\n"
    }

    /// Returns the width of each column, in characters.
    fn widths(&self) -> Vec<usize> {
        let mut widths: Vec<usize> =
            self.columns.iter().map(|column| column.title.chars().count()).collect();
        for row in self.rows.iter().flatten() {
            for (width, text) in widths.iter_mut().zip(row) {
                *width = (*width).max(text.chars().count());
            }
        }
        // A group's title that is wider than its columns widens the first one.
        for span in self.group_spans() {
            let inner: usize = widths[span.clone()].iter().sum::<usize>() + GAP * (span.len() - 1);
            let title = self.columns[span.start].group.chars().count();
            widths[span.start] += title.saturating_sub(inner);
        }
        widths
    }

    /// Returns the columns of each group; a column without a group is one of its own.
    fn group_spans(&self) -> Vec<std::ops::Range<usize>> {
        let mut spans: Vec<std::ops::Range<usize>> = Vec::new();
        for (i, column) in self.columns.iter().enumerate() {
            match spans.last_mut() {
                Some(span)
                    if !column.group.is_empty()
                        && self.columns[span.start].group == column.group =>
                {
                    span.end = i + 1;
                }
                _ => spans.push(i..i + 1),
            }
        }
        spans
    }

    fn group_line(&self, widths: &[usize]) -> String {
        let spans = self.group_spans();
        let titles = spans.into_iter().map(|span| {
            let inner = widths[span.clone()].iter().sum::<usize>() + GAP * (span.len() - 1);
            format!("{:>inner$}", self.columns[span.start].group)
        });
        titles.collect::<Vec<String>>().join("  ").trim_end().to_owned()
    }

    fn line(&self, texts: &[&str], widths: &[usize]) -> String {
        let padded =
            self.columns.iter().zip(texts).zip(widths).map(|((column, text), width)| match column
                .align
            {
                Align::Left => format!("{text:<width$}"),
                Align::Right => format!("{text:>width$}"),
            });
        padded.collect::<Vec<String>>().join("  ").trim_end().to_owned()
    }

    /// Returns the table in Markdown; groups go into the titles.
    pub(super) fn markdown(&self) -> String {
        let titles = self.columns.iter().map(|column| {
            escape_markdown(format!("{} {}", column.group, column.title).trim_start())
        });
        let rules = self.columns.iter().map(|column| match column.align {
            Align::Left => "---".to_owned(),
            Align::Right => "--:".to_owned(),
        });
        let mut lines = vec![markdown_row(titles), markdown_row(rules)];
        for row in self.rows.iter().flatten() {
            lines.push(markdown_row(row.iter().map(|text| escape_markdown(text))));
        }
        lines.join("\n") + "\n"
    }
}

fn markdown_row(texts: impl Iterator<Item = String>) -> String {
    format!("| {} |", texts.collect::<Vec<String>>().join(" | "))
}

/// Returns a text that Markdown shows as it is, on one line.
pub(super) fn escape_markdown(text: &str) -> String {
    let mut escaped = String::with_capacity(text.len());
    for c in plain(text).chars() {
        if matches!(c, '\\' | '`' | '*' | '_' | '[' | ']' | '<' | '>' | '|' | '#' | '~' | '&') {
            escaped.push('\\');
        }
        escaped.push(c);
    }
    escaped
}

#[cfg(test)]
mod tests {
    use super::*;

    fn table() -> Table {
        let mut table = Table::default().column("load", Align::Left).group("TTFT", &["p50", "p99"]);
        table.push(vec!["c=1".to_owned(), "5".to_owned(), "1000".to_owned()]);
        table.separate();
        table.push(vec!["c=16".to_owned(), "–".to_owned(), "7".to_owned()]);
        table
    }

    #[test]
    fn words_keep_left_and_figures_right() {
        let expected = [
            "           TTFT",
            "load  p50   p99",
            "───────────────",
            "c=1     5  1000",
            "",
            "c=16    –     7",
        ];
        let text = table().text();
        let lines: Vec<&str> = text.lines().collect();
        assert_eq!(lines, expected);
    }

    #[test]
    fn markdown_has_one_line_for_each_row_and_shows_texts_as_they_are() {
        let expected = "| load | TTFT p50 | TTFT p99 |\n| --- | --: | --: |\n| c=1 | 5 | 1000 |\n| c=16 | – | 7 |\n";
        assert_eq!(table().markdown(), expected);
        assert_eq!(escape_markdown("a|b<i>\n*c*"), "a\\|b\\<i\\>\u{fffd}\\*c\\*");
    }
}
