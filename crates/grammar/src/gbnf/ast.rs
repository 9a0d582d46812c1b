//! A GBNF grammar as data.

/// One element of a sequence.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum Element {
    /// This text.
    Literal(String),
    /// One character, as a class in the syntax of regular expressions.
    Class(String),
    /// A rule, by its index.
    Rule(usize),
    /// One of several sequences.
    Group(Vec<Sequence>),
    /// An element several times; without an upper bound if there is no `max`.
    Repeat { element: Box<Element>, min: u32, max: Option<u32> },
}

/// Elements one after the other; none match the empty text.
pub(super) type Sequence = Vec<Element>;

/// The rules of a grammar, of which the first is `root`.
#[derive(Clone, Debug, Default, PartialEq)]
pub(super) struct Grammar {
    /// What each rule may be.
    pub(super) rules: Vec<Vec<Sequence>>,
}

/// Returns the rules that a list of sequences refers to.
pub(super) fn references(sequences: &[Sequence]) -> Vec<usize> {
    let mut found = Vec::new();
    let mut todo: Vec<&Element> = sequences.iter().flatten().collect();
    while let Some(element) = todo.pop() {
        match element {
            Element::Rule(rule) => found.push(*rule),
            Element::Group(sequences) => todo.extend(sequences.iter().flatten()),
            Element::Repeat { element, .. } => todo.push(element),
            Element::Literal(_) | Element::Class(_) => {}
        }
    }
    found
}

impl Grammar {
    /// Tells for each rule whether it is regular: none of the rules that it reaches reaches itself.
    pub(super) fn regular_rules(&self) -> Vec<bool> {
        let direct: Vec<Vec<usize>> = self.rules.iter().map(|rule| references(rule)).collect();
        let mut num_unsettled: Vec<usize> = direct.iter().map(Vec::len).collect();
        let mut referrers = vec![Vec::new(); direct.len()];
        for (rule, targets) in direct.iter().enumerate() {
            for &target in targets {
                referrers[target].push(rule);
            }
        }
        // Settles rules all of whose references are settled; what is left reaches a circle.
        let mut todo: Vec<usize> =
            (0..direct.len()).filter(|&rule| num_unsettled[rule] == 0).collect();
        let mut is_regular = vec![false; direct.len()];
        while let Some(rule) = todo.pop() {
            is_regular[rule] = true;
            for &referrer in &referrers[rule] {
                num_unsettled[referrer] -= 1;
                if num_unsettled[referrer] == 0 {
                    todo.push(referrer);
                }
            }
        }
        is_regular
    }
}
