//! Writes a GBNF grammar as Lark.
//!
//! A regular rule becomes a terminal `T` and its number, any other a rule `r` and its number; a run of
//! regular elements in the latter becomes a terminal of its own, `M` and its number, and a group that
//! is not regular a rule, so that everything is one level deep.

use super::ast::{Element, Grammar, Sequence, references};
use crate::lark_text;
use std::collections::BTreeSet;
use std::fmt::Write;

/// Returns the grammar as Lark; what `root` does not reach is left out.
pub(super) fn write(grammar: &Grammar) -> String {
    let mut writer =
        Writer { is_regular: grammar.regular_rules(), definitions: String::new(), num_runs: 0 };
    let mut lark = format!("start: {}\n", writer.name(0));
    let mut reached = BTreeSet::from([0]);
    let mut todo = vec![0];
    while let Some(index) = todo.pop() {
        let rule = &grammar.rules[index];
        todo.extend(references(rule).into_iter().filter(|&target| reached.insert(target)));
        let body = if writer.is_regular[index] {
            writer.alternatives(rule, &Writer::terminal_sequence)
        } else {
            writer.alternatives(rule, &Writer::rule_sequence)
        };
        let name = writer.name(index);
        let _ = writeln!(lark, "{name}: {body}");
    }
    lark + &writer.definitions
}

struct Writer {
    is_regular: Vec<bool>,
    /// Terminals of runs.
    definitions: String,
    num_runs: usize,
}

type WriteSequence = dyn Fn(&mut Writer, &[Element]) -> String;

impl Writer {
    fn name(&self, rule: usize) -> String {
        if self.is_regular[rule] { format!("T{rule}") } else { format!("r{rule}") }
    }

    fn is_regular(&self, element: &Element) -> bool {
        match element {
            Element::Literal(_) | Element::Class(_) => true,
            Element::Rule(rule) => self.is_regular[*rule],
            Element::Group(sequences) => {
                sequences.iter().flatten().all(|element| self.is_regular(element))
            }
            Element::Repeat { element, .. } => self.is_regular(element),
        }
    }

    fn alternatives(&mut self, sequences: &[Sequence], write: &WriteSequence) -> String {
        let parts: Vec<String> = sequences.iter().map(|sequence| write(self, sequence)).collect();
        parts.join(" | ")
    }

    /// Writes a sequence inside a terminal.
    fn terminal_sequence(&mut self, sequence: &[Element]) -> String {
        let parts: Vec<String> = sequence
            .iter()
            .map(|element| self.element(element, &Writer::terminal_sequence))
            .collect();
        if parts.is_empty() { "\"\"".to_owned() } else { parts.join(" ") }
    }

    /// Writes a sequence inside a rule: runs of regular elements as terminals.
    fn rule_sequence(&mut self, sequence: &[Element]) -> String {
        let mut parts = Vec::new();
        let runs = sequence.chunk_by(|a, b| self.is_regular(a) && self.is_regular(b));
        for run in runs.collect::<Vec<_>>() {
            match run {
                [Element::Rule(rule)] => parts.push(self.name(*rule)),
                [element] if !self.is_regular(element) => {
                    parts.push(self.element(element, &Writer::rule_sequence));
                }
                run => {
                    let body = self.terminal_sequence(run);
                    let name = format!("M{}", self.num_runs);
                    self.num_runs += 1;
                    let _ = writeln!(self.definitions, "{name}: {body}");
                    parts.push(name);
                }
            }
        }
        if parts.is_empty() { "\"\"".to_owned() } else { parts.join(" ") }
    }

    fn element(&mut self, element: &Element, write: &WriteSequence) -> String {
        match element {
            Element::Literal(text) => lark_text::string(text),
            Element::Class(class) => format!("/{class}/"),
            Element::Rule(rule) => self.name(*rule),
            Element::Group(sequences) => format!("({})", self.alternatives(sequences, write)),
            Element::Repeat { element, min, max } => {
                let once = write(self, std::slice::from_ref(&**element));
                match (min, max) {
                    (0, None) => format!("({once})*"),
                    (1, None) => format!("({once})+"),
                    (0, Some(1)) => format!("({once})?"),
                    (min, None) => format!("(({once})~{min} ({once})*)"),
                    (min, Some(max)) => format!("({once})~{min}..{max}"),
                }
            }
        }
    }
}
