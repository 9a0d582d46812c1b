//! Keeps special tokens in a client's text apart from a template's markup.
//!
//! After the first character of each occurrence of a special token's text in a client's strings
//! goes a guard, a character that occurs in none of them; so the template still sees, compares and
//! trims nearly the same text, but what it renders holds the token's text only where the template
//! wrote it. A string that ends with the beginning of a token is guarded too, for the next string
//! may go on with the rest. Cost: one pass over the strings (Aho-Corasick).

use crate::TokenizerError;
use crate::token_matcher::MatchedToken;
use aho_corasick::{AhoCorasick, MatchKind};
use serde_json::Value;

/// Which special tokens a client's string must not contain.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Guarded {
    /// All of them.
    Markup,
    /// Control tokens only: an assistant's message may hold markup such as `<think>` that the model
    /// wrote, and templates look for it.
    ControlOnly,
}

/// Knows the texts of all special tokens.
#[derive(Debug)]
pub(crate) struct MarkupGuard {
    /// Finds every occurrence, overlapping ones too; `None` without special tokens.
    automaton: Option<AhoCorasick>,
    /// In ascending order, so that those with a given beginning lie together.
    tokens: Vec<GuardedToken>,
    longest: usize,
}

#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct GuardedToken {
    text: String,
    control: bool,
}

impl MarkupGuard {
    /// Prepares to guard against `tokens`, of which those that `is_control` holds for are kept out
    /// of all strings.
    pub(crate) fn new(
        tokens: &[MatchedToken],
        is_control: impl Fn(&MatchedToken) -> bool,
    ) -> Result<Self, TokenizerError> {
        let mut tokens: Vec<GuardedToken> = tokens
            .iter()
            .map(|token| GuardedToken { text: token.text.clone(), control: is_control(token) })
            .collect();
        tokens.sort_unstable();
        let texts = tokens.iter().map(|token| token.text.as_bytes());
        let automaton = if tokens.is_empty() {
            None
        } else {
            let built = AhoCorasick::builder().match_kind(MatchKind::Standard).build(texts);
            Some(built.map_err(|source| TokenizerError::Build { source: source.into() })?)
        };
        let longest = tokens.iter().map(|token| token.text.len()).max().unwrap_or(0);
        Ok(Self { automaton, tokens, longest })
    }

    /// Guards every string inside `value`, the keys of objects included.
    pub(crate) fn apply(&self, value: &mut Value, guarded: Guarded, guard: char) {
        match value {
            Value::String(text) => self.apply_to_text(text, guarded, guard),
            Value::Array(items) => {
                for item in items {
                    self.apply(item, guarded, guard);
                }
            }
            Value::Object(fields) => {
                let taken = std::mem::take(fields);
                for (mut key, mut field) in taken {
                    self.apply_to_text(&mut key, guarded, guard);
                    self.apply(&mut field, guarded, guard);
                    fields.insert(key, field);
                }
            }
            Value::Null | Value::Bool(_) | Value::Number(_) => {}
        }
    }

    fn apply_to_text(&self, text: &mut String, guarded: Guarded, guard: char) {
        let starts = self.starts(text, guarded);
        if starts.is_empty() {
            return;
        }
        let mut broken = String::with_capacity(text.len() + starts.len() * guard.len_utf8());
        let mut done = 0;
        for start in starts {
            let end = start + text[start..].chars().next().map_or(0, char::len_utf8);
            broken.push_str(&text[done..end]);
            broken.push(guard);
            done = end;
        }
        broken.push_str(&text[done..]);
        *text = broken;
    }

    /// Returns where special tokens start in `text`, in ascending order.
    fn starts(&self, text: &str, guarded: Guarded) -> Vec<usize> {
        let Some(automaton) = &self.automaton else { return Vec::new() };
        // Not a list of occurrences: tokens that begin one another would make it long.
        let mut begins: Vec<bool> = Vec::new();
        for found in automaton.find_overlapping_iter(text) {
            if self.forbids(&self.tokens[found.pattern().as_usize()], guarded) {
                begins.resize(text.len(), false);
                begins[found.start()] = true;
            }
        }
        let tail = text.len().saturating_sub(self.longest);
        for start in (tail..text.len()).filter(|start| text.is_char_boundary(*start)) {
            if self.begins_token(&text[start..], guarded) {
                begins.resize(text.len(), false);
                begins[start] = true;
            }
        }
        begins.iter().enumerate().filter_map(|(start, begins)| begins.then_some(start)).collect()
    }

    fn begins_token(&self, end_of_text: &str, guarded: Guarded) -> bool {
        let first = self.tokens.partition_point(|token| token.text.as_str() < end_of_text);
        self.tokens[first..]
            .iter()
            .take_while(|token| token.text.starts_with(end_of_text))
            .any(|token| self.forbids(token, guarded))
    }

    fn forbids(&self, token: &GuardedToken, guarded: Guarded) -> bool {
        guarded == Guarded::Markup || token.control
    }
}

/// Finds a character that occurs in none of `values` and not in `template`.
///
/// Tries Unicode's noncharacters, which no text should hold, then a plane of private characters;
/// only a client that sends 65,000 different private characters gets `None`.
pub(crate) fn choose_guard(template: &str, values: &[&Value]) -> Option<char> {
    let candidates = ('\u{FDD0}'..='\u{FDEF}').chain('\u{F0000}'..='\u{FFFFD}');
    let mut taken = std::collections::BTreeSet::new();
    let rare = |c: &char| *c >= '\u{FDD0}';
    taken.extend(template.chars().filter(rare));
    for value in values {
        collect_chars(value, &rare, &mut taken);
    }
    candidates.into_iter().find(|candidate| !taken.contains(candidate))
}

fn collect_chars(
    value: &Value,
    keep: &impl Fn(&char) -> bool,
    taken: &mut std::collections::BTreeSet<char>,
) {
    match value {
        Value::String(text) => taken.extend(text.chars().filter(keep)),
        Value::Array(items) => items.iter().for_each(|item| collect_chars(item, keep, taken)),
        Value::Object(fields) => {
            for (key, field) in fields {
                taken.extend(key.chars().filter(keep));
                collect_chars(field, keep, taken);
            }
        }
        Value::Null | Value::Bool(_) | Value::Number(_) => {}
    }
}
