//! Puts checks into a chat template's source, where values get names.
//!
//! The template engine bounds instructions and text, but not what a template builds by binding a
//! value again and again: lists inside lists, lists that double, a namespace inside itself. So every
//! value passes a filter of [`settled_values`](crate::settled_values) when it is bound: by `set`, also
//! of a block, and `with`, as a loop's item, as an argument of a macro or of a call block, and where a
//! loop remembers it to tell whether it has `changed`. What a single tag can build is bounded by its
//! length, once lists cannot be multiplied. Lines stay where they are, and so does all white space.
//!
//! `{% generation %}`, by which transformers marks what an assistant wrote for training, becomes a
//! condition that always holds.

use crate::template_tags::{Tag, TagKind, Word, tags};

/// Filter for a value that gets a name.
pub(crate) const SETTLED: &str = "settled_value";
/// Filter for a value that is put into a namespace or a loop.
pub(crate) const STORABLE: &str = "storable_value";
/// Filter for both sides of a multiplication.
pub(crate) const FACTOR: &str = "factor_value";

/// Returns a template that renders the same, with the checks.
pub(crate) fn with_checks(source: &str) -> String {
    let mut checked = String::with_capacity(source.len() + source.len() / 4);
    let mut done = 0;
    for tag in tags(source) {
        checked.push_str(&source[done..tag.start]);
        done = tag.end();
        // What does not parse is left to the parser.
        if tag.close.is_empty() || !tag.is_balanced {
            checked.push_str(&source[tag.start..done]);
        } else {
            checked.push_str(&checked_tag(&tag));
        }
    }
    checked.push_str(&source[done..]);
    checked
}

fn checked_tag(tag: &Tag<'_>) -> String {
    let Tag { kind, open, close, words, .. } = tag;
    let mut edits = factors(words);
    edits.extend(remembered(words));
    let name = words.first().filter(|_| *kind == TagKind::Statement).map(|word| word.text);
    let mut bound = Vec::new();
    match (name, words.as_slice()) {
        (Some("generation"), [_]) => return format!("{open} if true {close}"),
        (Some("endgeneration"), [_]) => return format!("{open} endif {close}"),
        (Some("set"), _) => edits.extend(assigned(tag)),
        (Some("with"), _) => bound = with_names(words),
        (Some("for"), _) => bound = loop_names(words),
        (Some("macro"), [_, _, params @ ..]) | (Some("call"), [_, params @ ..]) => {
            bound = parameters(params);
        }
        _ => {}
    }
    let body = edited(tag.body, edits);
    if bound.is_empty() {
        return format!("{open}{body}{close}");
    }
    let bindings: Vec<_> =
        bound.iter().map(|name| format!("{{% set {name} = ({name})|{SETTLED} ")).collect();
    format!("{open}{body}%}}{}{close}", bindings.join("%}"))
}

/// A text that goes into a tag's body.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Edit {
    /// Where, in bytes.
    at: usize,
    text: String,
}

impl Edit {
    /// Puts what lies between two places through a filter.
    fn filtered(start: usize, end: usize, filter: &str) -> [Self; 2] {
        let text = format!(")|{filter}");
        [Self { at: start, text: "(".to_owned() }, Self { at: end, text }]
    }
}

fn edited(body: &str, mut edits: Vec<Edit>) -> String {
    // At one place, what ends comes before what begins.
    edits.sort_by_key(|edit| (edit.at, edit.text == "("));
    let mut text = String::with_capacity(body.len() + 16 * edits.len());
    let mut done = 0;
    for edit in edits {
        text.push_str(&body[done..edit.at]);
        text.push_str(&edit.text);
        done = edit.at;
    }
    text.push_str(&body[done..]);
    text
}

/// Filters the value of a `set`: what stands behind `=`, or what filters make of a block's text.
fn assigned(tag: &Tag<'_>) -> Vec<Edit> {
    let words = &tag.words;
    let ends_target = |word: &Word<'_>| word.depth == 0 && matches!(word.text, "=" | "|");
    let Some(end) = words.iter().position(ends_target) else {
        return Vec::new();
    };
    let (Some(first), Some(last)) = (words.get(end + 1), words.last()) else {
        return Vec::new();
    };
    let is_attribute = words[..end].iter().any(|word| word.text == ".");
    let filter = if is_attribute { STORABLE } else { SETTLED };
    if words[end].text == "|" {
        return vec![Edit { at: last.end(), text: format!("|{filter}") }];
    }
    Edit::filtered(first.start, last.end(), filter).to_vec()
}

/// Filters what a loop is asked to remember, as one tuple: `loop.changed(a, b)`.
fn remembered(words: &[Word<'_>]) -> Vec<Edit> {
    let mut edits = Vec::new();
    for (i, call) in words.windows(3).enumerate() {
        let [dot, name, open] = call else { continue };
        if (dot.text, name.text, open.text) != (".", "changed", "(") {
            continue;
        }
        let inside = &words[i + 3..];
        let len = inside.iter().position(|word| word.depth == open.depth).unwrap_or(inside.len());
        if let ([first, ..], [.., last]) = (&inside[..len], &inside[..len]) {
            edits.extend(Edit::filtered(first.start, last.end(), STORABLE));
        }
    }
    edits
}

/// Returns the names in front of each `=` of a `with`.
fn with_names<'a>(words: &[Word<'a>]) -> Vec<&'a str> {
    let mut names = Vec::new();
    let mut is_target = true;
    for word in &words[1..] {
        match (word.depth, word.text) {
            (0, "=") => is_target = false,
            (0, ",") => is_target = true,
            _ if is_target && word.is_alphanumeric() => names.push(word.text),
            _ => {}
        }
    }
    names
}

