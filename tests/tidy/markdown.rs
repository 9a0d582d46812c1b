//! The little of Markdown that the checks read: tables under a heading, links, code spans.
//!
//! Fenced blocks are skipped everywhere: what is in them is an example.

/// A line of prose with its number, counted from 1.
type NumberedLine<'a> = (usize, &'a str);

/// Returns the lines outside fenced blocks.
pub(crate) fn prose(text: &str) -> impl Iterator<Item = NumberedLine<'_>> {
    let mut fenced = false;
    text.lines().enumerate().filter_map(move |(i, line)| {
        let is_fence = line.trim_start().starts_with("```");
        fenced ^= is_fence;
        (!fenced && !is_fence).then_some((i + 1, line))
    })
}

/// Returns the rows of the first table under `heading`, without its header, as fields.
pub(crate) fn table_under(text: &str, heading: &str) -> Vec<Vec<String>> {
    let body = prose(text).map(|(_, line)| line).skip_while(|line| line.trim() != heading).skip(1);
    let section = body.take_while(|line| !line.starts_with('#'));
    let rows = section.skip_while(|line| !line.starts_with('|')).take_while(|l| l.starts_with('|'));
    rows.skip(2)
        .map(|row| {
            let inner = row.trim().trim_matches('|');
            inner.split('|').map(|field| field.trim().to_owned()).collect()
        })
        .collect()
}

/// Returns the code spans of a line or of a field of a table.
pub(crate) fn code_spans(text: &str) -> impl Iterator<Item = &str> {
    text.split('`').skip(1).step_by(2)
}

/// Returns the targets of the inline links of a line, code spans left out.
pub(crate) fn link_targets(line: &str) -> Vec<&str> {
    let mut targets = Vec::new();
    for text in line.split('`').step_by(2) {
        for (at, opening) in text.match_indices("](") {
            if let Some((target, _)) = text[at + opening.len()..].split_once(')') {
                targets.push(target.split_whitespace().next().unwrap_or_default());
            }
        }
    }
    targets
}

/// Returns the anchors of a document's headings, as GitHub makes them.
pub(crate) fn anchors(text: &str) -> Vec<String> {
    let headings = prose(text).filter_map(|(_, line)| line.strip_prefix('#'));
    headings.map(|heading| anchor(heading.trim_start_matches('#'))).collect()
}

/// Returns the anchor of one heading: lower case, blanks to dashes, punctuation gone.
fn anchor(heading: &str) -> String {
    let kept = heading.trim().chars().filter_map(|c| match c {
        ' ' => Some('-'),
        '-' | '_' => Some(c),
        c if c.is_alphanumeric() => Some(c.to_ascii_lowercase()),
        _ => None,
    });
    kept.collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_table_under_a_heading_ends_with_its_last_row() {
        let text =
            "# A\n| x |\n|---|\n| 0 |\n## B\ntext\n\n| x | y |\n|---|---|\n| `1` | 2 |\n\n| 3 |";
        assert_eq!(table_under(text, "## B"), [["`1`", "2"]]);
        assert_eq!(table_under(text, "## C"), Vec::<Vec<String>>::new());
    }

    #[test]
    fn fenced_lines_are_not_prose() {
        let lines: Vec<_> = prose("a\n```sh\nb\n```\nc").collect();
        assert_eq!(lines, [(1, "a"), (5, "c")]);
    }

    #[test]
    fn links_inside_code_are_not_links() {
        assert_eq!(link_targets("[a](b.md#c) and `[d](e)`, [f](g \"h\")"), ["b.md#c", "g"]);
    }

    #[test]
    fn anchors_follow_the_rules_of_git_hosts() {
        assert_eq!(anchors("# KV memory, paged\n## `engine`"), ["kv-memory-paged", "engine"]);
    }
}
