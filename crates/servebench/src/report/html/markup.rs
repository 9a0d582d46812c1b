//! HTML text from untrusted text.
//!
//! Every text from outside passes through [`escape`]; markup is only what this folder's files say.

use std::fmt::Write;

/// Returns text that stands for itself in HTML, in an element or in a quoted attribute.
pub(super) fn escape(text: &str) -> String {
    let mut escaped = String::with_capacity(text.len());
    for sign in text.chars() {
        match sign {
            '&' => escaped.push_str("&amp;"),
            '<' => escaped.push_str("&lt;"),
            '>' => escaped.push_str("&gt;"),
            '"' => escaped.push_str("&quot;"),
            '\'' => escaped.push_str("&#39;"),
            // HTML has no NUL.
            '\0' => escaped.push('\u{fffd}'),
            other => escaped.push(other),
        }
    }
    escaped
}

/// How a column of a table is set and sorted.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Column {
    /// Words, to the left.
    Text,
    /// Numbers, to the right.
    Number,
}

/// A value of a table.
pub(super) struct Field {
    text: String,
    /// What it is sorted by, where that is not the text.
    order: Option<f64>,
    class: &'static str,
    /// What the script finds it by.
    name: &'static str,
}

impl Field {
    /// Makes a field of words.
    pub(super) fn text(text: impl Into<String>) -> Self {
        Self { text: text.into(), order: None, class: "", name: "" }
    }

    /// Makes a field of a number as people read it and as it is.
    pub(super) fn number(text: impl Into<String>, order: Option<f64>) -> Self {
        Self { text: text.into(), order, class: "", name: "" }
    }

    /// Gives the field a class of the style sheet.
    pub(super) fn with_class(self, class: &'static str) -> Self {
        Self { class, ..self }
    }

    /// Gives the field a name that the script finds it by.
    pub(super) fn named(self, name: &'static str) -> Self {
        Self { name, ..self }
    }
}

/// A table; its first column heads the rows.
pub(super) struct Table {
    id: &'static str,
    caption: &'static str,
    columns: Vec<(String, Column)>,
    rows: Vec<(String, Vec<Field>)>,
}

impl Table {
    /// Makes a table without rows.
    pub(super) fn new(id: &'static str, caption: &'static str) -> Self {
        Self { id, caption, columns: Vec::new(), rows: Vec::new() }
    }

    /// Adds a column.
    pub(super) fn column(&mut self, title: impl Into<String>, column: Column) {
        self.columns.push((title.into(), column));
    }

    /// Adds a row; `data` are attributes for the script, made of numbers only.
    pub(super) fn row(&mut self, data: impl Into<String>, fields: Vec<Field>) {
        assert_eq!(fields.len(), self.columns.len(), "a row has a field for each column");
        self.rows.push((data.into(), fields));
    }

    /// Tells whether there is no row.
    pub(super) fn is_empty(&self) -> bool {
        self.rows.is_empty()
    }

    /// Returns the table as HTML, in a frame that scrolls when it is too wide.
    pub(super) fn to_html(&self) -> String {
        let mut html = format!(
            "<div class=\"scroll\" tabindex=\"0\" role=\"region\" aria-label=\"{}\">\
             <table id=\"{}\"><caption>{}</caption>\n<thead><tr>",
            self.caption, self.id, self.caption
        );
        for (title, column) in &self.columns {
            let class = if *column == Column::Number { " class=\"num\"" } else { "" };
            let _ = write!(html, "<th scope=\"col\"{class}>{}</th>", escape(title));
        }
        html.push_str("</tr></thead>\n<tbody>\n");
        for (data, fields) in &self.rows {
            let _ = write!(html, "<tr{}{data}>", if data.is_empty() { "" } else { " " });
            for (i, (field, (_, column))) in fields.iter().zip(&self.columns).enumerate() {
                html.push_str(&field_html(field, *column, i == 0));
            }
            html.push_str("</tr>\n");
        }
        html.push_str("</tbody></table></div>\n");
        html
    }
}

fn field_html(field: &Field, column: Column, heads_row: bool) -> String {
    let (element, scope) = if heads_row { ("th", " scope=\"row\"") } else { ("td", "") };
    let mut classes = Vec::new();
    if column == Column::Number {
        classes.push("num");
    }
    if !field.class.is_empty() {
        classes.push(field.class);
    }
    let class = match classes.join(" ") {
        joined if joined.is_empty() => String::new(),
        joined => format!(" class=\"{joined}\""),
    };
    let order = field.order.map_or_else(String::new, |order| format!(" data-order=\"{order}\""));
    let name = match field.name {
        "" => String::new(),
        name => format!(" data-name=\"{name}\""),
    };
    format!("<{element}{scope}{class}{order}{name}>{}</{element}>", escape(&field.text))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_sign_of_markup_survives() {
        assert_eq!(
            escape("</script><img src=x onerror='a(\"b\")'>&\0"),
            "&lt;/script&gt;&lt;img src=x onerror=&#39;a(&quot;b&quot;)&#39;&gt;&amp;\u{fffd}"
        );
    }
}