/// Returns the names in front of a loop's `in`.
fn loop_names<'a>(words: &[Word<'a>]) -> Vec<&'a str> {
    let targets = words[1..].iter().take_while(|word| word.depth > 0 || word.text != "in");
    targets.filter(|word| word.is_alphanumeric()).map(|word| word.text).collect()
}

/// Returns the names of parameters in brackets that `words` begins with.
fn parameters<'a>(words: &[Word<'a>]) -> Vec<&'a str> {
    let Some((_, inside)) = words.split_first().filter(|(first, _)| first.text == "(") else {
        return Vec::new();
    };
    let mut names = Vec::new();
    let mut is_target = true;
    for word in inside.iter().take_while(|word| word.depth > 0) {
        if word.depth == 1 && is_target && word.is_alphanumeric() {
            names.push(word.text);
        }
        is_target = word.depth == 1 && word.text == ",";
    }
    names
}

/// Filters both sides of each multiplication.
fn factors(words: &[Word<'_>]) -> Vec<Edit> {
    let mut places = Vec::new();
    for star in (0..words.len()).filter(|&at| words[at].text == "*") {
        let depth = words[star].depth;
        let before = words[..star].iter().rposition(|word| ends_factor(word, depth));
        let left = &words[before.map_or(0, |before| before + 1)..star];
        let right = &words[star + 1..];
        let num_signs = right.iter().take_while(|word| matches!(word.text, "-" | "+")).count();
        let right = &right[num_signs..];
        let len = right.iter().position(|word| ends_factor(word, depth)).unwrap_or(right.len());
        // Without a left side, the star unpacks arguments.
        if let ([first, ..], [.., last], [next, ..], [.., end]) =
            (left, left, &right[..len], &right[..len])
        {
            places.extend([(first.start, last.end()), (next.start, end.end())]);
        }
    }
    // What stands between two stars is a side of both.
    places.sort_unstable();
    places.dedup();
    places.into_iter().flat_map(|(start, end)| Edit::filtered(start, end, FACTOR)).collect()
}

/// Whether a factor at `depth` does not go on with a word, or before it.
fn ends_factor(word: &Word<'_>, depth: usize) -> bool {
    const OPERATORS: [&str; 27] = [
        ",", ":", "=", "==", "!=", "<", ">", "<=", ">=", "+", "-", "~", "*", "/", "//", "%", "**",
        "and", "or", "not", "if", "else", "in", "is", "elif", "set", "do",
    ];
    word.depth < depth || (word.depth == depth && OPERATORS.contains(&word.text))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(source: &str, expected: &str) {
        assert_eq!(with_checks(source), expected, "{source}");
    }

    #[test]
    fn values_are_filtered_where_they_get_names() {
        check("{%- set a = b, c -%}", "{%- set a = (b, c)|settled_value -%}");
        check("{% set n.a = b if c %}", "{% set n.a = (b if c)|storable_value %}");
        check(
            "{% for a, (b, c) in d if e -%}\n",
            "{% for a, (b, c) in d if e %}{% set a = (a)|settled_value \
             %}{% set b = (b)|settled_value %}{% set c = (c)|settled_value -%}\n",
        );
        check(
            "{% with a = f(x=1), b = [c, d] %}",
            "{% with a = f(x=1), b = [c, d] %}{% set a = (a)|settled_value \
             %}{% set b = (b)|settled_value %}",
        );
        check(
            "{%+ macro m(a, b=[c, d], e=f) +%}",
            "{%+ macro m(a, b=[c, d], e=f) %}{% set a = (a)|settled_value \
             %}{% set b = (b)|settled_value %}{% set e = (e)|settled_value +%}",
        );
        check("{% call(a) m(b) %}", "{% call(a) m(b) %}{% set a = (a)|settled_value %}");
        check("{% set a|b(c='d') %}", "{% set a|b(c='d')|settled_value %}");
        check("{%- set a.b | c | d -%}", "{%- set a.b | c | d|storable_value -%}");
    }

    #[test]
    fn what_a_loop_remembers_is_filtered() {
        check(
            "{% if loop.changed(a, f(b)) and loop.changed( c ) %}",
            "{% if loop.changed((a, f(b))|storable_value) and loop.changed( (c)|storable_value ) %}",
        );
        check(
            "{% set a = x.changed(b) %}",
            "{% set a = (x.changed((b)|storable_value))|settled_value %}",
        );
    }

    #[test]
    fn both_sides_of_a_multiplication_are_filtered() {
        check(
            "{{ a + b.c(d * 2)|e * -f[1] ~ '*' }}",
            "{{ a + (b.c((d)|factor_value * (2)|factor_value)|e)|factor_value \
             * -(f[1])|factor_value ~ '*' }}",
        );
        check(
            "{% if a * b * 1e-5 == 0 %}",
            "{% if (a)|factor_value * (b)|factor_value * (1e-5)|factor_value == 0 %}",
        );
    }

    #[test]
    fn other_tags_and_what_does_not_parse_stay_as_they_are() {
        for source in [
            "a {{ b }}{# {% set a = b %} #} {% raw %}{% set a = b %}{% endraw %}",
            "{{ f(*args, **more) }}{{ 2 ** a }}",
            "{% set a %}{% endset %}{% call m(b) %}{% macro m() %}{{ loop.changed() }}",
            "{% set a = %}{% set a = b) + (c %}{% for %}{% with %}{{ * }}",
            "{% if a in b %}{% endif %}{% set a = b",
        ] {
            check(source, source);
        }
    }

    #[test]
    fn marks_for_training_become_conditions() {
        check("{%- generation -%}a{% endgeneration %}", "{%- if true -%}a{% endif %}");
    }
}
